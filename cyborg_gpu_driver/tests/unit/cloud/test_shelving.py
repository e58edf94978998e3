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

"""What is done with a server that leaves its GPU."""

from oslotest import base

from cyborg_gpu_driver.cloud.moves import shelving
from cyborg_gpu_driver.tests.unit.cloud import services

Step = shelving.Step
_PLACED = 'compute1'


class FollowingTest(base.BaseTestCase):

    def next(self, status, *sent, busy=False, host=_PLACED, unshelve=True):
        return shelving.following(shelving.Now(status, busy, host), sent,
                                  unshelve)

    def test_a_server_that_is_shelved_at_once(self):
        self.assertEqual(Step.SHELVE, self.next('ACTIVE'))
        self.assertEqual(Step.WAIT, self.next('ACTIVE', Step.SHELVE,
                                              busy=True))
        self.assertEqual(Step.WAIT, self.next('SHELVED_OFFLOADED',
                                              Step.SHELVE))
        self.assertEqual(Step.DONE, self.next(
            'SHELVED_OFFLOADED', Step.SHELVE, host=None, unshelve=False))
        self.assertEqual(Step.UNSHELVE, self.next(
            'SHELVED_OFFLOADED', Step.SHELVE, host=None))
        self.assertEqual(Step.DONE, self.next('ACTIVE', Step.SHELVE,
                                              Step.UNSHELVE))

    def test_a_server_that_nova_keeps_on_its_host(self):
        self.assertEqual(Step.OFFLOAD, self.next('SHELVED', Step.SHELVE))
        self.assertEqual(Step.OFFLOAD, self.next('SHELVED'))
        self.assertEqual(Step.STUCK, self.next('SHELVED', Step.OFFLOAD))

    def test_a_server_that_cannot_go_on(self):
        for status in ('ERROR', 'BUILD', 'RESCUE'):
            self.assertEqual(Step.STUCK, self.next(status))
        for status in ('SHUTOFF', 'PAUSED', 'SUSPENDED'):
            self.assertEqual(Step.SHELVE, self.next(status))
        self.assertEqual(Step.STUCK, self.next('ACTIVE', Step.SHELVE))
        self.assertEqual(Step.STUCK, self.next(
            'SHELVED_OFFLOADED', Step.SHELVE, Step.UNSHELVE, host=None))


class MoveTest(base.BaseTestCase):

    def move(self, servers, seconds=9.0):
        """What Nova answers, without any time that passes."""
        now = [0.0]

        def sleep(amount):
            now[0] += amount

        cloud = self.useFixture(services.Services({
            'compute': services.documents({
                f'/v2.1/servers/{uuid}': {'server': {
                    'status': status, 'OS-EXT-STS:task_state': task,
                    'OS-EXT-SRV-ATTR:host': _PLACED, 'fault': fault}}
                for uuid, (status, task, fault) in servers.items()},
                services.NOVA)})).cloud
        return shelving.move(cloud, ['a', 'b', 'c'], True, seconds,
                             clock=lambda: now[0], sleep=sleep)

    def test_each_failure_has_its_reason(self):
        found = self.move({
            'a': ('ERROR', None, {'message': 'disk on fire'}),
            # Nova does not take the action: it is not found here.
            'b': ('ACTIVE', None, {})})
        self.assertEqual('its status is ERROR: disk on fire', found['a'])
        self.assertIn('404', found['b'])
        # Deleted meanwhile.
        self.assertNotIn('c', found)

    def test_it_has_an_end(self):
        found = self.move({uuid: ('ACTIVE', 'shelving', {}) for uuid in 'ab'})
        self.assertEqual(dict.fromkeys('ab', 'not finished after 9 s'),
                         found)
