# SPDX-License-Identifier: Apache-2.0

"""The element of etc/diskimage-builder, run by the released diskimage-builder.

Its hooks run in a mount namespace of their own. A scratch directory is
mounted over each directory to which they write.
"""

import configparser
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import diskimage_builder
import fixtures
from diskimage_builder import element_dependencies
from oslotest import base

from cyborg_gpu_driver.baremetal import cleaning

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_ELEMENTS = _ROOT / 'etc' / 'diskimage-builder'
_RELEASED = pathlib.Path(diskimage_builder.__file__).parent
_HOOKS = ('environment.d', 'extra-data.d', 'install.d', 'post-install.d')
_WRITTEN = ('/opt', '/usr/local/bin', '/etc')
_LAYOUT = 'version: v1\nmig-configs: {}\n'
_ENTER = f"""
set -e
root=$1; shift
for directory in {' '.join(_WRITTEN)}; do
    mount --bind "$root$directory" "$directory"
done
exec "$@"
"""


def _obstacle():
    """Return why no hook can be run here; empty if hooks can be run."""
    if os.geteuid() != 0:
        return 'only root can mount over directories'
    if sys.base_prefix.startswith(_WRITTEN):
        return f'the interpreter is in {sys.base_prefix}'
    if not all(map(os.path.isdir, _WRITTEN)):
        return 'there is no ' + ' or no '.join(_WRITTEN)
    done = subprocess.run(
        ['unshare', '--mount', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt'],
        capture_output=True, text=True, check=False)
    return done.stderr.strip()


def _wheel(directory):
    """Create a wheel with the parts of this project that the element uses.

    The wheel has the entry points and the systemd unit, but no modules.
    Building all of it needs tools that not every environment has.
    """
    setup = configparser.ConfigParser()
    setup.read(_ROOT / 'setup.cfg')
    info = 'cyborg_gpu_driver-1.0.dist-info'
    data = 'cyborg_gpu_driver-1.0.data/data/lib/systemd/system'
    files = {
        f'{info}/METADATA':
            'Metadata-Version: 2.1\nName: cyborg_gpu_driver\nVersion: 1.0\n',
        f'{info}/WHEEL': 'Wheel-Version: 1.0\nGenerator: test\n'
                         'Root-Is-Purelib: true\nTag: py3-none-any\n',
        f'{info}/entry_points.txt': '\n'.join(
            f'[{group}]\n{names.strip()}' for group, names
            in setup['entry_points'].items()),
        f'{data}/{cleaning.UNIT}': cleaning.unit_text()}
    files[f'{info}/RECORD'] = ''.join(
        f'{name},,\n' for name in (*files, f'{info}/RECORD'))
    path = directory / 'cyborg_gpu_driver-1.0-py3-none-any.whl'
    with zipfile.ZipFile(path, 'w') as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


class DependenciesTest(base.BaseTestCase):

    def test_diskimage_builder_finds_it_and_what_it_needs(self):
        found = dict(element_dependencies.get_elements(
            ['debian-minimal', 'cyborg-gpu'],
            f'{_ELEMENTS}:{_RELEASED / "elements"}'))
        self.assertEqual(str(_ELEMENTS / 'cyborg-gpu'), found['cyborg-gpu'])
        self.assertLessEqual(
            {'dib-init-system', 'disable-nouveau', 'ensure-venv'}, set(found))

    def test_every_variable_is_described(self):
        element = _ELEMENTS / 'cyborg-gpu'
        readme = (element / 'README.rst').read_text(encoding='utf-8')
        (environment,) = (element / 'environment.d').iterdir()
        names = {line.partition('=')[0].removeprefix('export ')
                 for line in environment.read_text(
                     encoding='utf-8').splitlines()
                 if line.startswith('export ')}
        self.assertEqual(names, {
            line for line in readme.splitlines()
            if line.startswith('DIB_CYBORG_GPU_') and ' ' not in line})


class HooksCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        obstacle = _obstacle()
        if obstacle:
            self.skipTest(f'no hook can be run here: {obstacle}')
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.root = self.directory / 'root'
        self.hooks = self.directory / 'hooks'
        for path in _WRITTEN:
            (self.root / path[1:]).mkdir(parents=True)
        for name in ('ld.so.cache', 'passwd'):
            if os.path.exists(f'/etc/{name}'):
                shutil.copy(f'/etc/{name}', self.root / 'etc')
        # Debian's awk is a symbolic link through this directory.
        if os.path.isdir('/etc/alternatives'):
            shutil.copytree('/etc/alternatives',
                            self.root / 'etc' / 'alternatives', symlinks=True)
        for name in _HOOKS:
            shutil.copytree(_ELEMENTS / 'cyborg-gpu' / name,
                            self.hooks / name)
        self.options = {
            'DIB_CYBORG_GPU_SOURCE': str(_wheel(self.directory)),
            'DIB_CYBORG_GPU_PIP_OPTIONS': '--no-deps --no-index --quiet'}

    def run_hooks(self, *names, code=0):
        """Run hooks as diskimage-builder does and return their output."""
        said = ''
        for name in names:
            words = [str(_RELEASED / 'lib' / 'dib-run-parts'),
                     str(self.hooks / f'{name}.d')]
            if name != 'extra-data':
                words = ['unshare', '--mount', 'sh', '-c', _ENTER, 'sh',
                         str(self.root), *words]
            done = subprocess.run(
                words, capture_output=True, text=True, check=False, env={
                    'PATH': f'{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin',
                    'HOME': str(self.directory), 'LANG': 'C.UTF-8',
                    'PIP_CONFIG_FILE': os.devnull,
                    'DIB_INIT_SYSTEM': 'systemd',
                    'TMP_HOOKS_PATH': str(self.hooks), **self.options})
            said += done.stdout + done.stderr
            if done.returncode:
                break
        self.assertEqual(bool(code), bool(done.returncode), said)
        return said

    def path(self, path):
        return self.root / path.lstrip('/')

    def read(self, path):
        """A file of the image."""
        return self.path(path).read_text(encoding='utf-8')

    def distributions(self, venv):
        """The distributions in a virtual environment of the image."""
        return {path.name.partition('-')[0] for path in self.path(venv).glob(
            'lib/python3*/site-packages/*.dist-info')}


class TenantTest(HooksCase):

    def test_an_image(self):
        layout = self.directory / 'a layout'
        layout.write_text(_LAYOUT, encoding='ascii')
        self.options['DIB_CYBORG_GPU_LAYOUT'] = str(layout)
        self.run_hooks('extra-data', 'install', 'post-install')
        self.assertIn('cyborg_gpu_driver',
                      self.distributions('/opt/cyborg-gpu'))
        command = self.path('/usr/local/bin/cyborg-gpu')
        self.assertEqual('/opt/cyborg-gpu/bin/cyborg-gpu',
                         os.readlink(command))
        self.assertTrue(os.access(self.path(os.readlink(command)), os.X_OK))
        # The unit is the one that the deploy step writes.
        self.assertEqual(cleaning.unit_text(), self.read(cleaning.UNIT_PATH))
        self.assertEqual(f'/{cleaning.UNIT_PATH}',
                         os.readlink(self.path(cleaning.WANTS_PATH)))
        self.assertEqual(_LAYOUT, self.read(cleaning.LAYOUT_PATH))
        # Run the hook again, without a layout.
        shutil.rmtree(self.path('/etc/cyborg-gpu'))
        (self.hooks / 'cyborg-gpu' / 'layout.yaml').unlink()
        self.run_hooks('post-install')
        self.assertEqual(cleaning.unit_text(), self.read(cleaning.UNIT_PATH))
        self.assertFalse(self.path('/etc/cyborg-gpu').exists())

    def test_variables_that_are_wrong(self):
        for name, value, words in (
                ('IMAGE', 'agent', 'expected tenant or ramdisk'),
                ('SOURCE', '/none.whl', 'expected a wheel or source archive'),
                ('SOURCE', '', 'expected a wheel or source archive'),
                ('LAYOUT', '/none.yaml', 'expected a layout file')):
            self.options = {f'DIB_CYBORG_GPU_{name}': value}
            said = self.run_hooks('extra-data', code=1)
            self.assertIn(f'DIB_CYBORG_GPU_{name}', said)
            self.assertIn(words, said)

    def test_a_system_without_systemd(self):
        self.options['DIB_INIT_SYSTEM'] = 'sysv'
        self.assertIn('DIB_INIT_SYSTEM=sysv: expected systemd',
                      self.run_hooks('extra-data', 'post-install', code=1))


class RamdiskTest(HooksCase):

    def setUp(self):
        super().setUp()
        self.options['DIB_CYBORG_GPU_IMAGE'] = 'ramdisk'

    def make_agent(self, *options):
        """Create the virtual environment of ironic-python-agent."""
        subprocess.run(
            ['unshare', '--mount', 'sh', '-c', _ENTER, 'sh', self.root,
             sys.executable, '-m', 'venv', *options,
             '/opt/ironic-python-agent'], check=True)

    def test_without_the_agent(self):
        self.assertIn(
            'expected the virtual environment of ironic-python-agent',
            self.run_hooks('extra-data', 'install', code=1))

    def test_an_agent_that_lacks_the_plug_ins(self):
        self.make_agent('--without-pip')
        self.assertIn('there is no plug-in nvidia-gpus in the group '
                      'ironic_python_agent.hardware_managers',
                      self.run_hooks('post-install', code=1))

    def test_it_has_no_layout(self):
        self.options['DIB_CYBORG_GPU_LAYOUT'] = os.devnull
        self.assertIn('only a tenant image has a layout',
                      self.run_hooks('extra-data', code=1))
