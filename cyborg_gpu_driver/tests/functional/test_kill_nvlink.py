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

"""Binds and unbinds of groups of GPUs, killed at every step.

Whenever the process dies, the next one leaves no partition active without an
owner, no owner without its active partition, and no GPU with two owners.
"""

import uuid

import fixtures

from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.functional import kill_case

_PAIR = 'nvlink-2'


class GroupTest(kill_case.KillCase):

    each = 20
    options = {'mode': 'nvlink', 'nvlink_sizes': '2, 4'}

    def setUp(self):
        super().setUp()
        # Half a board, which has two pairs.
        self.host = host_files.write_unprepared(
            self.useFixture(fixtures.TempDir()).path, 'hgx-h100', 4)
        self.name = str(uuid.uuid4())

    def test_bind(self):
        def check():
            self.process(self.report_twice)
            self.assert_sound()
            self.process(self.bind)
            self.assert_bound()
            self.process(self.unbind)
            self.process(self.report_twice)
            self.assert_nothing_left()

        self.sweep(lambda: self.process(self.get_ready),
                   lambda number: self.process(self.bind, number), check)
        self.say('bind of a group', 20)

    def test_unbind(self):
        def begin():
            self.process(self.get_ready)
            self.process(self.bind)
            self.assert_bound()

        def check():
            self.process(self.report_twice)
            self.assert_sound()
            self.process(self.unbind)
            self.process(self.report_twice)
            self.assert_nothing_left()

        self.sweep(begin,
                   lambda number: self.process(self.unbind, number), check)
        self.say('unbind of a group', 20)

    def get_ready(self, running):
        self.report_twice(running)
        for gpu in running._host.host().gpus:
            self.assertEqual('vfio-pci', gpu.driver)

    def report_twice(self, running):
        running.report()
        running.report()

    def bind(self, running):
        running.bind(*self.asked(running))

    def unbind(self, running):
        running.unbind(*self.asked(running))

    def asked(self, running):
        """Return Cyborg's arguments to the agent for the first pair."""
        group = next(group for gpu in running._host.host().gpus
                     for group in running._host.groups([gpu.address])
                     if group.profile == _PAIR)
        return str(group.leader), _PAIR, self.name

    def assert_sound(self):
        claims = self.journal()
        self.assertIn(len(claims), (0, 2))
        self.assertEqual(len(claims), len({
            claim['gpu'] for claim in claims}))
        self.assertLessEqual({claim['phase'] for claim in claims}, {'bound'})
        self.assertEqual(
            tuple({claim['fabric_partition'] for claim in claims}),
            self.world().active_partitions)
        self.assertEqual((), self.world().damage)

    def assert_bound(self):
        self.assert_sound()
        self.assertEqual(2, len(self.journal()))

    def assert_nothing_left(self):
        self.assert_sound()
        self.assertEqual([], self.journal())
