# SPDX-License-Identifier: Apache-2.0

"""Every model in every way that it makes vGPUs, from a bare host.

The figures come from NVIDIA's vGPU guide and are repeated here, so that the
tests do not rely on the simulator's model files.

``tools/test all`` binds one type of each model in each way until none is left,
and restarts and reboots four models. Otherwise one model stands for each way.
"""


import fixtures
import pynvml
import testscenarios

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from demo_lib import nova_part

load_tests = testscenarios.load_tests_apply_scenarios

GPU = '0000:41:00.0'

TIME_SLICED = {
    't4': {'T4-1B': 16, 'T4-2Q': 8, 'T4-4C': 4, 'T4-8C': 2, 'T4-16C': 1},
    'a100-40': {'A100X-4C': 10, 'A100X-5C': 8, 'A100X-8C': 5, 'A100X-10C': 4,
                'A100X-20C': 2, 'A100X-40C': 1},
    'a100-80': {'A100DX-8C': 10, 'A100DX-10C': 8, 'A100DX-16C': 5,
                'A100DX-20C': 4, 'A100DX-40C': 2, 'A100DX-80C': 1},
    'a30': {'A30-4C': 6, 'A30-6C': 4, 'A30-8C': 3, 'A30-12C': 2,
            'A30-24C': 1},
    'a40': {'A40-8C': 6, 'A40-12Q': 4, 'A40-24Q': 2, 'A40-48C': 1},
    'h100-80': {'H100XM-8C': 10, 'H100XM-10C': 8, 'H100XM-40C': 2,
                'H100XM-80C': 1},
    'h200-141': {'H200X-35C': 4, 'H200X-70C': 2, 'H200X-141C': 1},
    'l40s': {'L40S-8Q': 6, 'L40S-12C': 4, 'L40S-24A': 2, 'L40S-48Q': 1},
    'rtx-pro-6000': {'DC-16C': 6, 'DC-24C': 4, 'DC-48C': 2, 'DC-96C': 1},
}
"""Model: vGPU types and how many of each fit on one GPU."""

MIXED = {
    'a100-40': {'A100X-4C': 8, 'A100X-8C': 4, 'A100X-20C': 2, 'A100X-40C': 1},
    'a100-80': {'A100DX-8C': 8, 'A100DX-16C': 4, 'A100DX-20C': 4,
                'A100DX-40C': 2, 'A100DX-80C': 1},
}
"""The same on GPUs that allow vGPUs of several sizes side by side."""

INSTANCES = {
    'a100-40': {'1g.5gb': 7, '1g.5gb+me': 1, '2g.10gb': 3, '3g.20gb': 2,
                '4g.20gb': 1, '7g.40gb': 1},
    'a100-80': {'1g.10gb': 7, '1g.10gb+me': 1, '1g.20gb': 4, '2g.20gb': 3,
                '3g.40gb': 2, '4g.40gb': 1, '7g.80gb': 1},
    'a30': {'1g.6gb': 4, '1g.6gb+me': 1, '2g.12gb': 2, '2g.12gb+me': 1,
            '4g.24gb': 1},
    'h100-80': {'1g.10gb': 7, '1g.10gb+me': 1, '1g.20gb': 4, '2g.20gb': 3,
                '3g.40gb': 2, '4g.40gb': 1, '7g.80gb': 1},
    'h200-141': {'1g.18gb': 7, '1g.18gb+me': 1, '1g.35gb': 4, '2g.35gb': 3,
                 '3g.71gb': 2, '4g.71gb': 1, '7g.141gb': 1},
    'rtx-pro-6000': {'1g.24gb+gfx': 4, '2g.48gb+gfx': 2, '4g.96gb+gfx': 1},
}
"""Model: GPU instance profiles, and how many vGPUs that fill one fit."""

SHARED = {
    'rtx-pro-6000': {'DC-1-8Q': 12, 'DC-1-12A': 8, 'DC-2-16Q': 6,
                     'DC-4-32Q': 3},
}
"""Model: MIG-backed types of which a GPU instance holds several."""

REBOOTED = {'t4', 'a100-40', 'l40s', 'rtx-pro-6000'}
BOUND = {'a100-40, vendor-vfio, mixed', 'a30, mdev, instances'}
"""The scenarios that run without ``tools/test all``."""
REBOOTED_FIRST = 't4, mdev, time-sliced'
MDEV_ONLY = {'t4'}
VFIO_ONLY = {'rtx-pro-6000'}


def _scenarios():
    kinds = {'time-sliced': TIME_SLICED, 'mixed': MIXED,
             'instances': INSTANCES, 'shared': SHARED}
    for framework in ('mdev', 'vendor-vfio'):
        for kind, models in kinds.items():
            for model, sums in models.items():
                if model in (VFIO_ONLY if framework == 'mdev'
                             else MDEV_ONLY):
                    continue
                yield (f'{model}, {framework}, {kind}', {
                    'model': model, 'framework': framework, 'kind': kind,
                    'sums': sums})


