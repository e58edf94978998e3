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

"""The agent is killed while a GPU of mode auto takes a role."""

import itertools
import uuid

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import kill_case


class TakeRoleTest(kill_case.KillCase):

    prepared = False
    each = 25
    options = {'mode': 'auto', 'roles': ['passthrough', 'mig', 'vgpu'],
               'profiles': ['2g.10gb'], 'vgpu_types': ['A100X-10C']}

    def test_bind(self):
        self.use_placement()
        self.begin()
        self.hostname = f'host-{uuid.uuid4()}'
        self.process(self._start)
        self._check_idle()
        name = str(uuid.uuid4())
        kinds = itertools.cycle(self._asked)
        # One machine for all runs: each time it has to become idle again.
        self.points = self._attempt(None, (*next(kinds), name))
        self.assertEqual(1, len(self.claims))
        for number in scope.some(range(self.points), self.each):
            self._attempt(number, (*next(kinds), name))
        self.say('a role taken', 20)

    def _attempt(self, number, asked):
        """Kill a bind before a step, or never; return how many it took."""
        self.process(lambda running: self._bind(running, asked), number)
        steps, self.claims = self.steps, self.journal()
        # The second report knows what the first wrote to Placement.
        self.process(lambda running: (running.report(), running.report()))
        self._check(bool([claim for claim in self.claims
                          if claim['phase'] == 'bound']))
        self.process(lambda running: (
            self._bind(running, asked), self._check_taken(),
            running.unbind(*asked)))
        self.process(lambda running: (running.report(), running.report()))
        self._check_idle()
        return steps

    @staticmethod
    def _bind(running, asked):
        # Without a server's allocation, so that the GPU is idle again at once.
        running._node.allocated = lambda item: None
        running.bind(*asked)

    def _start(self, running):
        """Report, and create the providers that Cyborg would create."""
        running.report()
        root = str(uuid.uuid4())
        self.cloud.post('/resource_providers', {
            'name': self.hostname, 'uuid': root})
        (device,) = running.report()
        for one in device.deployables:
            if one.resource_class.startswith('CUSTOM_'):
                self.cloud.put(f'/resource_classes/{one.resource_class}')
            self.cloud.post('/resource_providers', {
                'name': one.name, 'uuid': one.provider_uuid,
                'parent_provider_uuid': root})
            self.cloud.put(
                f'/resource_providers/{one.provider_uuid}/inventories', {
                    'resource_provider_generation': 0, 'inventories': {
                        one.resource_class: {
                            'total': one.num_accelerators}}})
        running.report()

    @property
    def _asked(self):
        """The arguments of a bind in each role, except for the handle."""
        found = []

        def read(running):
            (gpu,) = running._host.host().gpus
            for one in running._build(gpu).deployables:
                handle = one.handles[0]
                if handle.asked_type:
                    found.append((str(handle.address), handle.asked_type))
            with open(f'{self.directory}/asked', 'w',
                      encoding='utf-8') as stream:
                stream.write('\n'.join(map(' '.join, found)))

        self.process(read)
        with open(f'{self.directory}/asked', encoding='utf-8') as stream:
            return [tuple(line.split()) for line in stream]

    def _reserved(self):
        """Return (reserved, total) of the GPU's providers, by label."""
        return {
            name.rpartition('_')[2]: (item['reserved'], item['total'])
            for name, provider in self.cloud.providers().items()
            if name.startswith(f'{self.hostname}_gpu_')
            for item in self.cloud.inventories(provider['uuid']).values()}

    def _check_idle(self):
        """Check that the GPU is idle and available in every role."""
        self._check(False)
        self.assertEqual({0}, {
            reserved for reserved, _total in self._reserved().values()})

    def _check_taken(self):
        self.assertEqual((1, 1), self._reserved()['passthrough'])

    def _check(self, is_taken):
        """Check that the whole GPU is available only if nothing is bound."""
        self.assertEqual(is_taken, bool(self.journal()))
        self.assertEqual((int(is_taken), 1), self._reserved()['passthrough'])
        self.assertEqual('nvidia' if is_taken else 'vfio-pci',
                         self.world().drivers.of(kill_case.GPU))
        closed = [label for label, (reserved, total)
                  in self._reserved().items() if reserved == total]
        self.assertEqual(2 if is_taken else 0, len(closed), closed)
