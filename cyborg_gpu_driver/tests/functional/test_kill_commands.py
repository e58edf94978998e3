# SPDX-License-Identifier: Apache-2.0

"""Commands and repairs are killed at every step, and then run again."""

import dataclasses
import json
import os
import shutil
import uuid

import fixtures
import testscenarios

from cyborg_gpu_driver.partition import reconcile as words
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.functional import kill_case

load_tests = testscenarios.load_tests_apply_scenarios

_LARGE, _BOUND, _SMALL = 9, 14, 19
"""Profile ids of 3g.20gb, 2g.10gb and 1g.5gb."""
_TYPE = 'nvidia-232'
"""A vGPU type of a T4 that fits on it several times."""
_AGENT = 65534
_PROCESS = 4711
_REPAIR = ('doctor', '--repair')
_LAYOUT = {'version': 'v1', 'mig-configs': {'mixed': [{
    'devices': 'all', 'mig-enabled': True,
    'mig-devices': {'3g.20gb': 1, '1g.5gb': 2}}]}}
_LAYOUTS = """
version: v1
mig-configs:
  old:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 1, "2g.10gb": 1}
  new:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 1, "1c.2g.10gb": 2, "1g.5gb": 1}
  'off':
    - devices: all
      mig-enabled: false
"""


class CommandCase(kill_case.KillCase):
    """One handle is bound, beside an instance that a layout has made."""

    options = {'mode': 'mig', 'profiles': ['2g.10gb']}
    kept = None

    def prepare(self):
        """Bind, and lay the GPU out; later calls copy the first result."""
        if self.kept is None:
            self.name = str(uuid.uuid4())
            self.process(self._bind)
            self.assertTrue(self.command('layout', 'apply', *self._layout()))
            self.full = self.truth()
            self.assertEqual(2, len(self.full[0]))
            self.kept = os.path.join(
                self.useFixture(fixtures.TempDir()).path, 'kept')
            shutil.copytree(self.directory, self.kept)
        else:
            shutil.copytree(self.kept, self.directory, dirs_exist_ok=True)
            self.config_path = self.write_config(self.options)

    def _bind(self, running):
        self.get_ready(running)
        running.bind(*self.handle(running, self.name))

    def _layout(self):
        path = os.path.join(self.directory, 'layouts.yaml')
        with open(path, 'w', encoding='utf-8') as stream:
            # JSON is YAML.
            json.dump({'version': 'v1', 'mig-configs': {'one': [{
                'devices': 'all', 'mig-enabled': True,
                'mig-devices': {'2g.10gb': 1, '1g.5gb': 1}}]}}, stream)
        return '-f', path, '-c', 'one'

    def is_explained(self):
        """Check that the record has each instance, and each vGPU an owner."""
        (record,) = store.Store(self.state_path).records().values()
        self.assertIsNone(record.change)
        known = {(item.profile_id, item.placement.start)
                 for item in record.owned_instances}
        instances, vgpus, _ = self.truth()
        self.assertLessEqual(set(instances), known)
        self.assertEqual(len(instances), len(set(instances)))
        self.assertEqual([self.name], vgpus)
        (entry,) = self.journal()
        self.assertEqual('bound', entry['phase'])
        self.assertIn((_BOUND, entry['placement']['start']), instances)

    def is_returned(self):
        """Check that the handle can be unbound and nothing of it is left."""
        (entry,) = self.journal()
        self.process(lambda running: (
            running.report(), running.unbind(
                entry['function'], entry['mdev_type'], self.name)))
        instances, vgpus, _ = self.truth()
        self.assertEqual([], [profile for profile, _ in instances
                              if profile == _BOUND])
        self.assertEqual(([], []), (vgpus, self.journal()))


