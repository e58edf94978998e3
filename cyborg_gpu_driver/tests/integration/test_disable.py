# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""A device that an operator has disabled in Cyborg gets no server."""

from __future__ import annotations

import json
import os
from concurrent import futures

from openstack import exceptions
from oslo_config import cfg

from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.unit.notifications import listening

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'
_STORMS = int(os.environ.get('CYBORG_GPU_STORMS', '2'))
"""One for each service that is restarted, unless more are asked for."""
_AT_ONCE = 20
_NOTIFICATIONS = 'oslo_messaging_notifications'
_DEADLINE = 900
_REPORTED = 300
"""Seconds for two reports of an agent, which are a minute apart."""


class DisableTest(base.TestCase):
    """Storms of servers while services are restarted.

    The agent of the device's host has no cloud to ask: it asks Cyborg as the
    user that Placement knows it by.
    """

    def setUp(self):
        super().setUp()
        self.host = self.cloud.hosts[0]
        self.agent = f'cyborg-agent-{self.host}'
        self.addCleanup(self.cloud.restart, self.agent)
        self.addCleanup(self.cloud.configure, self.host, 'gpu',
                        os_cloud=self.cloud.configure(
                            self.host, 'gpu', os_cloud=None))
        self.addCleanup(
            self.cloud.configure, self.host, _NOTIFICATIONS,
            driver=self.cloud.configure(self.host, _NOTIFICATIONS,
                                        driver='messagingv2'))
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[], default_config_dirs=[])
        self.listener = self.useFixture(listening.Listener(
            conf, url=self.cloud.transport_url, exchange='cyborg'))
        self.cloud.restart(self.agent)
        self.flavor = self.flavor_of(_SLICE)
        self.image = self.user1.image.find_image(base.IMAGE).id
        self.addCleanup(self.end)

    def test_no_server_in_any_storm(self):
        device, self.closed = self.device_with_slices()
        self.act(device, 'disable', 'maintaining')
        self.addCleanup(self.act, device, 'enable', 'enabled')
        self.until(self.all_closed, 'all of the device is closed', _REPORTED)
        self.assert_announced('gpu.cordoned')
        for number in range(_STORMS):
            with self.subTest(storm=number):
                self.storm((self.agent, 'cyborg-conductor')[number % 2])
        self.act(device, 'enable', 'enabled')
        self.until(lambda: not self.withheld(), 'all can be had again',
                   _REPORTED)
        self.assert_only_handles_left()

    def assert_announced(self, expected):
        event = None
        while event != expected:
            event, *_, payload = self.listener.next(_REPORTED)
        self.assertIn(f'{self.host}_gpu_'
                      + payload['cyborg_gpu_object.data']['gpu'],
                      next(iter(self.closed)))

    def assert_only_handles_left(self):
        """A bind that a restart has cut short may leave its handle in use.

        Cyborg then has no request for it, and no API to give it back
        (RestartCase.assert_only_handles_left in test_restarts).
        """
        self.until(lambda: set(self.left()) <= {'handles in use'},
                   'at most handles are left', _REPORTED)
        self.cloud.release_handles()
        self.assert_nothing_left()

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

        Cyborg answers 500 where no deployable has the number of the device.
        The status is changed before that.
        """
        self.admin.accelerator.post(f'/devices/{device}/{action}',
                                    microversion='2.3')
        self.assertEqual([status], [
            item['status'] for item in self.devices()
            if item['uuid'] == device])

    def all_closed(self):
        """Whether nothing of the device can be had."""
        withheld = self.withheld()
        return all(self.total(name) == withheld.get(name)
                   for name in self.closed)

    def total(self, name):
        provider = self.admin.placement.find_resource_provider(name)
        answer = self.admin.placement.get(
            f'/resource_providers/{provider.id}/inventories')
        exceptions.raise_from_response(answer)
        return {resource_class: inventory['total']
                for resource_class, inventory
                in answer.json()['inventories'].items()}

    def storm(self, service):
        """Twenty at once, while a service is restarted."""
        with futures.ThreadPoolExecutor(_AT_ONCE + 1) as pool:
            asked = [pool.submit(self.ask, cloud) for cloud
                     in (self.user1, self.user2) * (_AT_ONCE // 2)]
            pool.submit(self.cloud.restart, service).result()
            for request in asked:
                request.result()
        self.until(self.is_over, 'the storm is over', _DEADLINE)
        self.assertTrue(self.all_closed())
        self.assertLess(0, sum(server.status == 'ACTIVE' for server
                               in self.servers()))
        self.end()

    def ask(self, cloud):
        return cloud.compute.create_server(
            name='storm', flavor_id=self.flavor.id, image_id=self.image,
            networks='none')

    def is_over(self):
        """Whether nothing is built any more; none has the device meanwhile.
        """
        self.assertEqual(set(), self.closed & set(self.allocations()))
        return not any(server.status == 'BUILD'
                       for server in self.servers())

    def servers(self):
        return list(self.admin.compute.servers(all_projects=True))

    def end(self):
        """All are deleted at once."""
        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self.admin.compute.delete_server,
                          [server.id for server in self.servers()]))
        self.until(lambda: not self.servers(), 'all are gone', _DEADLINE)
