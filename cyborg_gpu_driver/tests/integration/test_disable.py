# SPDX-License-Identifier: Apache-2.0

"""A device that an operator has disabled in Cyborg gets no server."""

from __future__ import annotations

import json

from openstack import exceptions

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import storm_case

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'


@scope.only_in_all
class DisableTest(storm_case.StormCase):
    """A storm of servers while services are restarted.

    The agent of the device's host has no ``os_cloud`` option. It sends its
    requests to Cyborg as the user that it has for Placement.
    """

    def setUp(self):
        super().setUp()
        self.host = self.cloud.hosts[0]
        self.agent = f'cyborg-agent-{self.host}'
        self.addCleanup(self.cloud.restart, self.agent)
        self.addCleanup(self.cloud.configure, self.host, 'gpu',
                        os_cloud=self.cloud.configure(
                            self.host, 'gpu', os_cloud=None))
        self.cloud.restart(self.agent)
        self.flavor = self.flavor_of(_SLICE)

    def test_no_server_in_a_storm(self):
        device, self.closed = self.device_with_slices()
        self.act(device, 'disable', 'maintaining')
        self.addCleanup(self.act, device, 'enable', 'enabled')
        self.until(self.is_closed, 'the device is closed')
        self.assert_unused_in_storm()
        self.act(device, 'enable', 'enabled')
        self.until(lambda: not self.withheld(), 'all can be had again')
        self.assert_only_handles_left()

    def device_with_slices(self):
        """UUID of a device, and the names of its providers."""
        names = {provider.name for provider
                 in self.admin.placement.resource_providers()}
        for device in self.devices():
            address = json.loads(device['std_board_info'])['address']
            mine = {name for name in names if name.startswith(
                f'{self.host}_gpu_{address}_')}
            if device['hostname'] == self.host and any(
                    name.endswith('_1g.10gb') for name in mine):
                self.assertLess(1, len(mine))
                return device['uuid'], mine
        raise AssertionError('no device has slices')

    def devices(self):
        answer = self.admin.accelerator.get('/devices', microversion='2.3')
        exceptions.raise_from_response(answer)
        return answer.json()['devices']

    def act(self, device, action, status):
        """Disable or enable a device.

        Cyborg answers 500 if no deployable has the database id of the
        device. It has changed the status before that.
        """
        self.admin.accelerator.post(f'/devices/{device}/{action}',
                                    microversion='2.3')
        self.assertEqual([status], [
            item['status'] for item in self.devices()
            if item['uuid'] == device])

    def is_closed(self):
        """Whether all providers of the device have only reserved units."""
        return (self.closed <= self.cloud.inventories().keys()
                and self.are_reserved(self.closed))

    def assert_unused_in_storm(self):
        """Assert that no server gets the device during service restarts."""
        active, _ = self.storm(
            [(self.flavor, (self.user1, self.user2)[turn % 2])
             for turn in range(storm_case.AT_ONCE)],
            lambda: self.assertEqual(
                set(), self.closed & self.cloud.allocations().keys()),
            (self.agent, 'cyborg-conductor'))
        self.assertTrue(self.is_closed())
        self.assertLess(0, len(active))
        self.end()
