# SPDX-License-Identifier: Apache-2.0

"""The faults of the stateful test: things hang, are slow or stop half-way.

NVML does not return. Placement answers late or never. Cyborg's API answers
only after something else has happened. Commands are stopped in the middle,
and then continue or are killed.
"""

from __future__ import annotations

import collections
import contextlib
import random
import time

from cyborg_gpu_driver.tests.functional import stateful_kinds
from cyborg_gpu_driver.tests.functional import stateful_world

WEIGHTS = {
    'nvml_hangs': 2, 'nvml_answers': 4, 'placement_fails': 2,
    'placement_returns': 8, 'cyborg_waits': 3, 'layout': 2, 'doctor': 2,
    'command_stops': 4}
"""How often each operation is tried, where it is possible."""
_OUTAGES = ('slow', 'silent', 'mute', 'busy', 'shut')
_STEPS = 24
"""No command that is tried here has many more steps."""


class Faults:
    """Fault operations that a state machine has in addition to its own."""

    case: stateful_world.StatefulCase
    done: collections.Counter
    faulty: bool

    def __init__(self):
        super().__init__()
        self.hung = ''
        """The GPU whose NVML calls do not return."""
        self.settled = False
        """Whether an undisturbed report has followed every change that the
        agent does not notice by itself."""
        self._outage = contextlib.ExitStack()
        self._out = False
        self._torn = False
        """Whether a command was killed since the last restore."""
        self.stopped = False
        """Whether a command is stopped, which may hold the lock of a GPU."""

    @property
    def disturbed(self):
        """Whether something may keep a report from doing its work."""
        return bool(self.faulty or self.hung or self._out)

    def missing(self):
        """Return, for each operation, whether it is impossible now."""
        return {'nvml_hangs': self.hung, 'nvml_answers': not self.hung,
                'placement_fails': self._out,
                'placement_returns': not self._out,
                'cyborg_waits': self.hung or self._out,
                'layout': self.hung or not self._sliced(),
                'doctor': self.hung or self._out,
                'command_stops': self.hung or self._out}

    def end_faults(self):
        """Let NVML and Placement answer again."""
        self.placement_returns()
        self.nvml_answers()

    def mend(self):
        """Undo what a command was doing when it was killed."""
        if self._torn:
            self.case.restore()
            self._torn = False

    # The machine

    def reboot(self, _pick):
        self.end_faults()
        self.up = 0
        before = self._promises()
        self.case.world.reboot()
        self.foreign.clear()
        self.ill.clear()
        restored = self.case.restore()
        self.tell(f'restored: {restored}')
        self._assert_kept(before, self._promises())
        live = self.case.live()
        for _, held in self.servers:
            for item in held:
                item.what = self._what(item, live)
        self._restart()
        self._count('reboot')

    def _assert_kept(self, before, after):
        """Check that everything is as before the reboot.

        Where instances hold several vGPUs, the driver chooses the instance
        of each vGPU again, but always one that existed before.
        """
        there = [found[-1] for found in before.values()]
        places = [found[-1] for found in after.values()]
        shared = [place for place in there
                  if max(there.count(place), places.count(place)) > 1]
        for handle, found in after.items():
            if before.get(handle, [None])[-1] in shared or (
                    found[-1] in shared):
                self.case.assertIn(found[-1], there)
                after[handle] = (*found[:-1], before[handle][-1])
        self.case.assertEqual(before, after)

    def _promises(self):
        """Return what a reboot must not change, for each bound handle."""
        live, states = self.case.live(), self.case.state()
        found = {}
        for entry in self.case.journal():
            if entry['phase'] != 'bound':
                continue
            name = entry['function'] if entry['vfio'] else entry['handle']
            item, place = live[name], entry['placement']
            there = {(instance.profile_id, instance.start, instance.size)
                     for instance in states[item.gpu].instances.values()}
            found[entry['handle']] = (
                item.gpu, item.function, item.type_id, item.placement,
                place and (entry['profile_id'], place['start'],
                           place['size']) in there and place)
        return found

    # NVML

    def nvml_hangs(self, pick):
        self.hung = _one(self._reachable(), pick)
        self.case.hang(self.hung)
        # From now on the agent leaves the GPU alone until it answers again.
        self.faulty = True
        self._count('NVML hangs')

    def nvml_answers(self, _pick=0):
        if self.hung:
            self.case.answer(self.hung)
            self.hung = ''
            self._count('NVML answers')

    def _reachable(self):
        """Return the GPUs that NVML would list."""
        return [address for address, gpu in self.case.state().items()
                if gpu.driver == 'nvidia'] or [stateful_kinds.FIRST]

    # Services

    def placement_fails(self, pick):
        kind, door = _one(_OUTAGES, pick), self.case.door
        self._outage.enter_context(
            door.slow(stateful_world.SLOW_SECONDS) if kind == 'slow'
            else getattr(door, kind)())
        self._out = True
        self._count('Placement fails', kind)

    def placement_returns(self, _pick=0):
        self._outage.close()
        self._out = False

    def cyborg_waits(self, pick):
        """Let Cyborg's API answer a report only after another operation."""
        chance = random.Random(pick)
        with self.case.gate.shut_during(self.case.cloud.report, pick % 4):
            began = time.monotonic()
            name = self._something(chance)
            self.case.assertLess(time.monotonic() - began,
                                 stateful_world.A_WHILE, name)
            self.check()
        self._count('Cyborg waits', name)

    def _something(self, chance):
        """Do one thing that a user does; return its name."""
        possible = {'bind', 'unbind', 'bind_again', 'unbind_again',
                    'guest_starts', 'guest_ends'} & set(self.possible())
        name = chance.choice(sorted(possible))
        self.tell(f'meanwhile {name}')
        getattr(self, name)(chance.randrange(256))
        return name

    # Commands

    def layout(self, pick):
        done = self.case.apart(*self._layout(pick))
        self.tell(str(done))
        self._count('layout', 'refused' if done.code else 'applied')

    def doctor(self, _pick):
        """Run a repair, which must leave alone what is right."""
        before = self.case.everything()
        foreign = self._foreign()
        idle = self.settled and not self.strays and all(
            entry['phase'] == 'bound' for entry in before['journal'])
        self.case.apart('doctor', '--repair', '--os-cloud', 'here')
        if idle:
            after = self.case.everything()
            for part in ('placement', 'journal', 'gpus'):
                self.case.assertEqual(before[part], after[part])
        self.case.assertEqual(foreign, self._foreign())
        self.strays &= {entry['handle'] for entry in self.case.journal()}
        self._count('doctor', 'nothing to do' if idle else 'repairs')

    def command_stops(self, pick):
        chance = random.Random(pick)
        arguments = ('doctor', '--repair', '--os-cloud', 'here')
        if self._sliced() and chance.random() < 0.6:
            arguments = self._layout(chance.randrange(256))
        command = self.case.apart(*arguments,
                                    stop=chance.randrange(_STEPS))
        outcome = 'was done'
        if command.code is None:
            self.stopped = True
            try:
                self._beside_a_stopped_command(chance)
            except BaseException:
                # What it holds would keep the cloud from its end.
                self.case.commands.kill(command)
                raise
            self.stopped = False
            self.tell(f'stopped {arguments[:2]}')
            if chance.random() < 0.5:
                self.case.commands.kill(command)
                self._torn, outcome = True, 'was killed'
            else:
                done = self.case.commands.resume(command)
                self.tell(str(done))
                self.case.assertNotIn('Traceback', done.errors)
                self.case.assertIn(done.code, (0, 1, 2), done)
                outcome = 'went on'
        self._count(f'stopped {arguments[0]}', outcome)

    def _beside_a_stopped_command(self, chance):
        with self.case.impatient():
            for _ in range(chance.randint(1, 2)):
                self.check()
                self._something(chance)
            if chance.random() < 0.3:
                self.check()
                self.case.cloud.report()
        self.check()

    def _sliced(self):
        """Return the GPUs in MIG mode."""
        return [address for address, gpu in self.case.state().items()
                if gpu.mig and gpu.driver == 'nvidia' and not gpu.lost]

    def _layout(self, pick):
        """Return arguments that ask for some layout of some GPU.

        The layout mostly has what is bound; otherwise it is refused.
        """
        chance = random.Random(pick)
        gpu = chance.choice(self._sliced())
        profiles = {item.profile_id: item.name for item
                    in self.case.world.gpu(gpu).model.mig.profiles}
        counts = collections.Counter(
            profiles[profile] for profile, _ in self.case.bound_places(gpu)
            if chance.random() < 0.9)
        small = sorted(profiles.values())[:4]
        for _ in range(chance.randrange(4)):
            counts[chance.choice(small)] += 1
        return ('layout', 'apply', *self.case.write_layout(gpu, counts))

    def clear_layouts(self):
        """Remove everything that layouts have made."""
        for gpu in self._sliced():
            done = self.case.apart(
                'layout', 'apply', *self.case.write_layout(gpu, {}))
            self.case.assertEqual(0, done.code, done)

    def _foreign(self):
        """Return what outsiders have made and not removed."""
        there = {('vgpu', item.number) for item in self.case.live().values()}
        there.update(('instance', item.serial)
                     for gpu in self.case.state().values()
                     for item in gpu.instances.values())
        return there & set(self.foreign)

    # What must hold

    def check_doctor(self):
        """Check that doctor agrees with what the agent has published."""
        if self.settled:
            self.case.assertEqual([], [
                item for item in self.case.differences()
                if item['code'] == 'reserved'])
            self.done['doctor agrees:'] += 1


def _one(things, pick):
    return things[pick % len(things)]
