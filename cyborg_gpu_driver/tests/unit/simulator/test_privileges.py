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

"""What a process can do to a simulated machine without being its root."""

import errno
import os

import fixtures
import pynvml
from oslo_concurrency import processutils

from cyborg_gpu_driver.simulator import machine as machine_module
from cyborg_gpu_driver.simulator import tools
from cyborg_gpu_driver.tests.unit.simulator import base

_GPU = '0000:07:00.0'
_RESET = ('bus', 'pci', 'devices', _GPU, 'reset')
_USER = 65534


class TestWithoutRoot(base.MachineTestCase):

    def setUp(self):
        super().setUp()
        self.machine.privileged = False

    def test_control_files_do_not_open(self):
        self.assert_errno(errno.EACCES, self.sysfs.write, '1', *_RESET)
        for flags in (os.O_WRONLY, os.O_RDWR):
            self.assertRaises(PermissionError, self.machine.os.open,
                              '/sys/' + '/'.join(_RESET), flags)

    def test_other_files_are_read(self):
        self.assertEqual('0x10de', self.sysfs.read(*_RESET[:-1], 'vendor'))

    def test_programs_fail(self):
        for run in (lambda: tools.sriov_manage(self.machine)(_GPU, True),
                    lambda: tools.mdevctl(self.machine)(
                        'undefine', '--uuid', base.UUID)):
            error = self.assertRaises(
                processutils.ProcessExecutionError, run)
            self.assertIn('Permission denied', error.stderr)

    def test_instances_are_not_read(self):
        self.assert_code(pynvml.NVML_ERROR_NO_PERMISSION, self.instances,
                         self.at(_GPU), 9)


class TestSharedState(base.MachineTestCase):
    """Who may not write the state file, which root has made."""

    host = 'dgx-a100-80'

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest('only root can become another user')
        directory = self.useFixture(fixtures.TempDir()).path
        os.chmod(directory, 0o755)
        self.use(machine_module.Machine.load(
            self.host, os.path.join(directory, 'state.json')))

    def as_user(self, action):
        """Whether ``action`` succeeds for another user."""
        child = os.fork()
        if child == 0:
            try:
                os.setuid(_USER)
                pynvml.nvmlInit()
                action()
            except Exception:
                os._exit(1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_it_is_not_root(self):
        self.assertTrue(self.machine.privileged)
        self.assertFalse(self.as_user(self._need_root))

    def test_it_reads_instances_and_makes_none(self):
        self.create(self.at(_GPU), 9, 4, 4)
        self.assertTrue(self.as_user(
            lambda: self.assertEqual(
                1, len(self.instances(self.at(_GPU), 9)))))
        self.assertFalse(self.as_user(
            lambda: self.create(self.at(_GPU), 9, 0, 4)))
        self.assertEqual(1, len(self.instances(self.at(_GPU), 9)))

    def _need_root(self):
        if not self.machine.privileged:
            raise PermissionError
