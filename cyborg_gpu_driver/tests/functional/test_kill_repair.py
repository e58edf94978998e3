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

"""Repairs are killed at every step, and continue when tried again."""

import dataclasses
import os
import uuid

import testscenarios

from cyborg_gpu_driver.partition import reconcile as words
from cyborg_gpu_driver.program.reconcile import reconcile
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.functional import kill_case

_REPAIR = ('doctor', '--repair')

load_tests = testscenarios.load_tests_apply_scenarios


class RepairCase(kill_case.KillCase):
    """One handle is bound."""

    options = {'mode': 'mig', 'profiles': ['2g.10gb']}

    def bind(self):
        self.handle_uuid = str(uuid.uuid4())

        def work(running):
            self.get_ready(running)
            running.bind(*self.handle(running, self.handle_uuid))

        self.process(work)
        self.records = store.Store(self.state_path)
        (self.entry,) = self.records.claims()
        self.bound = self.truth()
        self.assertEqual(1, len(self.bound[1]))

    def look(self, claims, number=None):
        """Compare and repair like a report that may ask Cyborg.

        :param claims: the claims in Cyborg's answer.
        """
        def work(running):
            running.report()
            there = running._node
            there.requests = lambda: claims
            there.publish = lambda address: None
            reconcile.Reconciler(
                there.platform, there.live, there.records, there.settings,
                there.switches, there.nvlink_groups, there.vgpus,
                there.rebuilder, there.repairer, there,
                grace=0).look()

        return self.process(work, number)

    def claims(self):
        return words.Requests((words.Request(
            self.handle_uuid, 'request', 'server', self.entry.function,
            self.entry.mdev_type),))

    def is_bound(self):
        """Check that the handle is bound as before and can be unbound."""
        (entry,) = self.records.claims()
        # No source has the time of the bind for an entry found again.
        self.assertIn(entry.since, (None, self.entry.since))
        self.assertEqual(self.entry, dataclasses.replace(
            entry, instance_id=self.entry.instance_id,
            since=self.entry.since))
        self.assertEqual(self.bound, self.truth())
        self.assertIn(entry.instance_id, self.gpu().instances)
        self.process(lambda running: running.unbind(
            str(entry.function), entry.mdev_type, entry.handle))
        self.is_gone()

    def is_gone(self):
        self.assertEqual(([], []), self.truth()[:2])
        self.assertEqual((), self.records.claims())


class JournalTest(RepairCase):
    """A report or an operator makes the journal again."""

    scenarios = scope.first(
        ('doctor', {'by_doctor': True}), ('report', {'by_doctor': False}))

    def test_rebuild(self):
        def prepare():
            self.bind()
            host_files.damage(self.state_path, kill_case.GPU)

        def work(number=None):
            if self.by_doctor:
                # The cordon of the GPU is not for doctor to lift.
                return self.command(*_REPAIR, number=number, code=1)
            return self.process(lambda running: running.report(), number)

        def check():
            work()
            self.assertIn(
                f'{kill_case.GPU}.json.unusable-1',
                os.listdir(os.path.join(self.state_path, 'gpus')))
            self.assertEqual(1, len(self.records.closed_by_damage()))
            self.is_bound()

        self.sweep(prepare, work, check)
        self.say('journal made again', 3)


class DoctorTest(RepairCase):

    def test_an_unbind_that_did_not_end(self):
        def prepare():
            self.bind()
            self.records.put_claims(dataclasses.replace(
                self.entry, phase=gpu_record.Phase.UNBINDING))

        def work(number=None):
            # A GPU of this host has no policy.
            return self.command(*_REPAIR, number=number, code=1)

        def check():
            work()
            self.is_gone()

        self.sweep(prepare, work, check)
        self.say('doctor --repair')


class RequestTest(RepairCase):
    """Repairs that rely on what Cyborg says."""

    scenarios = scope.first(
        ('vGPU and instance', {'keeps': False}),
        ('vGPU', {'keeps': True}))

    def test_what_vanished_is_made_again(self):
        def prepare():
            self.bind()
            world = self.world()
            with world.operation(write=True):
                state = world.gpu(kill_case.GPU).state
                state.vgpus.clear()
                if not self.keeps:
                    state.instances.clear()

        def check():
            self.look(self.claims())
            self.is_bound()

        self.sweep(prepare, lambda number: self.look(
            self.claims(), number), check)
        self.say('made again', 3)

    def test_what_cyborg_forgot_is_returned(self):
        def check():
            self.look(words.Requests())
            self.is_gone()

        self.sweep(self.bind, lambda number: self.look(
            words.Requests(), number), check)
        self.say('returned')
