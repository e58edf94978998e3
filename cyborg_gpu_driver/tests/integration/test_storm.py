# SPDX-License-Identifier: Apache-2.0

"""Several users request more servers at once than there are slots."""

from __future__ import annotations

import collections

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import storm_case

_SLOTS = ({'CUSTOM_NVIDIA_1G_10GB': 28, 'CUSTOM_NVIDIA_A100_8C': 10,
           'PGPU': 2} if scope.ALL else
          {'CUSTOM_NVIDIA_3G_40GB': 8, 'CUSTOM_NVIDIA_A100_20C': 4,
           'PGPU': 2})
"""Slots of the two hosts for each class if no other class is requested."""
_ASKED = {name: slots * 3 // 2 for name, slots in _SLOTS.items()}
_LABELS = {'CUSTOM_NVIDIA_1G_10GB': '1g.10gb',
           'CUSTOM_NVIDIA_3G_40GB': '3g.40gb',
           'CUSTOM_NVIDIA_A100_8C': 'A100-8C',
           'CUSTOM_NVIDIA_A100_20C': 'A100-20C', 'PGPU': 'passthrough'}
"""What ``openstack gpu explain`` calls these classes."""
_LARGEST = ('CUSTOM_NVIDIA_7G_80GB', '7g.80gb')
_ROOM = 14
"""Slots of two GPUs."""


class StormTest(storm_case.StormCase):
    """Half more servers are requested than there are slots.

    No profile takes slots from another one, so there are as many slots in any
    order of requests. The first attempt may serve fewer: Nova's
    scheduler tries only the first allocation candidate of a host. A request
    that others overtake on both hosts fails, though another GPU is free. The
    test requests those servers again after the storm. A slot that the storm
    lost would then be missing.
    """

    def setUp(self):
        super().setUp()
        flavors = {name: self.flavor_of(name) for name in _ASKED}
        self.requests = [flavors[name] for turn in range(max(
            _ASKED.values())) for name in _ASKED if turn < _ASKED[name]]
        self.slots = collections.Counter(
            {flavors[name].name: count for name, count in _SLOTS.items()})
        self.labels = {flavor.name: _LABELS[name]
                       for name, flavor in flavors.items()}

    def test_everyone_has_his_own_and_nothing_is_left(self):
        users = (self.user1, self.user2, self.admin)
        served, refused = self.storm(
            (flavor, users[turn % 3])
            for turn, flavor in enumerate(self.requests))
        self.assert_no_host(refused)
        self.assert_no_requests(refused)
        self.ask_again(served)
        self.assert_told_why(refused)
        self.delete_all(refused)
        served = self.servers()
        self.assertEqual({'ACTIVE'}, {server.status for server in served})
        self.assertEqual(self.slots, collections.Counter(
            server.flavor.original_name for server in served))
        self.assert_own({server.id for server in served})
        self.end()
        self.assert_nothing_left()

    def ask_again(self, served):
        """Boot a server for each free slot, one after the other."""
        missing = self.slots - collections.Counter(
            server.flavor.original_name for server in served)
        flavors = {flavor.name: flavor for flavor in self.requests}
        for name in missing.elements():
            self.wait_for(self.ask(flavors[name], self.user1), 'ACTIVE')

    def assert_told_why(self, refused):
        """Assert that ``openstack gpu explain`` names what blocks a server.

        It is asked about one refused server of each flavor, and about a
        slice as large as a GPU.
        """
        one = {server.flavor.original_name: server for server in refused}
        self.assertEqual(self.slots.keys(), one.keys())
        for name, server in one.items():
            self.assertEqual({(self.labels[name], 'USED')},
                             self.explained('--server', server.id))
        largest, label = _LARGEST
        self.assertEqual(
            {(label, 'RESERVED_SIBLING')},
            self.explained('--flavor', self.flavor_of(largest).name))

    def assert_no_requests(self, servers):
        """Assert that Cyborg has no accelerator request of these servers."""
        self.assertEqual(set(), {server.id for server in servers} & {
            request['instance_uuid'] for request in self.arqs()})

    def assert_own(self, servers):
        """Assert that each server has exactly its own accelerator.

        Each has one request, one allocation and one part of a GPU.
        """
        requests = self.arqs()
        self.assertEqual(
            [('Bound', server) for server in sorted(servers)],
            sorted((request['state'], request['instance_uuid'])
                   for request in requests))
        names = {provider.id: provider.name for provider
                 in self.admin.placement.resource_providers()}
        self.assertEqual(
            {(names[request['device_rp_uuid']], request['instance_uuid'])
             for request in requests},
            {(name, consumer) for name, consumers
             in self.cloud.allocations().items()
             if name not in self.cloud.hosts
             for consumer in consumers})
        for host in self.cloud.hosts:
            mine = [request for request in requests
                    if request['hostname'] == host]
            made = self.cloud.vgpus(host)
            self.assertEqual(
                {request['attach_handle_uuid'] for request in mine
                 if request['attach_handle_type'] == 'MDEV'}, set(made))
            self.assertEqual(len(made), len(
                {vgpu.function for _, vgpu in made.values()}))
            for address, gpu in self.cloud.hardware(host).items():
                behind = [vgpu.instance for vgpu in gpu.vgpus
                          if vgpu.instance is not None]
                self.assertEqual(sorted(gpu.instances), sorted(behind),
                                 address)


@scope.only_in_all
class RoomTest(storm_case.StormCase):
    """Twenty servers are requested, and there are fourteen slots.

    The scheduler has the settings that scheduling.rst recommends. Each server
    for which there is a slot gets it in the first attempt.
    """

    def setUp(self):
        super().setUp()
        self.flavor = self.flavor_of('CUSTOM_NVIDIA_1G_10GB')
        self.use_gpu_scheduler()

    def test_two_gpus_of_one_host(self):
        _, other = self.cloud.hosts
        for gpu in self.sliced(other):
            self.close(other, gpu)
        self.assert_all_are_served()

    def test_one_gpu_of_each_of_two_hosts(self):
        for host in self.cloud.hosts:
            _, gpu = self.sliced(host)
            self.close(host, gpu)
        self.assert_all_are_served()

    def sliced(self, host):
        """The addresses of a host's GPUs that have slices."""
        start, end = f'{host}_gpu_', '_7g.80gb'
        return sorted(
            provider.name[len(start):-len(end)] for provider
            in self.admin.placement.resource_providers()
            if provider.name.startswith(start) and provider.name.endswith(end))

    def close(self, host, gpu):
        """Cordon a GPU during a test, so that its slots are not used."""
        self.cloud.cyborg_gpu(host, 'gpu', 'cordon', gpu, '--reason', 'room')
        self.addCleanup(self.cloud.cyborg_gpu, host, 'gpu', 'uncordon', gpu)

    def assert_all_are_served(self):
        served, refused = self.storm(
            [(self.flavor, (self.user1, self.user2)[turn % 2])
             for turn in range(storm_case.AT_ONCE)])
        self.assert_no_host(refused)
        self.assertEqual((_ROOM, storm_case.AT_ONCE - _ROOM),
                         (len(served), len(refused)))
        self.end()
        self.until(lambda: not self.left(), 'nothing is left')
