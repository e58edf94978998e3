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
"""The servers on GPUs, including servers to which a place is promised."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver.nova.scheduling import neighbours
from cyborg_gpu_driver.nova.scheduling import promises
from cyborg_gpu_driver.nova.weighing import published

GPU = tuple(published.Offer(name, name, name, 1, 1) for name in 'ab')
THERE = neighbours.Neighbour('old', 'theirs', 1)
KNOWN = {'a': (THERE,), 'b': ()}


class ThereTest(base.BaseTestCase):

    def there(self, *promised, known=KNOWN, server='new'):
        made = tuple(promises.Promise(
            name, 'ours', 'app', 'host', 'b', 2) for name in promised)
        return neighbours.there(
            [GPU], known, {'a': made, 'b': made} if made else {}, server)

    def test_all_providers_of_a_gpu_count(self):
        self.assertEqual([THERE], self.there())

    def test_promised_servers_are_there(self):
        self.assertEqual(
            [THERE, neighbours.Neighbour('next', 'ours', 2, 'app')],
            self.there('next'))

    def test_nobody_is_there_twice(self):
        self.assertEqual([THERE], self.there('old'))

    def test_nobody_is_its_own_neighbour(self):
        self.assertEqual([], self.there(server='old'))

    def test_not_known(self):
        self.assertIsNone(self.there('next', known={'a': (THERE,)}))
