# SPDX-License-Identifier: Apache-2.0

"""The spec of contrib/rpm, built with Debian's rpmbuild.

Debian's rpm has none of the macros of RHEL for Python and systemd. Those here
do what RHEL's do with pip, and nothing in the scripts of the packages.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.installers import base as installers

SPEC = installers.ROOT / 'contrib' / 'rpm' / 'python-cyborg-gpu-driver.spec'
PIP = f'{sys.executable} -I -m pip --disable-pip-version-check'
SITE = '/usr/lib/python%d.%d/site-packages' % sys.version_info[:2]
MACROS = {
    'python3_sitelib': SITE, '_unitdir': '/usr/lib/systemd/system',
    '_sysusersdir': '/usr/lib/sysusers.d',
    '_tmpfilesdir': '/usr/lib/tmpfiles.d',
    'pyproject_buildrequires': 'true',
    'pyproject_wheel': f'{PIP} wheel --no-deps --no-build-isolation -w new .',
    'pyproject_install': f'{PIP} install --no-deps --no-index --no-compile '
                         '--ignore-installed --root %{buildroot} '
                         '--prefix /usr new/*.whl',
    'systemd_post': 'true', 'systemd_preun': 'true',
    'systemd_postun_with_restart': 'true'}
# Releases of rpm after 2010 need no BuildRoot, and no index has the archive.
EXPECTED = {'no-buildroot-tag', 'invalid-url'}


class RpmTest(installers.WorkCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.need('rpmbuild', 'rpmlint')
        source = cls.copy_source()
        (name,) = re.findall(r'^%global pypi_name (\S+)', SPEC.read_text(),
                             re.M)
        (version,) = re.findall(r'^Version: +(\S+)', SPEC.read_text(), re.M)
        archive = cls.work / f'{name}-{version}.tar.gz'
        with tarfile.open(archive, 'w:gz') as stream:
            stream.add(source, f'{name}-{version}')
        defined = {**MACROS, '_topdir': str(cls.work)}
        cls.call('rpmbuild', '-ta', '--nodeps', *(
            word for macro, value in defined.items()
            for word in ('--define', f'{macro} {value}')), archive)

    @classmethod
    def call(cls, *command):
        done = subprocess.run(
            command, cwd=cls.work, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
            timeout=scope.HANG,
            env={**installers.DISTRIBUTION, 'HOME': str(cls.work)})
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    def query(self, package, *options):
        (path,) = self.work.glob(f'RPMS/noarch/{package}-1*.rpm')
        return self.call('rpm', '-qp', *options, path)

    def test_rpmlint_finds_nothing(self):
        found = self.call('rpmlint', SPEC)
        self.assertEqual(EXPECTED, set(re.findall(r': [EW]: (\S+)', found)))

    def test_host(self):
        files = self.query('openstack-cyborg-gpu', '-lv')
        self.assertRegex(files, r'-r--r----- .* /etc/sudoers.d/cyborg-gpu\n')
        for unit in ('restore', 'exporter', 'firstboot'):
            self.assertIn(f'/usr/lib/systemd/system/cyborg-gpu-{unit}.service',
                          files)

    def test_library(self):
        files = self.query('python3-cyborg-gpu-driver', '-l').splitlines()
        package = f'{SITE}/cyborg_gpu_driver'
        for name in ('/usr/bin/cyborg-gpu', f'{package}/driver.py',
                     f'{package}/simulator/hosts/t4x4.yaml',
                     '/etc/cyborg_gpu_driver/cyborg-gpu.conf.sample'):
            self.assertIn(name, files)
        self.assertNotIn(f'{package}/tests', files)