class ShapeCase(gpu_cloud.GpuTestCase):
    """One GPU that is not prepared, under an explicit policy."""

    gpu = GPU

    def setUp(self):
        self.machine = self._host_file()
        self.overrides = {
            'gpu': {'policies': 'all'},
            'gpu_policy:all': self._policy()}
        super().setUp()

    def _host_file(self):
        directory = self.useFixture(fixtures.TempDir()).path
        return host_files.write_host(directory, [
            {'model': self.model, 'address': GPU, 'numa_node': 0,
             'framework': self.framework}])

    def _policy(self):
        names = ','.join(self.sums)
        return {
            'time-sliced': {'mode': 'vgpu', 'vgpu_types': names},
            'mixed': {'mode': 'vgpu', 'vgpu_types': names,
                      'mixed_sizes': True},
            'instances': {'mode': 'mig', 'profiles': names},
            'shared': {'mode': 'mig', 'vgpu_types': names},
        }[self.kind]

    def _profile(self, name):
        """Return a device profile for one ``name``, made at its first use."""
        known = self.__dict__.setdefault('_profiles', {})
        if name not in known:
            # What names.token() does, spelled out.
            plain = name.upper().replace('+', '_').replace('.', '_')
            known[name] = self.profile('CUSTOM_NVIDIA_'
                                       + plain.replace('-', '_'))
        return known[name]


class ShapeTest(ShapeCase):

    scenarios = [(name, values) for name, values in _scenarios()
                 if scope.ALL or name in BOUND]

    def test_all_that_the_guide_says_and_never_more(self):
        self.assertEqual(
            {_label(name): (total, 0) for name, total in self.sums.items()},
            self.reserved())
        name = min((name for name, total in self.sums.items() if total > 1),
                   key=self.sums.get)
        servers = self._bind_all(name)
        self.assertEqual(self.sums[name], len(servers))
        self.assertEqual(self.sums[name], len(self.hardware().vgpus))
        self._promises_hold(name)
        for server in servers:
            self.cloud.unbind(server)
        self.assertEqual(self.untouched, self.everything())

    def _bind_all(self, name):
        profile = self._profile(name)
        servers = []
        while True:
            try:
                servers.append(self.cloud.bind(profile))
            except nova_part.NoCandidates:
                return servers

    def _promises_hold(self, name):
        """Check that only what is left beside ``name`` is available."""
        reserved = self.reserved()
        other = next(other for other in self.sums if other != name)
        total, kept = reserved[_label(other)]
        if total == kept:
            self.assertRaises(nova_part.NoCandidates, self.cloud.bind,
                              self._profile(other))
        else:
            self.cloud.unbind(self.cloud.bind(self._profile(other)))
        self.assertEqual(reserved, self.reserved())


def _label(name):
    return name.replace('+', '.')


class RebootTest(ShapeCase):

    scenarios = [(name, values) for name, values in _scenarios()
                 if name == REBOOTED_FIRST
                 or scope.ALL and values['model'] in REBOOTED]

    def test_restart_and_reboot_keep_what_is_bound(self):
        smallest = max(self.sums, key=self.sums.get)
        profile = self._profile(smallest)
        servers = [self.cloud.bind(profile)
                   for _ in range(min(3, self.sums[smallest]))]
        bound, vgpus = self.everything(), self._vgpus()
        places = self.placements()
        self.end_agent()
        self.report()
        self.assertEqual(bound, self.everything())
        self.world.reboot()
        self.assertEqual([], self._vgpus())
        code, _, errors = self.command('layout', 'restore')
        self.assertEqual(0, code, errors)
        self.assertEqual(vgpus, self._vgpus())
        self.assertEqual(places, self.placements())
        self.end_agent()
        self.report()
        self.assertEqual(bound['placement'], self.cloud.placement.snapshot())
        for server in servers:
            self.cloud.unbind(server)
        self.report()
        self.assertEqual(([], []), (self._vgpus(), self.placements()))
        self.assertEqual(self.untouched['placement'],
                         self.cloud.placement.snapshot())

    def _vgpus(self):
        """Return (function, type, mdev's UUID) of every vGPU, sorted."""
        return sorted((vgpu.function, vgpu.type_id, vgpu.uuid or '')
                      for vgpu in self.hardware().vgpus)


class SchedulerTest(ShapeCase):
    """vGPUs that share GPU instances, with the scheduler of their policy."""

    model = 'rtx-pro-6000'
    framework = 'vendor-vfio'
    kind = 'shared'
    sums = {'DC-1-8Q': 12}

    def _policy(self):
        return {**super()._policy(), 'vgpu_scheduler': 'fixed-share',
                'vgpu_time_slice_us': 4000}

    def _schedulers(self):
        return [(item.scheduler.policy, item.scheduler.time_slice)
                for item in self.hardware().instances.values()]

    def test_from_the_first_server_and_after_a_reboot(self):
        profile = self._profile('DC-1-8Q')
        servers = [self.cloud.bind(profile) for _ in range(4)]
        expected = [(pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE,
                     4_000_000)] * 2
        self.assertEqual(expected, self._schedulers())
        self.end_agent()
        self.world.reboot()
        self.assertEqual([], self._schedulers())
        code, _, errors = self.command('layout', 'restore')
        self.assertEqual(0, code, errors)
        self.assertEqual(expected, self._schedulers())
        self.report()
        for server in servers:
            self.cloud.unbind(server)
        self.assertEqual([], self._schedulers())
