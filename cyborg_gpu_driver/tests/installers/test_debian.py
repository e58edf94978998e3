# SPDX-License-Identifier: Apache-2.0

"""The packages of debian/, built, installed and purged.

The distribution has none of the libraries that they depend on. dpkg installs
them anyway, and the test's environment provides the libraries.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.installers import base as installers

# What is written is in memory, above the files of this machine.
MOUNT = """
set -e
mount --make-rprivate /
mount -t tmpfs none "$WORK/machine"
cd "$WORK/machine"
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
"""
RUN = """
for place in dev proc sys; do mount --rbind /$place root/$place; done
# The environment may be on another file system.
if ! [ -e "root$PYTHONPATH" ]; then
    mkdir -p "root$PYTHONPATH"
    mount --bind "$PYTHONPATH" "root$PYTHONPATH"
fi
rm -rf root/var/lib/cyborg
mkdir root/packages
cp "$WORK"/*.deb root/packages
cp -r "$WORK/source" root/packages
cat >root/packages/test
chroot root sh -e /packages/test
"""
LIFE = """
list() { find /etc /lib /usr /var/lib -xdev ! -path '/var/lib/dpkg*' | sort; }
list >/packages/before
for name in python3-cyborg-gpu-driver cyborg-gpu; do
    dpkg --force-depends --no-triggers -i /packages/${name}_*.deb
done
visudo -cf /etc/sudoers.d/cyborg-gpu
stat --format '%A %U %n' /var/lib/cyborg/gpu /etc/sudoers.d/cyborg-gpu
for name in restore exporter firstboot; do
    echo $name is $(systemctl is-enabled cyborg-gpu-$name.service)
done
cd /packages/source
python3 -c 'import sys; sys.path.pop(0); import cyborg_gpu_driver as ours
print("imported", ours.__file__)'
mkdir /packages/tmp
AUTOPKGTEST_TMP=/packages/tmp debian/tests/demo
touch /var/lib/cyborg/gpu/record
dpkg --no-triggers -r cyborg-gpu python3-cyborg-gpu-driver
ls /var/lib/cyborg/gpu/record
dpkg --no-triggers -P cyborg-gpu python3-cyborg-gpu-driver
list | diff /packages/before - && echo nothing is left
"""


class DebianTest(installers.WorkCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.need('dpkg-buildpackage', 'dh', 'dh_python3', 'lintian', 'visudo')
        source = cls.copy_source()
        cls.call('dpkg-buildpackage', '-us', '-uc', cwd=source)

    @classmethod
    def call(cls, *command, **more):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            # One call runs the whole demo.
            text=True, check=False, timeout=3 * scope.HANG, **{
                'cwd': cls.work, 'env': {
                    **installers.DISTRIBUTION, 'HOME': str(cls.work)}, **more})
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    def test_lintian_finds_nothing(self):
        (changes,) = self.work.glob('*.changes')
        self.assertEqual('', self.call('lintian', '--allow-root', changes))

    def test_requirements_have_their_minimum(self):
        (package,) = self.work.glob('python3-*.deb')
        depends = self.call('dpkg-deb', '-f', package, 'Depends')
        for line in (installers.ROOT / 'requirements.txt').read_text(
                ).splitlines():
            if '>=' in line:
                minimum = line.partition('>=')[2].split()[0]
                self.assertIn(f' (>= {minimum})', depends, line)

    def test_life_of_the_packages(self):
        python = '/usr/bin/python3'
        tag = self.call(python, '-c', 'import sys\n'
                        'print(sys.implementation.cache_tag)').strip()
        if tag != sys.implementation.cache_tag:
            self.skipTest(f'{python} is not the Python of the tests')
        (self.work / 'machine').mkdir()
        environment = {**installers.DISTRIBUTION, 'WORK': str(self.work)}
        if subprocess.run(['unshare', '--mount', 'sh', '-c', MOUNT],
                          check=False, capture_output=True,
                          env=environment).returncode:
            self.skipTest('no overlay can be mounted')
        output = self.call(
            'unshare', '--mount', 'sh', '-c', MOUNT + RUN, input=LIFE, env={
                **environment,
                'DEBIAN_FRONTEND': 'noninteractive', 'TMPDIR': '/tmp',
                'PYTHONDONTWRITEBYTECODE': '1',
                'PYTHONPATH': sysconfig.get_path('purelib')})
        for expected in (
                'drwxr-x--- cyborg /var/lib/cyborg/gpu',
                '-r--r----- root /etc/sudoers.d/cyborg-gpu',
                'restore is enabled', 'exporter is disabled',
                'firstboot is disabled',
                'imported /usr/lib/python3/dist-packages/cyborg_gpu_driver/',
                '\ndemo: passed in ', '\n/var/lib/cyborg/gpu/record\n',
                '\nnothing is left\n'):
            self.assertIn(expected, output)
