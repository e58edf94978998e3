# SPDX-License-Identifier: Apache-2.0

"""Which processes open device nodes, and what they may do without root."""

import os
import signal
import subprocess
import sys
import tempfile
import threading

import fixtures
import pynvml
from oslo_concurrency import processutils

from cyborg_gpu_driver.simulator import tools
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.simulator import base

_FIRST, _SECOND, _THIRD = '0000:07:00.0', '0000:0f:00.0', '0000:47:00.0'
# Read now, because a test's own directory is closed to other users.
_TEMPORARY = tempfile.gettempdir()
_OTHER_PROCESS = """
import sys

import pynvml

from cyborg_gpu_driver.simulator.machine import machine

machine.Machine.load('dgx-a100-40', sys.argv[1]).install()
pynvml.nvmlInit()
print('open', flush=True)
sys.stdin.read()
"""


class OpensTestCase(base.MachineTestCase):
    def pids(self, address):
        return [pid for pid, _ in self.machine.holders(address)]


class TestOpens(OpensTestCase):
    """Which calls open and close the nodes of GPUs."""

    def test_a_gpu_that_comes_later_is_opened_for_its_handle(self):
        self.come_later(_FIRST, _SECOND, _THIRD)
        self.assertEqual([], self.pids(_SECOND))
        self.at(_SECOND)
        self.assertEqual(([], [os.getpid()], []), tuple(map(
            self.pids, (_FIRST, _SECOND, _THIRD))))

    def come_later(self, *addresses):
        """Bind GPUs to nvidia again, after the session has started."""
        pynvml.nvmlShutdown()
        for address in addresses:
            self.machine.sriov_manage(address, enable=False)
            self.machine.bind_driver(address, 'vfio-pci')
        pynvml.nvmlInit()
        for address in addresses:
            self.machine.bind_driver(address, 'nvidia')

class TestSharedOpens(OpensTestCase):
    """Processes that share a machine see each other's opens."""

    def setUp(self):
        super().setUp()
        directory = self.useFixture(
            fixtures.TempDir(rootdir=_TEMPORARY)).path
        os.chmod(directory, 0o755)
        self.path = os.path.join(directory, 'state.json')
        self.use(machine_module.Machine.load(self.host, self.path))
        pynvml.nvmlShutdown()

    def start(self):
        process = subprocess.Popen(
            [sys.executable, '-c', _OTHER_PROCESS, self.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        self.assertEqual('open\n', process.stdout.readline())
        return process

    def fork(self, action):
        """Fork a child that calls ``action``, then waits to be killed."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                action()
                os.write(writing, b'.')
                signal.pause()
            finally:
                os._exit(1)
        os.close(writing)
        self.addCleanup(self.kill, child)
        self.assertEqual(b'.', os.read(reading, 1))
        os.close(reading)
        return child

    @staticmethod
    def kill(child):
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except ProcessLookupError:
            pass

    def test_another_process_keeps_the_gpu(self):
        self.machine.sriov_manage(_FIRST, enable=False)
        process = self.start()
        waiting, killed = threading.Event(), threading.Event()

        def pause(seconds):
            waiting.set()
            killed.wait(scope.HANG)
        self.machine.pause = pause
        reset = tools.nvidia_smi(self.machine)
        error = self.assertRaises(processutils.ProcessExecutionError, reset,
                                  '--gpu-reset', '-i', _FIRST)
        self.assertIn('In use by another client', error.stderr)
        thread = threading.Thread(target=self.sysfs.write, daemon=True, args=(
            _FIRST, 'bus', 'pci', 'drivers', 'nvidia', 'unbind'))
        thread.start()
        self.assertTrue(waiting.wait(scope.HANG))
        process.kill()
        process.wait()
        killed.set()
        thread.join(scope.HANG)
        self.assertIsNone(self.sysfs.link_name(
            'bus', 'pci', 'devices', _FIRST, 'driver'))
        other = machine_module.Machine.load(self.host, self.path)
        blocked, = other.blocked_unbinds
        self.assertEqual([process.pid],
                         [holder.pid for holder in blocked.holders])

    def test_a_child_has_what_its_parent_had(self):
        pynvml.nvmlInit()
        child = self.fork(lambda: None)
        pynvml.nvmlShutdown()
        self.assertEqual([child], self.pids(_FIRST))
        self.kill(child)
        self.assertEqual([], self.pids(_FIRST))

    def test_another_user(self):
        if os.geteuid() != 0:
            self.skipTest('only root can become another user')

        def session():
            os.setuid(65534)
            pynvml.nvmlInit()
        child = self.fork(session)
        self.assertEqual([child], self.pids(_FIRST))
        pynvml.nvmlInit()
        self.assertEqual({child, os.getpid()}, set(self.pids(_FIRST)))


_GPU = '0000:07:00.0'
_USER = 65534
_DONE, _REFUSED, _FAILED = range(3)
# Read now, because a test's own directory is closed to other users.


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
