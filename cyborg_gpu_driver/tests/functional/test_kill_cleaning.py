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

"""The agent is killed while it cleans a whole GPU for its next tenant."""

import os
import uuid

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import kill_case

_CLASS = 'PGPU'


class CleaningTest(kill_case.KillCase):

    prepared = False
    each = 15
    options = {'mode': 'passthrough'}

    def setUp(self):
        super().setUp()
        self.use_placement()

    def begin(self):
        """Start with a new machine, in a provider tree of its own."""
        super().begin()
        self.hostname = f'host-{uuid.uuid4()}'
        self.server = str(uuid.uuid4())

    def test_reset(self):
        self.sweep(self._returned, self._report, self._check)
        self.say('reset of a whole GPU', 12)

    def _report(self, number=None):
        return self.process(lambda running: running.report(), number)

    def _take(self, running):
        (device,) = running.report()
        (one,) = device.deployables
        self.cloud.post('/resource_providers', {
            'name': one.name, 'uuid': one.provider_uuid})
        self.cloud.put(
            f'/resource_providers/{one.provider_uuid}/inventories', {
                'resource_provider_generation': 0,
                'inventories': {_CLASS: {'total': 1}}})
        running.report()
        self.cloud.put(f'/allocations/{self.server}', {
            'allocations': {one.provider_uuid: {'resources': {_CLASS: 1}}},
            'project_id': 'p', 'user_id': 'u', 'consumer_generation': None,
            'consumer_type': 'INSTANCE'})

    def _returned(self):
        def work(running):
            self._take(running)
            running.report()

        self.process(work)
        self.assertEqual(gpu_cloud.USED, self._inventory())
        self.assertEqual(0, self._resets())
        self._give_back()

    def _give_back(self):
        self.cloud.delete(f'/allocations/{self.server}')

    def _check(self):
        if not self._inventory()[0]:
            # The next server gets a GPU that was reset, and the records say
            # that it was reset.
            self.assertEqual(1, self._resets())
            self.assertEqual('free', self._known()['state'])
            self.assertIn('cleaned', self._whats())
        elif not self._resets():
            self.assertNotIn('cleaned', self._whats())
            self.assertNotEqual('free', self._known()['state'])
        # The second report knows what the first has written to Placement.
        self.process(lambda running: (running.report(), running.report()))
        self.assertEqual((0, 0), self._inventory())
        self.assertIn(self._resets(), (1, 2))
        self.assertEqual('free', self._known()['state'])
        whats = self._whats()
        self.assertEqual('given', whats[0])
        self.assertLessEqual({'returned', 'cleaned'}, set(whats))
        self.assertLess(whats.index('returned'), whats.index('cleaned'))
        first = None
        for record in audit.read(self.state_path).records:
            if record.what == 'cleaned':
                first = first or record
                self.assertEqual(0, record.evidence['after']['processes'])
        self.assertEqual(self.server, first.subject)
        resets = self._resets()
        self._report()
        self.assertEqual((resets, whats), (self._resets(), self._whats()))

    def _inventory(self):
        """Return reserved and used of the GPU's provider."""
        provider = next(item['uuid'] for name, item
                        in self.cloud.providers().items()
                        if name.startswith(self.hostname))
        (item,) = self.cloud.inventories(provider).values()
        (used,) = self.cloud.usages(provider).values()
        return item['reserved'], used

    def _resets(self):
        return (self.gpu().resets if os.path.exists(self.hardware) else 0)

    def _known(self):
        return codec.encode(store.Store(self.state_path).read(
            model.PciAddress.parse(kill_case.GPU)).tenancy)

    def _whats(self):
        return [record.what for record
                in audit.read(self.state_path).records]

