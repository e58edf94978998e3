# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The config drive is found by its label, whether mounted or not."""

import os
import shutil
import subprocess

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import layout_sources

_META = 'meta_data.json'


class DocumentsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.latest = os.path.join(self.directory, 'openstack', 'latest')
        os.makedirs(self.latest)

    def read(self):
        return layout_sources.read(self.directory, _META)

    def test_documents(self):
        self.assertIsNone(self.read())
        with open(os.path.join(self.latest, _META), 'w',
                  encoding='utf-8') as stream:
            stream.write('{}')
        self.assertEqual('{}', self.read())

    def test_no_such_directory(self):
        shutil.rmtree(os.path.join(self.directory, 'openstack'))
        self.assertIsNone(self.read())

    def test_a_link_is_not_followed(self):
        """A symbolic link could lead to any file of this system."""
        os.symlink('/etc/passwd', os.path.join(self.latest, _META))
        error = self.assertRaises(exception.CloudError, self.read)
        self.assertIn('Too many levels of symbolic links', str(error))


class NoRoomTest(base.BaseTestCase):

    def test_no_directory_to_mount_it_in(self):
        directory = self.useFixture(fixtures.TempDir())
        with open(directory.join('config-2'), 'w', encoding='utf-8'):
            pass
        self.useFixture(fixtures.MonkeyPatch(
            'tempfile.tempdir', directory.join('full')))
        error = self.assertRaises(
            exception.CloudError,
            layout_sources.opened(directory.path).__enter__)
        self.assertIn('No such file or directory', str(error))


class DeviceTest(base.BaseTestCase):
    """A real block device with a file system that the kernel supports.

    Not every kernel supports the two file systems of config drives.
    """

    types = ('iso9660', 'ext2', 'ext4')

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest('only root can mount a file system')
        for program in ('mke2fs', 'losetup'):
            if shutil.which(program) is None:
                self.skipTest(f'there is no {program}')
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.image = os.path.join(self.directory, 'image')
        content = os.path.join(self.directory, 'content')
        latest = os.path.join(content, 'openstack', 'latest')
        os.makedirs(latest)
        with open(os.path.join(latest, _META), 'w',
                  encoding='utf-8') as stream:
            stream.write('{"uuid": "of the drive"}')
        self.run_program('mke2fs', '-q', '-d', content, self.image, '512k')
        self.device = self.attach(self.image)
        self.labels = os.path.join(self.directory, 'by-label')
        os.mkdir(self.labels)

    def run_program(self, *words):
        return subprocess.run(words, check=True, capture_output=True,
                              text=True).stdout.strip()

    def attach(self, image):
        done = subprocess.run(['losetup', '--find', '--show', image],
                              check=False, capture_output=True, text=True)
        if done.returncode:
            self.skipTest(f'no loop device: {done.stderr.strip()}')
        device = done.stdout.strip()
        self.addCleanup(self.run_program, 'losetup', '--detach', device)
        return device

    def label(self, name):
        os.symlink(self.device, os.path.join(self.labels, name))

    def opened(self):
        return layout_sources.opened(self.labels, self.types)

    def mounts(self):
        number = os.stat(self.device).st_rdev
        with open('/proc/self/mountinfo', encoding='utf-8') as stream:
            return [line.split()[4] for line in stream if line.split()[2]
                    == f'{os.major(number)}:{os.minor(number)}']

    def test_no_drive(self):
        with self.opened() as directory:
            self.assertIsNone(directory)
        with layout_sources.opened(self.labels + '.not') as directory:
            self.assertIsNone(directory)

    def test_it_is_mounted_as_long_as_it_is_read(self):
        for name in ('config-2', 'CONFIG-2'):
            self.label(name)
            with self.opened() as directory:
                self.assertEqual([directory], self.mounts())
                self.assertEqual('{"uuid": "of the drive"}',
                                 layout_sources.read(directory, _META))
                flags = os.statvfs(directory).f_flag
                for flag in (os.ST_RDONLY, os.ST_NOSUID, os.ST_NODEV,
                             os.ST_NOEXEC):
                    self.assertTrue(flags & flag)
                # Only root can access the parent directory.
                self.assertEqual(0o700, os.stat(os.path.dirname(
                    directory)).st_mode & 0o777)
            self.assertEqual([], self.mounts())
            self.assertFalse(os.path.exists(os.path.dirname(directory)))
            os.unlink(os.path.join(self.labels, name))

    def test_it_is_unmounted_after_an_error(self):
        self.label('config-2')

        def fail():
            with self.opened():
                raise ValueError

        self.assertRaises(ValueError, fail)
        self.assertEqual([], self.mounts())

    def test_it_is_mounted_already(self):
        self.label('config-2')
        mounted = os.path.join(self.directory, 'a place')
        os.mkdir(mounted)
        # Mounted for writing, so that a read-only mount is impossible.
        self.run_program('mount', self.device, mounted)
        self.addCleanup(self.run_program, 'umount', mounted)
        with self.opened() as directory:
            self.assertEqual(mounted, directory)
        self.assertTrue(os.path.ismount(mounted))

    def test_another_file_system(self):
        self.label('config-2')
        error = self.assertRaises(
            exception.CloudError,
            layout_sources.opened(self.labels).__enter__)
        self.assertIn('config-2: cannot be mounted: it is not iso9660 or '
                      'vfat', str(error))

    def test_not_a_device(self):
        self.device = self.image
        self.label('config-2')
        error = self.assertRaises(exception.CloudError,
                                  self.opened().__enter__)
        self.assertIn('mount: Block device required', str(error))
