# SPDX-License-Identifier: Apache-2.0

"""Changes from any layout to any layout, on the simulated hardware.

The hardware is the judge: a test makes the first state on it call by call,
and reads the last state from it.
"""

import collections
import itertools
import random

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.program import layouts

_WALKS = scope.examples(150)
"""Walks on each board."""


class BoardCase(layouts.LayoutCase):

    BASE = ('1g', '2g', '3g', '4g', '7g')
    """Profiles that the classic figures count, by their first part."""
    PACKABLE = 37

    def setUp(self):
        super().setUp()
        self.grid = geometry.Geometry(self.gpu.mig.profiles)
        self.empty = self.saved()
        self.names = {profile.profile_id: profile.name
                      for profile in self.gpu.mig.profiles}

    def base(self):
        """Return the first profile of each size without attributes."""
        found = {}
        for profile in self.gpu.mig.profiles:
            size = profile.name.partition('.')[0]
            if profile.name.endswith('gb') and size in self.BASE:
                found.setdefault(size, profile)
        return tuple(found.values())

    def held(self):
        """Return how many instances each profile has, by name."""
        return dict(collections.Counter(
            self.names[item[2]] for item in self.truth()[2]))

    def check_every_multiset_in_every_order(self):
        multisets = boards.packable(self.grid, self.base())
        self.assertEqual(self.PACKABLE, len(multisets))
        tried = 0
        orders = [order for multiset in sorted(multisets)
                  for order in itertools.permutations(multiset)]
        for order in scope.some(orders):
            wanted = {self.names[number]: count for number, count in order}
            self.load(self.empty)
            self.machine.reset_calls()
            self.apply(**wanted)
            self.assertEqual(wanted, self.held())
            self.assertEqual(0, self.machine.calls['nvmlGpuInstanceDestroy'])
            tried += 1
        self.say('layouts applied', tried)

    def say(self, what, number):
        print(f'{self.MACHINE}: {number} {what}')

    def check_walks(self):
        """Walk from sampled states, partly in use, to sampled layouts."""
        chance = random.Random(self.MACHINE)
        occupancies = sorted(boards.states(self.grid),
                             key=lambda item: item.taken)
        multisets = sorted(boards.packable(self.grid)) + [()]
        reached = 0
        for _ in range(_WALKS):
            self.load(self.empty)
            self._make(chance.choice(occupancies))
            used = self._use(chance)
            wanted = {self.names[number]: count for number, count
                      in chance.choice(multisets)}
            reached += self._walk(wanted, used)
        self.assertGreater(reached, _WALKS // 4)
        self.say('walks reached their layout', reached)

    def _make(self, occupancy):
        for profile_id, place in occupancy.taken:
            number, _, _ = privileged.create_gpu_instance(
                str(self.address), profile_id, place.start, place.size)
            profile = self.gpu.mig.profile_by_id(profile_id)
            privileged.create_compute_instance(
                str(self.address), profile_id, number, None, profile.slices)

    def _use(self, chance):
        """Run processes on some instances; return those and their serials."""
        with self.machine.operation():
            instances = dict(self.machine.gpu(self.address).state.instances)
        used = set()
        for number, item in sorted(instances.items()):
            if chance.random() < 0.2:
                self.machine.add_process(
                    str(self.address), 4000 + number, instance=number,
                    compute=min(item.compute))
                used.add(((item.start, item.profile_id), item.serial))
        return used

    def _walk(self, wanted, used):
        """Apply a layout, and check what became of each instance."""
        before, serials = self.truth(), self.serials()
        try:
            kept = {(item.instance.placement.start,
                     item.instance.profile_id)
                    for item in self.applier.plan(
                        self.transactions.read(self.gpu),
                        self.wanted(**wanted)).keep}
            self.apply(**wanted)
        except exception.ChangeRefused as error:
            self.assertTrue(used, error)
            self.assertEqual((before, serials),
                             (self.truth(), self.serials()))
            return False
        after = self.serials()
        self.assertEqual(wanted, self.held())
        self.assertLessEqual(used, set(after.items()))
        self.assertLessEqual(used, {(place, serials[place])
                                    for place in kept})
        for place in kept:
            self.assertEqual(serials[place], after[place])
        planned = self.applier.plan(self.transactions.read(self.gpu),
                                    self.wanted(**wanted))
        self.assertTrue(planned.is_empty)
        return True


class A100Test(BoardCase):

    MACHINE = 'dgx-a100-80'

    def test_multisets(self):
        self.check_every_multiset_in_every_order()

    def test_walks(self):
        self.check_walks()


class H100Test(A100Test):

    MACHINE = 'hgx-h100'


class H200Test(A100Test):

    MACHINE = 'hgx-h200'


class A30Test(A100Test):

    MACHINE = 'a30x4'
    PACKABLE = 9


class RtxPro6000Test(A100Test):

    MACHINE = 'rtxpro6000x8'
    PACKABLE = 9


del BoardCase
