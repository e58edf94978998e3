# SPDX-License-Identifier: Apache-2.0

"""GPU-hours of servers that live less than the time between two reports."""

import collections
import random

import fixtures
from cyborg.api import app as cyborg_app

from cyborg_gpu_driver.record import ledger
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.record import uptime
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.cloud import keystone

_GPUS = {'t4': 'mdev', 'a100-80': 'mdev', 'h100-80': 'mdev',
         'rtx-pro-6000': 'vendor-vfio', 'l40s': 'vendor-vfio'}
_PAIR = ('0000:c1:00.0', '0000:c2:00.0')
_WHOLE = 'PGPU'
_KINDS = ('CUSTOM_NVIDIA_T4_4C', 'CUSTOM_NVIDIA_1G_10GB', _WHOLE,
          'CUSTOM_NVIDIA_DC_1_8Q', 'CUSTOM_NVIDIA_L40S_12Q',
          'CUSTOM_NVIDIA_NVLINK_2_H100_NVL')
_STAYS = 34 if scope.ALL else 3
"""Of each kind."""
_POLL, _REPORT = 5, 60
"""Seconds between two looks at whole GPUs, and between two reports."""


class ShortStaysTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    overrides = {
        'DEFAULT': {'rpc_response_timeout': scope.HANG},
        'gpu': {'policies': 'vgpu, slices, whole, shared, series, pair',
                'nvml_timeout': scope.HANG},
        'gpu_policy:vgpu': {'mode': 'vgpu', 'match_model': '*T4*',
                            'vgpu_types': 'T4-4C'},
        'gpu_policy:slices': {'mode': 'mig', 'match_model': '*A100*',
                              'profiles': '1g.10gb'},
        'gpu_policy:shared': {'mode': 'mig', 'match_model': '*RTX*',
                              'vgpu_types': 'DC-1-8Q'},
        'gpu_policy:series': {'mode': 'vgpu', 'match_model': '*L40S*',
                              'vgpu_types': 'L40S-12Q'},
        'gpu_policy:pair': {'mode': 'nvlink', 'match_model': '*NVL*'},
        'gpu_policy:whole': {'mode': 'passthrough',
                             'match_model': '*H100*80GB*'}}

    def setUp(self):
        gpus = [{'model': model, 'address': f'0000:{number:02x}:00.0',
                 'numa_node': 0, 'framework': framework}
                for number, (model, framework) in enumerate(
                    _GPUS.items(), 0x41)]
        gpus += [{'model': 'h100-nvl', 'address': address, 'numa_node': 0,
                  'framework': 'vendor-vfio', 'nvlink': [peer] * 12}
                 for address, peer in zip(_PAIR, _PAIR[::-1], strict=True)]
        self.machine = host_files.write_host(
            self.useFixture(fixtures.TempDir()).path, gpus)
        self.now = 0
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.record.uptime.now',
            lambda: ledger.Moment('boot', self.now)))
        super().setUp()

    def start(self, **overrides):
        super().start(**overrides)
        accounts = self.useFixture(keystone.KeystoneFixture(
            cyborg_app.load_app()))
        accounts.log_in(self.driver._conf)

    def reach(self, moment):
        """Let the agent's threads do their work up to a moment."""
        agent = self.driver._running()
        while self.now < moment:
            self.now = min(moment, (self.now // 1000 + 1) * 1000)
            agent._observer.name_new()
            if self.now % (_POLL * 1000) == 0:
                self.look_between()
            if self.now % (_REPORT * 1000) == 0:
                self.cloud.report()

    def test_they_count_to_the_second(self):
        choose = random.Random(20261128)
        events, truth = [], collections.Counter()
        doubt = collections.Counter()
        for index, kind in enumerate(_KINDS):
            profile, end = self.profile(kind), 0
            for number in range(_STAYS):
                # A whole GPU is reset between two servers.
                start = end + 1000 * choose.randrange(2 * _POLL, 4 * _POLL)
                end = start + choose.randrange(5, 61) * 1000 + 1
                project = f'{index}{number % 3}'.zfill(32)
                events += [(start, end, profile, project),
                           (end, start, None, project)]
                truth[project] += end - start
                doubt[project] += _POLL * 1000 if kind == _WHOLE else 0
        servers = {}
        for moment, other, profile, project in sorted(
                events, key=lambda event: event[0]):
            self.reach(moment)
            if profile is None:
                self.cloud.unbind(servers.pop((other, project)))
                continue
            with fixtures.MonkeyPatch('demo_lib.client.PROJECT', project):
                servers[moment, project] = self.cloud.bind(
                    profile, timeout=scope.HANG)
        self.reach((self.now // (_REPORT * 1000) + 2) * _REPORT * 1000)
        last, found = uptime.last(self.state_path), collections.Counter()
        for record in store.Store(self.state_path).records().values():
            for (_, project), time in record.ledger.sums(last).items():
                found[project] += time
        for project in {*truth, *found}:
            self.assertLessEqual(abs(truth[project] - found[project]),
                                 doubt[project], project)
