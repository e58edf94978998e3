# SPDX-License-Identifier: Apache-2.0

"""Monitoring of simulated GPUs through NVML."""

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import telemetry as nvml_telemetry
from cyborg_gpu_driver.metrics import definitions
from cyborg_gpu_driver.tests.unit.host import base

_SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11'
_MDEV = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_GIB = 1 << 30


class _Case(base.SimulatedTestCase):

    def setUp(self):
        super().setUp()
        self.telemetry = nvml_telemetry.TelemetryReader(self.nvml)

    def sample(self, address=None):
        return self.telemetry.read(address or self.first)

    def make(self):
        """Create a MIG device; return the id of its GPU instance."""
        made = self.cut(self.first, 19)
        instance = self.nvml.call('nvmlDeviceGetGpuInstanceById',
                                  self.device(), made.instance_id)
        self.nvml.call('nvmlGpuInstanceCreateComputeInstance', instance,
                       next(self.nvml.compute_profiles(instance)).id)
        return made.instance_id

    def values(self, address=None):
        """Values by metric and labels."""
        found = self.sample(address).values
        self.assertLessEqual({item.metric for item in found},
                             set(definitions.HARDWARE))
        self.assertEqual(len(found), len({
            (item.metric, item.labels) for item in found}))
        return {(item.metric, *item.labels): item.value for item in found}


class HopperTest(_Case):

    MACHINE = 'hgx-h100'

    def setUp(self):
        super().setUp()
        self.machine.sriov_manage(str(self.first), enable=False)
        self.nvml.set_mig_mode(self.device(), False)

    def test_a_gpu_at_work(self):
        self.machine.set_health(str(self.first), celsius=64)
        self.machine.work(str(self.first), gpu=87, memory=40)
        self.assertEqual(
            {('utilization_ratio',): 0.87, ('memory_utilization_ratio',): 0.4,
             ('temperature_celsius',): 64, ('power_watts',): 116.666,
             ('power_limit_watts',): 700.0, ('memory_bytes',): 81559 << 20},
            {key: round(value, 9) for key, value in self.values().items()
             if key != ('memory_used_bytes',)})

    def test_what_there_is_not_is_left_out(self):
        self.machine.faults.fail('nvmlDeviceGetPowerUsage',
                                 pynvml.NVML_ERROR_NOT_SUPPORTED)
        found = {key[0] for key in self.values()}
        self.assertFalse({'power_watts', 'instance_memory_bytes'} & found)


class MigTest(_Case):

    def setUp(self):
        super().setUp()
        for _ in range(2):
            self.make()

    def test_instances_have_memory_and_the_gpu_no_utilization(self):
        found = self.values()
        memory = {key[1]: value for key, value in found.items()
                  if key[0] == 'instance_memory_bytes'}
        ids = {str(item.instance_id) for item in self.nvml.gpu_instances(
            self.device(), 19)}
        self.assertEqual(dict.fromkeys(ids, 9856 << 20), memory)
        self.assertFalse({'utilization_ratio', 'memory_utilization_ratio'}
                         & {key[0] for key in found})

    def test_what_this_user_may_not_see_is_left_out(self):
        self.machine.faults.fail('nvmlDeviceGetMemoryInfo',
                                 pynvml.NVML_ERROR_NO_PERMISSION, times=1)
        found = {key[0] for key in self.values()}
        self.assertNotIn('memory_bytes', found)
        self.assertIn('instance_memory_bytes', found)

    def test_an_instance_that_goes_away_meanwhile(self):
        self.machine.faults.fail('nvmlDeviceGetGpuInstanceId',
                                 pynvml.NVML_ERROR_INVALID_ARGUMENT, times=1)
        self.assertEqual(1, sum(key[0] == 'instance_memory_bytes'
                                for key in self.values()))

    def test_a_reset_ends_a_handle_and_the_next_sample_has_another(self):
        self.values()
        self.machine.sriov_manage(str(self.first), enable=False)
        self.assertRaises(exception.NvmlError, self.sample)
        self.assertIn(('temperature_celsius',), self.values())


class VgpuTest(_Case):

    MACHINE = 't4x4'

    def setUp(self):
        super().setUp()
        self.platform.sysfs.write(
            _MDEV, 'class', 'mdev_bus', str(self.first),
            'mdev_supported_types', 'nvidia-230', 'create')

    def start(self, vm):
        self.machine.start_guest(_MDEV, vm)
        self.machine.work_vgpu(_MDEV, 5000, (50, 25, 0, 10))

    def busy(self, labels=None):
        """Values of vGPUs; ``labels`` are those without NVML's number."""
        return {item.metric: item.value for item in self.sample().values
                if item.metric.startswith('vgpu') and labels in (
                    None, (item.labels[0], *item.labels[2:]))}

    def test_a_vgpu_of_a_server(self):
        self.assertEqual({}, self.busy())
        self.start(_SERVER)
        self.assertEqual(
            {'vgpu_utilization_ratio': 0.5,
             'vgpu_memory_utilization_ratio': 0.25,
             'vgpu_encoder_utilization_ratio': 0,
             'vgpu_decoder_utilization_ratio': 0.1,
             # More than 4 GiB, which the function of pynvml cannot return.
             'vgpu_framebuffer_used_bytes': 5000 << 20},
            self.busy(('', _MDEV, _SERVER)))
        self.machine.stop_guest(_MDEV)
        self.assertEqual({}, self.busy())

    def test_a_hypervisor_that_knows_no_uuid(self):
        for name in ('12', '../../etc'):
            self.start(name)
            self.assertEqual(5, len(self.busy(('', _MDEV, ''))))
            self.machine.stop_guest(_MDEV)
