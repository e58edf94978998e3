# SPDX-License-Identifier: Apache-2.0

import errno

import pynvml

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base

_1G = 19
_CODES = (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NOT_SUPPORTED,
          pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_TIMEOUT,
          pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
          pynvml.NVML_ERROR_UNINITIALIZED)


class FaultTest(base.SimulatedTestCase):
    """A fault costs the detail of its GPU, never the snapshot."""

    GPUS = 4

    def _unhealthy(self):
        """Return the first GPU; all others must have no problem."""
        host = self.reader.snapshot()
        self.assertEqual(4, len(host.gpus))
        for gpu in host.gpus[1:]:
            self.assertEqual((), gpu.problems)
            self.assertIsNotNone(gpu.mig)
        return host.gpus[0]

    def test_lost_gpu(self):
        self.reader.snapshot()
        self.machine.lose_gpu(str(self.first))
        gpu = self._unhealthy()
        self.assertIn('GPU_IS_LOST', gpu.problems[0])
        self.assertEqual((None, None, False, ()),
                         (gpu.mig, gpu.model, gpu.visible_to_nvml,
                          gpu.nvlink_peers))
        self.assertEqual('nvidia', gpu.driver)
        self.assertEqual(20, len(gpu.vfs))
        for _ in range(3):
            self._unhealthy()
        self.assertEqual(1, len(self.log.about('GPU_IS_LOST', 30)))
        self.machine.find_gpu(str(self.first))
        self.assertEqual((), self._unhealthy().problems)
        self.assertEqual(2, len(self.log.about('GPU_IS_LOST', 30)))

    def test_every_call_that_can_fail(self):
        """Any error of any call is a problem of one GPU, or of none."""
        self.use('mixed')
        ampere = self.addresses[1]
        self.cut(ampere, _1G)
        self.reader.snapshot(detail=True)
        symbols = [symbol for symbol in self.calls()
                   if symbol.startswith(('nvmlDevice', 'nvmlVgpuType',
                                         'nvmlGpuInstance'))]
        self.assertGreater(len(symbols), 20)
        for number, symbol in enumerate(symbols):
            codes = _CODES if scope.ALL else [_CODES[number % len(_CODES)]]
            for code in codes:
                self.machine.faults.fail(symbol, code, times=None,
                                         address=str(ampere))
                self.nvml.reset()
                gpus = self.reader.snapshot(detail=True).gpus
                self.assertEqual(
                    [()] * 3, [gpu.problems for gpu in gpus
                               if gpu.address != ampere], (symbol, code))
                self.machine.faults.clear()
        self.assertEqual(
            (), self.reader.snapshot().gpu(ampere).problems)

    def test_mig_state_that_cannot_be_read_is_never_the_old_one(self):
        self.cut(self.first, _1G)
        self.assertEqual(1, len(self._unhealthy().mig.instances))
        for symbol in ('nvmlDeviceGetMigMode', 'nvmlDeviceGetGpuInstances',
                       'nvmlGpuInstanceGetInfo'):
            self.machine.faults.fail(symbol, pynvml.NVML_ERROR_UNKNOWN,
                                     times=None, address=str(self.first))
            gpu = self._unhealthy()
            self.assertIsNone(gpu.mig, symbol)
            self.assertIn(symbol, gpu.problems[0])
            self.machine.faults.clear()
            self.assertEqual(1, len(self._unhealthy().mig.instances), symbol)

    def test_reboot(self):
        self.reader.snapshot()
        self.machine.reboot()
        host = self.reader.snapshot()
        self.assertEqual({()}, {gpu.problems for gpu in host.gpus})
        self.assertEqual({True}, {gpu.visible_to_nvml for gpu in host.gpus})

    def test_static_facts_that_failed_are_read_again(self):
        self.machine.faults.fail('nvmlDeviceGetSerial',
                                 pynvml.NVML_ERROR_UNKNOWN, times=1,
                                 address=str(self.first))
        gpu = self._unhealthy()
        self.assertIsNone(gpu.serial)
        self.assertIn('nvmlDeviceGetSerial', gpu.problems[0])
        gpu = self._unhealthy()
        self.assertEqual((self.machine.gpus[0].spec.serial, ()),
                         (gpu.serial, gpu.problems))

    def test_whole_gpus_need_no_root(self):
        self.use('mixed')
        self.machine.privileged = False
        turing, ampere, hopper, _ = self.reader.snapshot().gpus
        self.assertEqual(((), ()), (turing.problems, hopper.problems))
        self.assertFalse(hopper.mig.enabled)
        self.assertEqual({()}, {profile.placements
                                for profile in hopper.mig.profiles})
        self.assertIn('NO_PERMISSION', ampere.problems[0])

    def test_files_that_cannot_be_read(self):
        self.use('mixed')
        before = self.reader.snapshot()
        address = str(self.addresses[0])
        self.machine.faults.fail_read(
            f'*/{address}/mdev_supported_types/*/available_*', errno.EIO,
            times=None)
        unhealthy, *others = self.reader.snapshot().gpus
        self.assertIn('available_instances', unhealthy.problems[0])
        self.assertEqual([()] * 3, [gpu.problems for gpu in others])
        self.machine.faults.clear()
        self.assertEqual(before, self.reader.snapshot())
