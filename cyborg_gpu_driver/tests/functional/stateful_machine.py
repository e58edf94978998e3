# SPDX-License-Identifier: Apache-2.0

"""Operations on a host in any order, and what must hold after each of them.

There is only one rule, so that the weights here decide how frequent each
operation is. A number makes each choice, so that Hypothesis can shrink a
failure.
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
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests.functional import stateful_faults
from cyborg_gpu_driver.tests.functional import stateful_kinds
from cyborg_gpu_driver.tests.functional import stateful_world
from demo_lib import client
from demo_lib import nova_part

_UP = 15
"""Minimum number of operations between two reboots, which take long."""
GPUS = stateful_kinds.GPUS
PICKS = strategies.integers(0, 255)
WEIGHTS = {
    'bind': 14, 'unbind': 7, 'bind_again': 3, 'unbind_again': 4,
    'bind_too_late': 2, 'guest_starts': 3, 'guest_ends': 2, 'report': 3,
    'restart': 3, 'reboot': 1, 'fault': 7, 'become_unhealthy': 3, 'recover': 2,
    'outsider_cuts': 3, 'outsider_returns': 2, 'change_policies': 2,
    'be_quiet': 1, **stateful_faults.WEIGHTS}
"""How often each operation is tried, where it is possible."""

_TOLD = frozenset({
    'bind', 'unbind', 'bind_again', 'unbind_again', 'bind_too_late',
    'guest_starts', 'guest_ends', 'report', 'change_policies', 'doctor',
    'be_quiet'})
"""Operations after which the agent still knows everything, if it did so
before."""
_IDLE = frozenset({'guest_starts', 'guest_ends'})
"""The told operations that change nothing that is published."""

XIDS = (79, 62, 31, 94)


class Operations(stateful_faults.Faults, stateful.RuleBasedStateMachine):
    """A run of operations, with a cloud of its own."""

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
        """Arguments of earlier requests to agents."""
        self.strays: set[str] = set()
        """Handles bound again too late, after Cyborg had unbound them."""
        self.foreign: list[tuple[str, int]] = []
        self._places: dict[int, tuple] = {}
        """Where each instance of an outsider is or was, by serial number."""
        self.faulty = False
        """Whether a fault was requested since the agent's start."""
        self.ill: set[str] = set()
        self.changed = False
        """Whether the policies differ from those at the beginning."""
        self.up = 0
        """Operations since the machine was started."""

    @stateful.initialize(luck=PICKS)
    def begin(self, luck):
        # Hypothesis begins with the smallest values, which show little.
        hypothesis.assume(luck)
        self.case.renew()
        self.began = True

    @stateful.rule(luck=PICKS)
    def operate(self, luck):
        # Hypothesis often draws the same value again, and one operation
        # repeated many times shows little.
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
        """Note something for the reader of a failure."""
        self.story.append(what)
        hypothesis.note(what)

    def possible(self):
        """Return the possible operations, each as often as its weight."""
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
        """Create a server; return the outcome."""
        if not self._candidates(profile):
            return 'no candidates'
        try:
            server = self.case.cloud.bind(profile)
        except nova_part.NoCandidates:  # An event has closed it meanwhile.
            return 'no candidates'
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
        # Mostly a profile that is available.
        profile = next(self._promised(profiles), None) if pick % 8 else None
        self._count('bind', self._bind(profile or profiles[0]))

    def unbind(self, pick):
        server, held = _one(self.servers, pick)
        self.case.cloud.unbind(server)
        self.servers.remove((server, held))
        self.old.extend(item.strings for item in held if not item.whole)
        self._count('unbind')

    # Requests that are repeated or too late

    def bind_again(self, pick):
        outcome = self._ask(self.case.create_by_rpc,
                            _one(self._bound(), pick).strings)
        if not (self.faulty or self.ill or self.changed or self.stopped):
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
        """Return earlier requests for handles that no server has now."""
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
        """Return the vGPUs of servers that do not run."""
        running = self._running()
        return [item.what.name for item in self._bound()
                if item.what.name not in running]

    def _running(self):
        # Oldest first, the same order in every run: names differ.
        return [item.name for item in sorted(
            self.case.live().values(), key=lambda item: item.number)
            if item.guest]

    # What happens to the agent and to the machine

    def report(self, _pick):
        self.case.cloud.report()
        self._count('report')
        if not self.disturbed:
            # The next report writes what Cyborg creates in one.
            self.case.cloud.report()
            self.settled = True
            self._check_unhealthy()

    def _check_unhealthy(self):
        """Check that Placement offers nothing on GPUs reported unhealthy."""
        unhealthy = self.case.unhealthy()
        for (gpu, label), left in (
                self.case.capacities().items() if unhealthy else ()):
            if gpu in unhealthy:
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

    def become_unhealthy(self, pick):
        world = self.case.world
        gpu, kind = _one(GPUS, pick), pick // len(GPUS) % 6
        if kind == 0:
            world.lose_gpu(gpu)
        elif kind == 1:
            # Not remapped rows: NVML does not report them for a GPU that
            # has instances.
            world.set_health(
                gpu, recovery=pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
        elif kind == 2:
            world.set_health(gpu, uncorrected=2)
        elif kind == 3:
            world.set_health(gpu, celsius=stateful_world.TOO_HOT)
        else:
            self.case.raise_xid(gpu, _one(XIDS, pick))
        self.ill.add(gpu)
        self._count('unhealthy')

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
        # The agent reports at its start.
        self.report(pick)
        self._count('policies')

    def _configure(self, number):
        self.nvml_answers()
        self.case.configure(number)
        self.faulty = False
        self.changed = number != 0

    # What must hold once nothing is under way

    def be_quiet(self, pick):
        self._quiet()
        self._count('quiet')
        given = list(self._promised(self.case.profiles))
        if given and not self._outsiders_in_the_way():
            # What Placement still offers is available.
            self.case.assertEqual('bound', self._bind(_one(given, pick)))
            self._count('bind', 'bound')

    def _outsiders_in_the_way(self):
        """Whether an outsider's vGPU may be on a function that Cyborg chooses.

        A handle stands for its own function only, and Cyborg chooses the
        next of its handles without asking the agent.
        """
        return any(item.function not in GPUS
                   and ('vgpu', item.number) in self.foreign
                   for item in self.case.live().values())

    def _promised(self, profiles):
        """Return the device profiles for which Placement has capacity."""
        return (profile for profile in profiles
                if self._candidates(profile))

    def _candidates(self, profile):
        try:
            return self.case.cloud.nova.candidates(profile)
        except client.ApiError as error:
            # Placement has no resource class for what was never offered.
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
            # The same agent leaves alone for a minute what has failed.
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
        """Check that Cyborg has exactly what the servers have."""
        arqs = {arq['uuid']: (arq['state'], arq['attach_handle_uuid'])
                for arq in self.case.cloud.cyborg.arqs()}
        held = [item for _, items in self.servers for item in items]
        self.case.assertEqual(
            {item.arq['uuid']: ('Bound', item.handle) for item in held},
            arqs)
        self.case.assertEqual(len(held), self.case.handles_in_use())

    def _check_owners(self, live):
        """Check that everything on the hardware has one known owner."""
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
        # An agent that ends before it can write an unbind leaves it bound.
        self.strays |= (bound - mine) & self.case.given_back()
        self.case.assertLessEqual(bound - mine, self.strays)
        places = self.case.explained()
        there = {item.serial: (address, item.profile_id, item.start)
                 for address, gpu in self.case.state().items()
                 for item in gpu.instances.values()}
        for serial, place in there.items():
            if ('instance', serial) in foreign:
                self._places[serial] = place
            elif place not in places:
                self._follow(serial, place, there)

    def _follow(self, serial, place, there):
        """Find an outsider's instance that a rollback has created again."""
        gone = [item for item in self.foreign if item[0] == 'instance'
                and item[1] not in there and self._places[item[1]] == place]
        self.case.assertEqual(1, len(gone), (place, self.case.journal()))
        self.foreign[self.foreign.index(gone[0])] = 'instance', serial
        self._places[serial] = place

    # The end

    def teardown(self):
        if self.began and sys.exc_info()[0] is None:
            self._end()
        elif self.began:
            # Hypothesis tries again. If the second try ends in another way,
            # it shows nothing of the first.
            print('\n'.join((f'Seed {self.case.seed}:', *self.story,
                             traceback.format_exc())), flush=True)
            self.end_faults()

    def _end(self):
        """Release everything; check that all is as at the beginning."""
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
        left = self.case.everything()
        left['placement'] = self._offered(left['placement'])
        for part in ('placement', 'arqs', 'journal'):
            self.case.assertEqual(self.case.untouched[part], left[part])
        self.case.assertEqual({}, self.case.live())
        for address, gpu in self.case.state().items():
            self.case.assertEqual({}, gpu.instances, address)

    def _offered(self, providers):
        """Leave out providers that stay withdrawn; nothing of them is free.
        """
        offered = {}
        for name, provider in providers.items():
            if names.WITHDRAWN not in provider['traits']:
                offered[name] = provider
                continue
            self.case.assertEqual({0}, {*provider['usages'].values()}, name)
            for inventory in provider['inventories'].values():
                self.case.assertEqual(inventory['total'],
                                      inventory['reserved'], name)
        return offered

    def _count(self, what, outcome=''):
        self.done[what] += 1
        self.up += 1
        if outcome:
            self.done[f'{what}: {outcome}'] += 1


def _one(things, pick):
    return things[pick % len(things)]


def _identity(what):
    """Return what stays the same while a server has the accelerator."""
    if isinstance(what, stateful_world.Live):
        return dataclasses.replace(what, guest=False)
    return what
