# SPDX-License-Identifier: Apache-2.0

"""No GPU has servers of several projects if its policy isolates projects."""

from __future__ import annotations

import collections

from openstack import exceptions

from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import storm_case

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'
_POLICY = 'gpu_policy:sliced'
_AT_ONCE = 12
_WAVES = 2
"""Waves of requests with isolation."""


@scope.only_in_all
class IsolationTest(storm_case.StormCase):
    """Three projects request servers in waves, and there are 28 slots.

    Before each further wave, every second server is deleted, so that later
    servers find GPUs that are full, partly used, and free.
    """

    def setUp(self):
        super().setUp()
        self.projects = {}
        self.shared = set()
        self.flavor = self.flavor_of(_SLICE)
        self.use_gpu_scheduler()

    def test_creates_of_three_projects(self):
        # Without isolation projects share GPUs, so the test can see it.
        self.creates(1)
        self.assertNotEqual(set(), self.shared)
        self.shared.clear()
        self.isolate()
        refused = self.creates(_WAVES)
        self.assertEqual(set(), self.shared)
        print(f'Of {_WAVES * _AT_ONCE} creates of 3 projects '
              f'{refused} were refused with isolation = project')

    def creates(self, waves: int) -> int:
        """Request servers in waves; return how many are refused."""
        clouds = (self.user1, self.user2, self.admin)
        refused = []
        for _ in range(waves):
            served = sorted((server for server in self.servers()
                             if server.status == 'ACTIVE'),
                            key=lambda server: (server.project_id, server.id))
            self.delete_all(served[::2])
            refused += self.storm(
                [(self.flavor, clouds[turn % 3])
                 for turn in range(_AT_ONCE)], self.look)[1]
        self.end()
        self.assert_nothing_left()
        return len(refused)

    def isolate(self):
        """Isolate projects on all hosts, for this test only."""
        self.addCleanup(self.set_isolation, None)
        self.set_isolation('project')

    def set_isolation(self, value):
        for host in self.cloud.hosts:
            self.cloud.configure(host, _POLICY, isolation=value)
            self.cloud.restart(f'cyborg-agent-{host}')
        self.until(lambda: self.isolated() == {value is not None},
                   'all hosts are reported')

    def isolated(self):
        """Whether the providers of slices have the trait, as a set."""
        placement = self.admin.placement
        found = set()
        for provider in placement.resource_providers():
            if provider.name.endswith('_1g.10gb'):
                answer = placement.get(
                    f'/resource_providers/{provider.id}/traits',
                    headers=storm_case.PLACEMENT)
                exceptions.raise_from_response(answer)
                found.add(names.ISOLATED in answer.json()['traits'])
        return found

    def look(self):
        """Note which GPUs have servers of several projects now."""
        there = {vgpu.uuid: (host, address) for host in self.cloud.hosts
                 for address, gpu in self.cloud.hardware(host).items()
                 for vgpu in gpu.vgpus}
        found = collections.defaultdict(set)
        for request in self.arqs():
            gpu = there.get(request['attach_handle_uuid'])
            if gpu is not None:
                found[gpu].add(self.project(request['instance_uuid']))
        self.shared |= {gpu for gpu, projects in found.items()
                        if len(projects) > 1}

    def project(self, server):
        if server not in self.projects:
            self.projects[server] = self.admin.compute.get_server(
                server).project_id
        return self.projects[server]
