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

"""What may happen to a host in any order, and what must hold all the while.

There is one rule, because an operation is to be as frequent as it says here.
Whatever is picked is picked by a number, so that a failure can be made
smaller.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import sys
import traceback

import hypothesis
import pynvml
from hypothesis import stateful
from hypothesis import strategies

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.demo import client
from cyborg_gpu_driver.demo import nova_part
from cyborg_gpu_driver.tests.functional import stateful_faults
from cyborg_gpu_driver.tests.functional import stateful_kinds
from cyborg_gpu_driver.tests.functional import stateful_world

_UP = 15
"""Operations between two reboots, at least: they take long."""
GPUS = stateful_kinds.GPUS
PICKS = strategies.integers(0, 255)
WEIGHTS = {
    'bind': 14, 'unbind': 7, 'bind_again': 3, 'unbind_again': 4,
    'bind_too_late': 2, 'guest_starts': 3, 'guest_ends': 2, 'report': 3,
    'restart': 3, 'reboot': 1, 'fault': 7, 'fall_sick': 3, 'recover': 2,
    'outsider_cuts': 3, 'outsider_returns': 2, 'change_policies': 2,
    'be_quiet': 1, **stateful_faults.WEIGHTS}
"""How often each operation is tried, where it is possible."""

_TOLD = frozenset({
    'bind', 'unbind', 'bind_again', 'unbind_again', 'bind_too_late',
    'guest_starts', 'guest_ends', 'report', 'change_policies', 'doctor',
    'be_quiet'})
"""Operations after which the agent knows all that there is to know, if it
did before."""
_IDLE = frozenset({'guest_starts', 'guest_ends'})
"""Those of them that change nothing that is published."""

XIDS = (79, 62, 31, 94)


class Operations(stateful_faults.Faults, stateful.RuleBasedStateMachine):
    """Has a cloud of its own from its beginning to its end."""

    case: stateful_world.StatefulCase
    done: collections.Counter

    def __init__(self):
        super().__init__()
        self.began = False
        self.drawn = 0
        self.story: list[str] = []
        self.servers: list[tuple[nova_part.Server,
                                 list[stateful_world.Held]]] = []
        self.old: list[tuple[str, str, str]] = []
        """What agents were asked with in former times."""
        self.strays: set[str] = set()
        """Handles bound again too late, after Cyborg had unbound them."""
        self.foreign: list[tuple[str, int]] = []
        self.faulty = False
        """Whether a fault was asked for since the agent's start."""
        self.ill: set[str] = set()
        self.changed = False
        """Whether the policies are others than at the beginning."""
        self.up = 0
        """Operations since the machine was started."""

    @stateful.initialize(luck=PICKS)
    def begin(self, luck):
        # Hypothesis begins with the least of everything, which is dull.
        hypothesis.assume(luck)
        self.case.renew()
        self.began = True

    @stateful.rule(luck=PICKS)
    def operate(self, luck):
        # Hypothesis likes to draw the same again, and one operation again
        # and again is dull.
        self.drawn += 1
        chance = random.Random(f'{luck} {self.drawn}')
        name = chance.choice(self.possible())
        pick = chance.randrange(256)
        self.tell(f'{name}({pick})')
        self.settled = self.settled and name in _TOLD
        getattr(self, name)(pick)
        if name not in _IDLE:
            self.check_doctor()

    def tell(self, what):
        """Note something for whoever reads of a failure."""
        self.story.append(what)
        hypothesis.note(what)

    def possible(self):
        """Names of operations, each as often as it weighs."""
        missing = {'unbind': not self.servers,
                   'bind_again': not self._bound(),
                   'guest_starts': not self._shut_off(),
                   'guest_ends': not self._running(),
                   'unbind_again': not self._past(),
                   'bind_too_late': not self._past(),
                   'recover': not self.ill,
                   'outsider_returns': not self.foreign,
                   'reboot': self.up < _UP, **self.missing()}
        return [name for name, weight in WEIGHTS.items()
                if not missing.get(name) for _ in range(weight)]

    # What users do

    def _bind(self, profile):
        """Make a server; what came of it."""
        if not self._candidates(profile):
            return 'no candidates'
        try:
            server = self.case.cloud.bind(profile)
        except nova_part.BindFailed:
            return 'failed'
        live = self.case.live()
        held = []
        for arq in server.arqs:
            item = stateful_world.Held(arq, 0)
            item.what = self._what(item, live)
            held.append(item)
            self.strays.discard(item.handle)
        self.servers.append((server, held))
        return 'bound'

    def _what(self, item, live):
        if item.whole:
            return self.case.hardware(item.function).resets
        found = live.get(item.handle) or live.get(item.function)
        self.case.assertIsNotNone(found, f'{item} has nothing')
        return found

    def bind(self, pick):
        profiles = list(self.case.profiles)
        random.Random(pick).shuffle(profiles)
        # Mostly what can be had.
        profile = next(self._promised(profiles), None) if pick % 8 else None
        self._count('bind', self._bind(profile or profiles[0]))

    def unbind(self, pick):
        server, held = _one(self.servers, pick)
        self.case.cloud.unbind(server)
        self.servers.remove((server, held))
        self.old.extend(item.strings for item in held if not item.whole)
        self._count('unbind')

    # What goes twice, or comes too late

    def bind_again(self, pick):
        outcome = self._ask(self.case.create_by_rpc,
                            _one(self._bound(), pick).strings)
        if not (self.faulty or self.ill or self.changed):
            self.case.assertEqual('done', outcome)
        self._count('bind again', outcome)

    def unbind_again(self, pick):
        past = self._past()
        if pick % 2:
            # Another handle's vGPU may be on the same function by now.
            taken = {item.function for item in self._bound()}
            past = [strings for strings in past
                    if strings[0] in taken] or past
        self.case.remove_by_rpc(*_one(past, pick // 2))
        self._count('unbind again')

    def bind_too_late(self, pick):
        strings = _one(self._past(), pick)
        outcome = self._ask(self.case.create_by_rpc, strings)
        if outcome == 'done':
            self.strays.add(strings[2])
        self._count('bind too late', outcome)

    def _ask(self, ask, strings):
        try:
            ask(*strings)
        except exception.GpuDriverError as error:
            return type(error).__name__
        return 'done'

    def _bound(self):
        return [item for _, held in self.servers for item in held
                if not item.whole]

    def _past(self):
        """Requests of handles that nobody has now."""
        bound = {item.handle for item in self._bound()}
        return [strings for strings in self.old if strings[2] not in bound]

    # What happens to guests

    def guest_starts(self, pick):
        self.case.world.start_guest(_one(self._shut_off(), pick))
        self._count('guest starts')

    def guest_ends(self, pick):
        self.case.world.stop_guest(_one(self._running(), pick))
        self._count('guest ends')

    def _shut_off(self):
        """vGPUs of servers that do not run."""
        running = self._running()
        return [item.what.name for item in self._bound()
                if item.what.name not in running]

    def _running(self):
        # Oldest first, as in any other run: names differ.
        return [item.name for item in sorted(
            self.case.live().values(), key=lambda item: item.number)
            if item.guest]

    # What happens to the agent and to the machine

    def report(self, _pick):
        self.case.cloud.report()
        self._count('report')
        if not self.disturbed:
            # What Cyborg makes in one is written in the next.
            self.case.cloud.report()
            self.settled = True
            self._check_sick()

    def _check_sick(self):
        """Nothing is promised on what a report has found to be sick."""
        sick = self.case.sick()
        for (gpu, label), left in (
                self.case.capacities().items() if sick else ()):
            if gpu in sick:
                self.case.assertLessEqual(left, 0, (gpu, label))

    def restart(self, _pick):
        self._restart()
        self._count('restart')

    def _restart(self):
        # A new process would not wait for calls of the old one.
        self.nvml_answers()
        self.case.restart_agent()
        self.faulty = False

    def fault(self, pick):
        known = self.case.kind['faults']
        name, code, after = _one(known, pick)
        nth = 1 + pick // len(known) % 2
        faults = self.case.faults()
        if name.startswith('*'):
            faults.fail_write(name, code, nth=nth, after=after)
        else:
            faults.fail(name, code, nth=nth, after=after)
        self.faulty = True
        self._count('fault')

    def fall_sick(self, pick):
        world = self.case.world
        gpu, kind = _one(GPUS, pick), pick // len(GPUS) % 6
        if kind == 0:
            world.lose_gpu(gpu)
        elif kind == 1:
            # Not remapped rows: NVML does not tell them of a GPU that has
            # instances.
            world.set_health(
                gpu, recovery=pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
        elif kind == 2:
            world.set_health(gpu, uncorrected=2)
        elif kind == 3:
            world.set_health(gpu, celsius=stateful_world.TOO_HOT)
        else:
            self.case.raise_xid(gpu, _one(XIDS, pick))
        self.ill.add(gpu)
        self._count('sick')

    def recover(self, pick):
        gpu = _one(sorted(self.ill), pick)
        self.case.heal(gpu)
        self.ill.discard(gpu)
        self._count('well')

    def outsider_cuts(self, pick):
        gpu = _one(GPUS, pick)
        if any(item.whole and item.function == gpu
               for _, held in self.servers for item in held):
            return
        made = self.case.outsider_cuts(gpu, pick // len(GPUS))
        if made:
            self.foreign.append(made)
            self._count('outsider cuts')

    def outsider_returns(self, pick):
        self.case.outsider_returns(*_one(self.foreign, pick))
        self._count('outsider returns')

    def change_policies(self, pick):
        self._configure(pick % len(self.case.kind['configurations']))
        # As the agent does at its start.
        self.report(pick)
        self._count('policies')

    def _configure(self, number):
        self.nvml_answers()
        self.case.configure(number)
        self.faulty = False
        self.changed = number != 0

    # What must hold once it is quiet

    def be_quiet(self, pick):
        self._quiet()
        self._count('quiet')
        given = list(self._promised(self.case.profiles))
        if given and not self._outsiders_in_the_way():
            # What Placement still promises can be had.
            self.case.assertEqual('bound', self._bind(_one(given, pick)))
            self._count('bind', 'bound')

    def _outsiders_in_the_way(self):
        """Whether an outsider's vGPU may be on a function that Cyborg chooses.

        A handle stands for its function and for no other, and Cyborg asks
        nobody which of its handles is the next.
        """
        return any(item.function not in GPUS
                   and ('vgpu', item.number) in self.foreign
                   for item in self.case.live().values())

    def _promised(self, profiles):
        """Those device profiles for which Placement has something left."""
        return (profile for profile in profiles
                if self._candidates(profile))

    def _candidates(self, profile):
        try:
            return self.case.cloud.nova.candidates(profile)
        except client.ApiError as error:
            # Of what was never offered Placement knows no class.
            self.case.assertIn('No such resource class', str(error))
            return []

    def _quiet(self):
        self.end_faults()
        for gpu in GPUS:
            self.case.heal(gpu)
        self.ill.clear()
        mine = {item.what.name for item in self._bound()}
        for name in self._running():
            if name not in mine:
                self.case.world.stop_guest(name)
        self.case.faults().clear()
        self.mend()
        if self.faulty:
            # What has failed is left alone for a minute by the same agent.
            self._restart()
        self.case.report()
        self.strays.clear()
        self.settled = True
        self.check()
        self.check_doctor()
        # Nothing is under way any more.
        self.case.assertEqual(
            {item.handle for item in self._bound()},
            {entry['handle'] for entry in self.case.journal()})
        whole = {item.function for _, held in self.servers
                 for item in held if item.whole}
        for (gpu, label), left in self.case.capacities().items():
            room = 0 if gpu in whole else self.case.room(gpu, label)
            self.case.assertLessEqual(left, room, (gpu, label))

    # What must hold after each step

    @stateful.invariant()
    def check(self):
        live = self.case.live()
        self._check_cyborg()
        for _, held in self.servers:
            for item in held:
                self.case.assertEqual(
                    _identity(item.what), _identity(self._what(item, live)))
        self._check_owners(live)

    def _check_cyborg(self):
        """Cyborg has what the servers have, and nothing else."""
        arqs = {arq['uuid']: (arq['state'], arq['attach_handle_uuid'])
                for arq in self.case.cloud.cyborg.arqs()}
        held = [item for _, items in self.servers for item in items]
        self.case.assertEqual(
            {item.arq['uuid']: ('Bound', item.handle) for item in held},
            arqs)
        self.case.assertEqual(len(held), self.case.handles_in_use())

    def _check_owners(self, live):
        """Everything on the hardware has one owner, who is known."""
        entries = self.case.journal()
        names = collections.Counter(
            (entry['function'] if entry['vfio'] else entry['handle'],
             entry['mdev_type']) for entry in entries)
        foreign = set(self.foreign)
        for name, item in live.items():
            owners = (names[name, f'nvidia-{item.type_id}']
                      + (('vgpu', item.number) in foreign))
            self.case.assertEqual(1, owners, (item, entries))
        bound = {entry['handle'] for entry in entries
                 if entry['phase'] == 'bound'}
        mine = {item.handle for item in self._bound()}
        self.case.assertLessEqual(mine, bound)
        # An agent that ends before it could write them leaves them so.
        self.strays |= (bound - mine) & self.case.given_back()
        self.case.assertLessEqual(bound - mine, self.strays)
        places = self.case.explained()
        for address, gpu in self.case.state().items():
            for item in gpu.instances.values():
                self.case.assertTrue(
                    (address, item.profile_id, item.start) in places
                    or ('instance', item.serial) in foreign,
                    (address, item, entries))

    # The end

    def teardown(self):
        if self.began and sys.exc_info()[0] is None:
            self._end()
        elif self.began:
            # Hypothesis tries again, and shows nothing of the first time if
            # the second ends in another way.
            print('\n'.join((f'Seed {self.case.seed}:', *self.story,
                             traceback.format_exc())), flush=True)
            self.end_faults()

    def _end(self):
        """All is given back, and as at the beginning."""
        self._quiet()
        for server, _ in self.servers:
            self.case.cloud.unbind(server)
        self.servers.clear()
        self._quiet()
        for what in self.foreign:
            self.case.outsider_returns(*what)
        self.clear_layouts()
        self._configure(0)
        self._quiet()
        self.clear_layouts()
        self._quiet()
        for part in ('placement', 'arqs', 'journal'):
            self.case.assertEqual(self.case.untouched[part],
                                  self.case.everything()[part])
        self.case.assertEqual({}, self.case.live())
        for address, gpu in self.case.state().items():
            self.case.assertEqual({}, gpu.instances, address)

    def _count(self, what, outcome=''):
        self.done[what] += 1
        self.up += 1
        if outcome:
            self.done[f'{what}: {outcome}'] += 1


def _one(things, pick):
    return things[pick % len(things)]


def _identity(what):
    """What stays the same while somebody has it."""
    if isinstance(what, stateful_world.Live):
        return dataclasses.replace(what, guest=False)
    return what
