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
"""Several attempts of the released nova-scheduler at one host."""

from __future__ import annotations

import threading

import fixtures
from nova import objects
from nova import test
from nova.scheduler import host_manager
from oslo_utils.fixture import uuidsentinel as uuids

from cyborg_gpu_driver.nova.scheduling import attempts
from cyborg_gpu_driver.nova.scheduling import choices
from cyborg_gpu_driver.nova.weighing import cost
from cyborg_gpu_driver.tests import scope


class AttemptTest(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.host = host_manager.HostState('host', 'node', 'cell')
        self.host.allocation_candidates = list('abc')
        self.claimed = []

    def split(self, most):
        return list(attempts.split(
            self.host, most, lambda *call: self.claimed.append(call)))

    def test_each_has_a_candidate_and_the_last_the_rest(self):
        for most, expected in ((1, ['abc']), (2, ['a', 'bc']),
                               (3, ['a', 'b', 'c']), (9, ['a', 'b', 'c'])):
            self.assertEqual(expected, [
                ''.join(attempt.allocation_candidates)
                for attempt in self.split(most)])
        self.host.allocation_candidates = []
        self.assertEqual([[]], [attempt.allocation_candidates
                                for attempt in self.split(9)])

    def test_all_else_is_the_host(self):
        one, two, _three = self.split(3)
        self.host.free_ram_mb = 5
        one.failed_builds = 7
        self.assertEqual((5, 7), (two.free_ram_mb, two.failed_builds))
        two.allocation_candidates = ['x']
        self.assertEqual((['a'], ['a', 'b', 'c']), (
            one.allocation_candidates, self.host.allocation_candidates))
        self.assertEqual('(host, node)', repr(one)[:12])
        self.assertEqual(
            {attempts.identity(self.host)},
            {attempts.identity(one), attempts.identity(two)})
        self.assertNotEqual(one, two)
        self.assertNotEqual(
            attempts.identity(self.host), attempts.identity(
                host_manager.HostState('host', 'node', 'cell')))

    def test_a_claim_is_told_and_consumes_the_host(self):
        spec = objects.RequestSpec(
            instance_uuid=uuids.server,
            flavor=objects.Flavor(vcpus=1, memory_mb=2, root_gb=0,
                                  ephemeral_gb=0),
            pci_requests=None, numa_topology=None)
        one, two, _three = self.split(3)
        two.consume_from_request(spec)
        self.assertEqual([(two, uuids.server)], self.claimed)
        self.assertEqual((1, -2), (self.host.num_instances, one.free_ram_mb))


class ChoicesTest(test.NoDBTestCase):

    def test_nobody_waits_for_good(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.scheduling.choices._WAIT', 0.01))
        found = choices.Choices(lambda: cost.Fleet(()), 1.0)
        request, entered, leave = object(), threading.Event(), (
            threading.Event())

        def hold():
            with found._locked():
                entered.set()
                leave.wait(scope.HANG)

        other = threading.Thread(target=hold)
        other.start()
        self.assertTrue(entered.wait(scope.HANG))
        with found.alone(request) as given:
            self.assertIs(request, given)
        self.assertEqual(frozenset(), found.hosts)
        found.claimed(None, 'server')
        leave.set()
        other.join(scope.HANG)
