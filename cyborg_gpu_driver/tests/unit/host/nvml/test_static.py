# SPDX-License-Identifier: Apache-2.0

"""The static facts of equal boards are read from one of them."""

import itertools

import fixtures
import pynvml

from cyborg_gpu_driver.tests.unit.host import base

_PROFILE = 'nvmlDeviceGetGpuInstanceProfileInfoV'
_INDICES = 17 + 1
"""The calls that read the list of profiles of driver 570 to its end: one
fails."""


class BoardsTest(base.SimulatedTestCase):

    MACHINE = 'dgx-a100-80'

    def counted(self, **how):
        self.machine.reset_calls()
        self.host = self.reader.snapshot(**how)
        return self.calls()

    def test_of_one_of_eight(self):
        calls = self.counted()
        self.assertEqual(_INDICES, calls[_PROFILE])
        types = {gpu.vgpu_types for gpu in self.host.gpus}
        self.assertEqual(1, len(types))
        self.assertEqual(len(*types), calls['nvmlVgpuTypeGetName'])
        self.assertEqual(8, calls['nvmlDeviceGetSerial'])
        self.assertEqual(8, len({gpu.serial for gpu in self.host.gpus}))
        self.assertEqual(1, len({gpu.mig.profiles
                                 for gpu in self.host.gpus}))

    def test_of_each_with_another_vbios(self):
        read = pynvml.nvmlDeviceGetVbiosVersion
        versions = itertools.count()

        def version(device):
            return f'{read(device)}.{next(versions) // 4}'

        self.useFixture(fixtures.MonkeyPatch(
            'pynvml.nvmlDeviceGetVbiosVersion', version))
        self.assertGreater(self.counted()[_PROFILE], _INDICES)

    def test_one_that_fails_is_no_measure_for_the_others(self):
        self.machine.faults.fail(_PROFILE, pynvml.NVML_ERROR_UNKNOWN)
        self.counted()
        ill = [gpu for gpu in self.host.gpus if gpu.problems]
        self.assertEqual(1, len(ill))
        self.assertEqual(2, len({gpu.mig and gpu.mig.profiles
                                 for gpu in self.host.gpus}))
        self.counted()
        self.assertEqual((), sum((gpu.problems for gpu in self.host.gpus),
                                 ()))

    def test_links_where_they_are_asked_for(self):
        for name in self.counted(links=False):
            self.assertNotIn('NvLink', name)
        self.assertEqual({()}, {gpu.nvlink_peers for gpu in self.host.gpus})
        calls = self.counted()
        self.assertGreater(calls['nvmlDeviceGetNvLinkState'], 8)
        self.assertEqual({7}, {len(gpu.nvlink_peers)
                               for gpu in self.host.gpus})
        for name in self.counted():
            self.assertNotIn('NvLink', name)
