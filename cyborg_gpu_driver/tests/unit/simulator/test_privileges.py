# SPDX-License-Identifier: Apache-2.0

"""What a process can do to a simulated machine without root rights."""

import os
import tempfile

import fixtures
import pynvml
from oslo_concurrency import processutils

from cyborg_gpu_driver.simulator import tools
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests.unit.simulator import base

_GPU = '0000:07:00.0'
_USER = 65534
_DONE, _REFUSED, _FAILED = range(3)
# Read now, because a test's own directory is closed to other users.
_TEMPORARY = tempfile.gettempdir()


class TestWithoutRoot(base.MachineTestCase):

    def setUp(self):
        super().setUp()
        self.machine.privileged = False

    def test_programs_fail(self):
        for run in (lambda: tools.sriov_manage(self.machine)(_GPU, True),
                    lambda: tools.mdevctl(self.machine)(
                        'undefine', '--uuid', base.UUID)):
            error = self.assertRaises(
                processutils.ProcessExecutionError, run)
            self.assertIn('Permission denied', error.stderr)


class TestSharedState(base.MachineTestCase):
    """Users that may not write the state file, which root created."""

    host = 'dgx-a100-80'

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest('only root can become another user')
        directory = self.useFixture(fixtures.TempDir(rootdir=_TEMPORARY)).path
        os.chmod(directory, 0o755)
        self.use(machine_module.Machine.load(
            self.host, os.path.join(directory, 'state.json')))

    def as_user(self, action):
        """Return the exit code of ``action`` as another user."""
        child = os.fork()
        if child == 0:
            code = _FAILED
            try:
                os.setuid(_USER)
                pynvml.nvmlInit()
                code = _DONE if action() else _FAILED
            except pynvml.NVMLError_NoPermission:
                code = _REFUSED
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def test_root_is_who_may_write_it(self):
        self.assertTrue(self.machine.privileged)
        self.assertEqual(
            _DONE, self.as_user(lambda: not self.machine.privileged))

    def test_others_read_instances_and_make_none(self):
        self.create(self.at(_GPU), 9, 4, 4)
        self.assertEqual(_DONE, self.as_user(
            lambda: len(self.instances(self.at(_GPU), 9)) == 1))
        self.assertEqual(_REFUSED, self.as_user(
            lambda: self.create(self.at(_GPU), 9, 0, 4)))
        self.assertEqual(1, len(self.instances(self.at(_GPU), 9)))
