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
"""Reading the projects of the servers on a GPU from a fake Placement."""

from __future__ import annotations

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.scheduling import neighbours
from cyborg_gpu_driver.nova.weighing import published

ONE, TWO = (f'{digit * 8}-{digit * 4}-4{digit * 3}-8{digit * 3}-{digit * 12}'
            for digit in '12')


class Answer:

    def __init__(self, status_code, body):
        self.status_code = status_code
        self.text = f'answer {status_code}'
        self._body = body

    def json(self):
        return self._body


class ResidentsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.scheduling.neighbours.time.monotonic',
            lambda: self.now))
        self.status_code = 200
        self.urls = []
        self.consumers = {ONE: 1}
        self.residents = neighbours.Residents(self.get)

    def get(self, url, version):
        self.urls.append(url)
        name = url.rsplit('/', 1)[1]
        return Answer(self.status_code, {
            'project_id': f'of {name[0]}'} if name != 'allocations' else {
                'allocations': {
                    server: {'resources': {'CUSTOM_X': amount}}
                    for server, amount in self.consumers.items()}})

    def ask(self, used):
        return self.residents.of([
            published.Offer('unused', '1g', 'CUSTOM_X', 0, 7),
            published.Offer('provider', '2g', 'CUSTOM_X', used, 1)])

    def test_what_has_not_changed_is_not_read_again(self):
        expected = (neighbours.Resident(ONE, 'of 1', 1),)
        for _ in range(3):
            self.assertEqual(expected, self.ask(1))
        self.assertEqual(['/resource_providers/provider/allocations',
                          f'/allocations/{ONE}'], self.urls)

    def test_only_new_servers_are_read(self):
        self.ask(1)
        self.urls.clear()
        self.consumers[TWO] = 2
        self.assertEqual((neighbours.Resident(ONE, 'of 1', 1),
                          neighbours.Resident(TWO, 'of 2', 2)), self.ask(3))
        self.assertEqual(['/resource_providers/provider/allocations',
                          f'/allocations/{TWO}'], self.urls)

    def test_one_may_have_come_for_another(self):
        self.ask(1)
        self.consumers = {TWO: 1}
        self.now += 60
        self.assertEqual((neighbours.Resident(TWO, 'of 2', 1),), self.ask(1))

    def test_no_request_with_a_name_that_is_no_server(self):
        self.consumers = {'../x': 1}
        self.assertEqual((neighbours.Resident('../x', '', 1),), self.ask(1))
        self.assertEqual(1, len(self.urls))

    def test_placement_refuses(self):
        self.status_code = 503
        error = self.assertRaises(exception.PlacementRefused, self.ask, 1)
        self.assertIn('answer 503', str(error))

    def test_a_provider_that_is_gone_is_no_failure(self):
        """What was read of the host before may still have it."""
        self.status_code = 404
        self.assertEqual((), self.ask(1))
        self.status_code = 200
        self.assertEqual(1, len(self.residents.of([
            published.Offer('other', '1g', 'CUSTOM_X', 1, 6)])))

    def test_a_failure_is_not_tried_again_at_once(self):
        self.status_code = 503
        for _ in range(3):
            self.assertRaises(exception.PlacementRefused, self.ask, 1)
        self.assertEqual(1, len(self.urls))
        self.status_code = 200
        self.now += 60
        self.assertEqual(1, len(self.ask(1)))
