# SPDX-License-Identifier: Apache-2.0


import fixtures
import pynvml

from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests.unit.host import base

_POLICIES = tuple(model.SchedulerPolicy)
_MS = 1_000_000


class MixedSizesTest(base.SimulatedTestCase):

    MACHINE = 'l40sx4'

    def mixed_sizes(self):
        """Whether the mode is on; None if the GPU does not have it."""
        device = self.device()
        if not nvml_vgpu.can_mix_sizes(self.nvml, device):
            return None
        return nvml_vgpu.mixes_sizes(self.nvml, device)

    def test_where_it_cannot_be(self):
        for machine in ('t4x4', 'dgx-a100-80'):
            self.use(machine)
            self.assertIsNone(self.mixed_sizes(), machine)
            self.assertEqual('NOT_SUPPORTED', self.refusal(self.mix))

    def test_driver_without_the_calls(self):
        for code in (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                     pynvml.NVML_ERROR_INVALID_ARGUMENT):
            self.machine.faults.fail('nvmlDeviceGetVgpuCapabilities', code)
            self.assertIsNone(self.mixed_sizes())
        self.machine.faults.fail('nvmlDeviceGetVgpuHeterogeneousMode',
                                 pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self.assertIsNone(self.mixed_sizes())


class PlacementTest(base.SimulatedTestCase):
    """Placements, on drivers with either version of the list."""

    MACHINE = 'l40sx4'

    def _placements(self, address, name):
        return nvml_vgpu.supported_placements(
            self.nvml, self.device(address),
            self.type(name, address).type_id)

    def test_version_2(self):
        self.assertEqual((24, (0, 24)), self._placements(self.first,
                                                         'L40S-24Q'))
        self.assertEqual((48, (0,)), self._placements(self.first,
                                                      'L40S-48Q'))

    def test_version_1(self):
        self.use('mixed')
        ampere = self.addresses[1]
        self.assertEqual((40, (0, 40)), self._placements(ampere,
                                                         'A100DX-40C'))
        self.assertEqual((16, (0, 24, 40, 64)),
                         self._placements(ampere, 'A100DX-16C'))

    def test_types_without_placements(self):
        self.use('t4x4')
        self.assertEqual((None, ()), self._placements(self.first, 'T4-4Q'))


class SchedulerTest(base.SimulatedTestCase):

    MACHINE = 'l40sx4'

    def _now(self):
        device = self.device()
        found = nvml_vgpu.scheduler_capabilities(self.nvml, device)
        return found and nvml_vgpu.scheduler_state(self.nvml, device, found)

    def _set(self, policy, time_slice=None):
        nvml_vgpu.set_scheduler(self.nvml, self.device(), policy,
                                time_slice)

    def test_each_policy(self):
        for policy in _POLICIES:
            self._set(policy)
            self.assertEqual((policy, None),
                             (self._now().policy, self._now().time_slice))

    def test_without_one_the_driver_adapts_it(self):
        self._set(model.SchedulerPolicy.EQUAL_SHARE, 5 * _MS)
        self._set(model.SchedulerPolicy.EQUAL_SHARE)
        self.assertEqual((None, True),
                         (self._now().time_slice, self._now().adaptive))

    def test_time_slice_of_a_driver_that_cannot_adapt_it(self):
        """Such a driver need not know how to turn adapting off."""
        sent = []
        self.useFixture(fixtures.MonkeyPatch(
            'pynvml.nvmlDeviceGetVgpuSchedulerCapabilities',
            lambda device: pynvml.c_nvmlVgpuSchedulerCapabilities_t()))
        self.useFixture(fixtures.MonkeyPatch(
            'pynvml.nvmlDeviceSetVgpuSchedulerState',
            lambda device, wanted: sent.append(wanted)))
        self._set(model.SchedulerPolicy.FIXED_SHARE, 5 * _MS)
        self.assertEqual(
            (pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE,
             pynvml.NVML_VGPU_SCHEDULER_ARR_DEFAULT, 5 * _MS),
            (sent[0].schedulerPolicy, sent[0].enableARRMode,
             sent[0].schedulerParams.vgpuSchedData.timeslice))

    def test_none_where_the_driver_schedules_nothing(self):
        self.use('dgx-a100-80')
        self.assertIsNone(self._now())
        self.assertIsNotNone(nvml_vgpu.scheduler_capabilities(
            self.nvml, self.device()))