class RestoreTest(CommandCase):
    """What a boot runs before nova-compute starts."""

    def test_restore(self):
        def prepare():
            self.prepare()
            self.world().reboot()
            self.assertEqual(([], []), self.truth()[:2])

        def restore(number=None):
            return self.command('layout', 'restore', number=number)

        def check():
            self.assertTrue(restore())
            self.assertEqual(self.full, self.truth())
            self.is_explained()
            self.is_returned()

        self.sweep(prepare, restore, check)
        self.say('layout restore', 8)


class ApplyTest(kill_case.KillCase):
    """The GPU has the layout before or after; running programs continue."""

    prepared = False
    options = {'mode': 'off'}
    owner = _AGENT if os.geteuid() == 0 else None
    scenarios = scope.first(
        ('instances', {'before': 'old', 'after': 'new', 'in_use': True}),
        ('mode on', {'before': 'off', 'after': 'new'}),
        ('mode off', {'before': 'old', 'after': 'off'}),
        ('mode on after a reboot', {
            'before': 'off', 'after': 'new', 'rebooted': True}),
        ('instances after a reboot', {
            'before': 'old', 'after': 'new', 'rebooted': True}))
    # The creation of each lock file is a step, too.
    in_use = False
    kept = None
    rebooted = False

    def begin(self):
        super().begin()
        self.layouts = os.path.join(self.directory, 'layouts.yaml')
        with open(self.layouts, 'w', encoding='utf-8') as stream:
            stream.write(_LAYOUTS)

    def test_apply(self):
        self.begin()
        self.command('layout', 'restore')
        self.goals = [self._apply_and_look(name)
                      for name in (self.before, self.after)]
        self.assertNotEqual(*self.goals)
        self.sweep(self._prepare, lambda number: self._apply(
            self.after, number), self._check)
        self.say('layout apply', 8)

    def _apply(self, name, number=None):
        return self.command('layout', 'apply', '-f', self.layouts, '-c',
                            name, number=number)

    def _apply_and_look(self, name):
        self._apply(name)
        return self._laid_out()

    def _prepare(self):
        """Apply the layout before; later calls copy the first result."""
        if self.kept is not None:
            shutil.copytree(self.kept, self.directory, dirs_exist_ok=True)
            self.config_path = self.write_config(self.options)
            for path in self.not_the_owners():
                os.chown(path, self.owner, self.owner)
            return
        self._apply(self.before)
        self.assertEqual(self.goals[0], self._laid_out())
        if self.in_use:
            ((number, self.serial),) = self._threes()
            self.world().add_process(kill_case.GPU, _PROCESS, number, 0)
        self.kept = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'kept')
        shutil.copytree(self.directory, self.kept)

    def _check(self):
        self._nothing_in_use_is_gone()
        self.assertEqual([], self.not_the_owners())
        if self.rebooted:
            self.world().reboot()
        else:
            self.process(lambda running: running.report())
            self._nothing_in_use_is_gone()
        self.command('layout', 'restore')
        self.assertIn(self._laid_out(), self.goals)
        self._nothing_in_use_is_gone()
        self.assertEqual([], [
            record.change for record
            in store.Store(self.state_path).records().values()
            if record.change is not None])
        self._apply(self.after)
        self.assertEqual(self.goals[1], self._laid_out())
        self._nothing_in_use_is_gone()
        self.assertEqual([], self.not_the_owners())

    def _laid_out(self):
        """Return everything about the GPU that a layout defines."""
        gpu = self.gpu()
        return gpu.mig, gpu.pending, sorted(
            (item.profile_id, item.start, sorted(
                (part.start, part.size) for part in item.compute.values()))
            for item in gpu.instances.values())

    def _threes(self):
        return [(number, item.serial) for number, item
                in self.gpu().instances.items() if item.profile_id == _LARGE]

    def _nothing_in_use_is_gone(self):
        if self.in_use:
            self.assertIn(self.serial, [serial for _, serial
                                        in self._threes()])


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
            there = running
            there.requests = lambda: claims
            there.publish = lambda address: None
            there.reconciler._grace = 0
            there.reconciler.look()

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
