# SPDX-License-Identifier: Apache-2.0

"""Writing a layout to a real file system, which the agent's code mounts."""

import contextlib
import os
import pathlib
import shutil
import subprocess

from ironic_python_agent import errors

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.baremetal import layouter
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.ironic import agent_case

_LABEL = 'security.selinux'
_UNIT_LABEL = b'system_u:object_r:systemd_unit_file_t:s0\0'
_REAL = ('mkfs.ext4', 'mount', 'umount')


class DiskCase(agent_case.AgentCase):
    """A node whose second disk partition is an ext4 file system."""

    MACHINE = 'hgx-h100'
    GPUS = 2

    def setUp(self):
        super().setUp()
        self.real = {name: shutil.which(name, path=os.defpath
                                        + ':/usr/sbin:/sbin')
                     for name in _REAL}
        missing = [name for name, path in self.real.items() if path is None]
        if missing:
            self.skipTest(f'there is no {", ".join(missing)}')
        for name in ('mount', 'umount'):
            (self.programs / name).unlink()
            (self.programs / name).symlink_to(self.real[name])
        with self.image.open('wb') as stream:
            stream.truncate(8 << 20)
        subprocess.run([self.real['mkfs.ext4'], '-q', self.image],
                       check=True)
        try:
            with self.mounted():
                self.make_tree()
        except subprocess.CalledProcessError as error:
            self.skipTest('no file system can be mounted here: '
                          f'{error.stderr}')

    @contextlib.contextmanager
    def mounted(self):
        """Mount the file system at ``root``, as the deployed system would.
        """
        self.root = self.directory / 'root'
        self.root.mkdir(exist_ok=True)
        subprocess.run([self.real['mount'], self.image, self.root],
                       check=True, capture_output=True, text=True)
        try:
            yield
        finally:
            subprocess.run([self.real['umount'], self.root], check=True)

    def make_tree(self):
        (self.root / 'etc/systemd/system').mkdir(parents=True)
        (self.root / 'usr/bin').mkdir(parents=True)
        (self.root / 'usr/bin/cyborg-gpu').touch(0o755)

    def deploy(self, layout='all-1g.10gb'):
        return self.execute('deploy', 'apply_gpu_layout', layout=layout)


class RootTest(agent_case.AgentCase):

    MACHINE = None

    def found(self):
        with layouter.mounted() as root:
            return root.find_program(['usr/bin/cyborg-gpu'])

    def test_names_of_partitions(self):
        for disk, root in scope.some((
                ('sda', 'sda2'), ('vdb', 'vdb2'), ('nvme0n1', 'nvme0n1p2'),
                ('md126', 'md126p2'), ('mmcblk0', 'mmcblk0p2'))):
            self.disk, self.image = (self.directory / name
                                     for name in (disk, root))
            self._write_programs()
            self.make_image('usr/bin/cyborg-gpu')
            self.restart()
            self.assertEqual('usr/bin/cyborg-gpu', self.found())

    def test_what_was_looked_at_is_named(self):
        self.image.mkdir()
        error = self.assertRaises(exception.ChangeRefused, self.found)
        self.assertIn('no partition has /etc/systemd/system', str(error))
        self.assertIn(f'checked {self.disk}1 (cannot be mounted), '
                      f'{self.disk}2', str(error))

    def test_no_partition_table(self):
        self.stub('parted', 'echo "unrecognised disk label" >&2; exit 1')
        error = self.assertRaises(exception.ChangeRefused, self.found)
        self.assertIn('its partitions cannot be listed', str(error))
        self.assertIn('unrecognised disk label', str(error))


class DiskTest(DiskCase):

    def test_staged(self):
        self.deploy()
        with self.mounted():
            self.assertIn('1g.10gb', agent_case.read(
                self.root / cleaning.LAYOUT_PATH))
            status = (self.root / cleaning.UNIT_PATH).stat()
            self.assertEqual((0, 0, 0o644), (
                status.st_uid, status.st_gid, status.st_mode & 0o7777))
            self.assertTrue((self.root / cleaning.WANTS_PATH).is_symlink())
        self.deploy('all-7g.80gb')
        with self.mounted():
            text = agent_case.read(self.root / cleaning.LAYOUT_PATH)
            self.assertIn('7g.80gb', text)
            self.assertNotIn('1g.10gb', text)

    def test_labels(self):
        with self.mounted():
            try:
                os.setxattr(self.root / 'etc/systemd/system', _LABEL,
                            _UNIT_LABEL)
            except OSError as error:
                self.skipTest(f'no labels can be set here: {error}')
        self.deploy()
        with self.mounted():
            wants = pathlib.Path(cleaning.WANTS_PATH)
            for path in (cleaning.UNIT_PATH, wants.parent, wants):
                self.assertEqual(_UNIT_LABEL, os.getxattr(
                    self.root / path, _LABEL, follow_symlinks=False))

    def test_no_room(self):
        with self.mounted():
            (self.root / 'etc/cyborg-gpu').mkdir()
            # Each write has its block before the next one. Otherwise the file
            # system gives back later what it has reserved for them.
            full = os.open(self.root / 'full',
                           os.O_CREAT | os.O_WRONLY | os.O_SYNC)
            with contextlib.suppress(OSError):
                while os.write(full, bytes(1 << 10)):
                    pass
            os.close(full)
        self.refused('deploy', 'apply_gpu_layout', errors.DeploymentError,
                     'No space left on device', layout='all-1g.10gb')
        with self.mounted():
            self.assertEqual([], list(
                (self.root / 'etc/cyborg-gpu').iterdir()))

    def test_nothing_stays_mounted(self):
        self.deploy()
        self.refused('deploy', 'apply_gpu_layout', errors.DeploymentError,
                     layout='no such layout')
        with self.mounted():
            (self.root / 'usr/bin/cyborg-gpu').unlink()
            self.assertEqual(1, len(list(self.loops())))
        self.refused('deploy', 'apply_gpu_layout', errors.DeploymentError,
                     'there is no cyborg-gpu', layout='all-1g.10gb')
        self.assertEqual([], list(self.loops()))

    def loops(self):
        """The loop devices of the image: one while it is mounted."""
        for path in pathlib.Path('/sys/block').glob('loop*'):
            with contextlib.suppress(OSError):
                if agent_case.read(path / 'loop/backing_file').strip() == str(
                        self.image):
                    yield path.name
