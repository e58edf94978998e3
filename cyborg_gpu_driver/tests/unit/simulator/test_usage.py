# SPDX-License-Identifier: Apache-2.0

"""The usage count of a GPU in NVIDIA's driver, and what shows it."""

import contextlib
import dataclasses
import errno
import threading

import pynvml
import testtools
from oslo_concurrency import processutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.simulator import tools
from cyborg_gpu_driver.tests.unit.simulator import base

_GPU = '0000:17:00.0'
_LONG = 60
"""Seconds after which a test that waits has failed."""


class UsageTestCase(base.MachineTestCase):
    host = 'h100nvlx2'

    def setUp(self):
        super().setUp()
        pynvml.nvmlShutdown()
        self.machine.sriov_manage('ALL', enable=False)
        self.proc = pci.Sysfs('/proc', os_module=self.machine.proc)

    def place(self, name):
        return ('driver', 'nvidia', 'gpus', _GPU, name)

    def read(self, name):
        return self.proc.read_optional(*self.place(name))

    def lock(self, value='1'):
        self.proc.write(value, *self.place('unbindLock'))
        return self.read('unbindLock')

    def users(self):
        """Yield after a start of each kind of use, and end it."""
        machine = self.machine
        pynvml.nvmlInit()
        self.at(_GPU)
        yield 'NVML'
        pynvml.nvmlShutdown()
        for hidden in (False, True):
            machine.add_holder(_GPU, 913, 'nv-hostengine', hidden)
            self.assertEqual(int(not hidden), len(machine.holders(_GPU)))
            yield f'hidden={hidden}'
            machine.remove_holder(913)
        machine.start_persistenced()
        yield 'nvidia-persistenced'
        machine.stop_persistenced()
        machine.load_drm()
        yield 'nvidia_drm'
        machine.unload_drm()
        machine.leak_use(_GPU)
        self.assertEqual((), machine.holders(_GPU))
        yield 'leak'
        machine.add_process(_GPU, 4711)
        yield 'process'


class UnbindLockTest(UsageTestCase):
    """What the driver grants and shows."""

    def test_granted_to_an_unused_gpu_only(self):
        reset = tools.nvidia_smi(self.machine)
        self.assertIn('Video Memory:               ?', self.read('power'))
        for user in self.users():
            self.assertEqual('0', self.lock(), user)
            self.assertIn('Active', self.read('power'), user)
            # nvidia-smi asks nvidia-persistenced to close the GPU.
            with contextlib.ExitStack() as stack:
                if user != 'nvidia-persistenced':
                    stack.enter_context(testtools.ExpectedException(
                        processutils.ProcessExecutionError,
                        '(?s).*In use by another client'))
                reset('--gpu-reset', '-i', _GPU)

    def test_it_keeps_the_gpu_closed_until_it_is_given_back(self):
        self.assertEqual('0', self.read('unbindLock'))
        self.assertEqual('1', self.lock())
        error = self.assertRaises(OSError, self.machine.add_holder, _GPU, 1,
                                  'late')
        self.assertEqual(errno.ENODEV, error.errno)
        pynvml.nvmlInit()
        self.addCleanup(pynvml.nvmlShutdown)
        self.assert_code(pynvml.NVML_ERROR_UNKNOWN, self.at, _GPU)
        self.assertEqual('0', self.lock('0'))
        self.at(_GPU)

    def test_gone_with_the_binding(self):
        self.lock()
        self.machine.bind_driver(_GPU, 'vfio-pci')
        self.assertIsNone(self.read('unbindLock'))
        self.machine.bind_driver(_GPU, 'nvidia')
        self.assertEqual('0', self.read('unbindLock'))

    def test_other_text(self):
        self.assert_errno(errno.EINVAL, self.lock, 'x')


class UnbindTest(UsageTestCase):
    def unbind(self):
        self.sysfs.write(_GPU, 'bus', 'pci', 'drivers', 'nvidia', 'unbind')

    def test_with_a_leaked_use_it_never_ends(self):
        self.machine.leak_use(_GPU)
        looks = threading.Semaphore(0)
        go_on = threading.Event()
        self.addCleanup(go_on.set)

        def pause(seconds):
            looks.release()
            go_on.wait(_LONG)
        self.machine.pause = pause
        thread = threading.Thread(target=self.assertRaises, args=(
            exception.SysfsError, self.unbind), daemon=True)
        thread.start()
        self.assertTrue(looks.acquire(timeout=_LONG))
        blocked, = self.machine.blocked_unbinds
        self.assertEqual((_GPU, []), (blocked.address, blocked.holders))
        self.machine.reboot()
        go_on.set()
        thread.join(_LONG)
        self.assertFalse(thread.is_alive())

    def test_driver_versions(self):
        for version, since in (('580.65.06', False), ('580.95.05', False),
                               ('580.105.08', True), ('590.44.01', True)):
            host = dataclasses.replace(self.machine.host,
                                       driver_version=version)
            self.assertIs(since, host.driver_since(580, 105, 8), version)
