# SPDX-License-Identifier: Apache-2.0

"""Placement ids of mixed sizes, compared with every alternative."""

import dataclasses
import functools

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import vgpu_type
from cyborg_gpu_driver.tests.unit.partition import boards

# Placement ids by region and size, as in the vGPU user guide.
REGIONS = {
    24: {24: (0,), 12: (0, 12), 8: (0, 16), 6: (0, 6, 12, 18),
         4: (0, 8, 12, 20), 3: tuple(range(0, 24, 3)),
         2: (0, 4, 6, 10, 12, 16, 18, 22),
         1: (0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23)},
    40: {40: (0,), 20: (0, 20), 10: (0, 10, 20, 30), 8: (0, 12, 20, 32),
         5: tuple(range(0, 40, 5)), 4: (0, 6, 10, 16, 20, 26, 30, 36)},
    80: {80: (0,), 40: (0, 40), 20: (0, 20, 40, 60), 16: (0, 24, 40, 64),
         10: tuple(range(0, 80, 10)),
         8: (0, 12, 20, 32, 40, 52, 60, 72), 5: tuple(range(0, 80, 5)),
         4: (0, 6, 10, 16, 20, 26, 30, 36, 40, 46, 50, 56, 60, 66, 70, 76)},
}
HALVES = {24: (24, 12, 6, 3), 40: (40, 20, 10, 5)}
"""The sizes that are 1, 1/2, 1/4 and 1/8 of the region."""


def kind(region, size, taken=()):
    """A type as NVML shows it when some placements are taken."""
    ids = REGIONS[region][size]
    return model.VgpuType(
        size, f'X-{size}Q', 'Quadro', size * 1024, len(ids),
        placement_size=size, placements=ids, free_placements=tuple(
            start for start in ids if not clashes(start, size, taken)))


def clashes(start, size, taken):
    return any(start < other + length and other < start + size
               for other, length in taken)


def kinds(region, taken=(), sizes=None):
    return [kind(region, size, taken)
            for size in sizes or REGIONS[region]]


def choose(region, taken, size, sizes=None):
    return vgpu_type.choose(kinds(region, taken, sizes),
                            kind(region, size, taken))


def left(region, taken, sizes):
    """How many free placements each size has, without the other sizes."""
    return tuple(len(kind(region, size, taken).free_placements)
                 for size in sizes)


class TestChoose(base.BaseTestCase):

    def test_beside_what_is_there(self):
        for region, taken, size, expected in (
                (40, [], 40, 0), (40, [], 5, 0),
                (40, [(0, 5)], 5, 5), (40, [(0, 5), (5, 5)], 10, 10),
                (40, [(20, 5)], 10, 30), (40, [(0, 20)], 20, 20),
                (40, [(0, 20)], 40, None), (40, [(0, 40)], 4, None),
                (24, [(12, 3)], 3, 15), (24, [(12, 3)], 6, 18)):
            self.assertEqual(expected, choose(region, taken, size),
                             (region, taken, size))

    def test_only_what_may_be_asked_for_counts(self):
        taken = [(20, 10)]
        # Placement 30 keeps the other half for a 20.
        self.assertEqual(30, choose(40, taken, 10))
        self.assertEqual(30, choose(40, taken, 10, sizes=(10, 20)))
        # Without a 20 all placements are equal, and the lowest wins.
        self.assertEqual(0, choose(40, taken, 10, sizes=(5, 10)))

    def test_what_is_promised_is_taken(self):
        free = kinds(40)
        wanted = kind(40, 20)
        self.assertEqual(20, vgpu_type.choose(
            free, wanted, [model.Placement(0, 4)]))
        self.assertEqual(0, vgpu_type.choose(
            free, wanted, [model.Placement(20, 20)]))
        self.assertIsNone(vgpu_type.choose(
            free, wanted, [model.Placement(16, 8)]))

    def test_what_was_not_read_is_not_free(self):
        wanted = dataclasses.replace(kind(40, 20), free_placements=None)
        self.assertIsNone(vgpu_type.choose([wanted], wanted))

    def test_two_series_are_one_size(self):
        queue, compute = kind(40, 10), dataclasses.replace(
            kind(40, 10), type_id=999, name='X-10C')
        self.assertEqual(0, vgpu_type.choose(
            [queue, compute], compute))

    def test_no_order_of_arrivals_strands_a_large_one(self):
        """After any arrivals, as many of every size fit as is possible."""
        for region, sizes in HALVES.items():
            best = functools.cache(
                lambda counts, region=region, sizes=sizes:
                self._best(region, sizes, counts))
            seen = set()
            todo = [((), (0,) * len(sizes))]
            while todo:
                taken, counts = todo.pop()
                if taken in seen:
                    continue
                seen.add(taken)
                self.assertEqual(best(counts), left(region, taken, sizes),
                                 (region, taken))
                for number, size in enumerate(sizes):
                    start = choose(region, taken, size, sizes)
                    if start is not None:
                        todo.append((
                            tuple(sorted((*taken, (start, size)))),
                            (*counts[:number], counts[number] + 1,
                             *counts[number + 1:])))
            self.assertGreater(len(seen), 30)

    def _best(self, region, sizes, counts):
        """The most of each size that still fits, over every arrangement."""
        found = [left(region, taken, sizes) for taken in
                 arrangements(region, sizes, counts, ())]
        return tuple(max(column) for column in zip(*found, strict=True))

def arrangements(region, sizes, counts, taken):
    if not any(counts):
        yield taken
        return
    number = next(number for number, count in enumerate(counts) if count)
    size = sizes[number]
    above = max((start for start, other in taken if other == size),
                default=-1)
    for start in kind(region, size, taken).free_placements:
        if start > above:
            yield from arrangements(
                region, sizes, (*counts[:number], counts[number] - 1,
                                *counts[number + 1:]),
                (*taken, (start, size)))


def nvml(type_id, name, framebuffer, maximum, profile_id=None):
    return model.VgpuType(type_id, name, 'Compute', framebuffer, maximum,
                          profile_id)


class TestTypesOf(base.BaseTestCase):

    def test_nvml_and_sysfs_are_one(self):
        gpu = boards.gpu(
            boards.A100_40,
            vgpu_types=(nvml(474, 'A100-1-5C', 4864, 7, 19),),
            vfs=boards.vfs(2, (
                model.MdevType('nvidia-474', 'A100-1-5C', 1, 1),
                model.MdevType('nvidia-91', 'A100-4C', 1, 10, 4096))))
        self.assertEqual((
            model.VgpuType(91, 'A100-4C', '', 4096, 10),
            nvml(474, 'A100-1-5C', 4864, 7, 19),
        ), vgpu_type.types_of(gpu))

    def test_on_the_gpu_itself(self):
        gpu = boards.gpu((), mdev_types=(
            model.MdevType('nvidia-231', 'T4-2B', 8),))
        self.assertEqual((model.VgpuType(231, 'T4-2B', '', 0, None),),
                         vgpu_type.types_of(gpu))

    def test_mig_backed(self):
        for name, profile_id, expected in (
                ('A100-1-5C', None, True), ('A100-1-5C', 19, True),
                ('A100-4C', None, False), ('what is this', None, False),
                ('what is this', 0, True)):
            self.assertIs(expected, vgpu_type.is_mig_backed(
                nvml(1, name, 0, None, profile_id)), name)

    def test_of_mode(self):
        gpu = boards.gpu(boards.A100_40, vgpu_types=(
            nvml(468, 'A100-4C', 4096, 10),
            nvml(474, 'A100-1-5C', 4864, 7, 19)))
        for mode, expected in ((policy.Mode.VGPU, 'A100-4C'),
                               (policy.Mode.MIG, 'A100-1-5C')):
            entry, = vgpu_type.of_mode(gpu, mode)
            self.assertEqual(expected, entry.name)

    def test_most(self):
        for told, capped, expected in (
                (7, (), 7), (None, (), None), (0, (), None),
                (7, (('T4-2B', 5),), 5), (7, (('nvidia-231', 9),), 7),
                (0, (('nvidia-231', 9),), 9), (7, (('T4-1B', 1),), 7)):
            rules = policy.Policy('x', policy.Mode.VGPU,
                                  max_instances=capped)
            self.assertEqual(expected, vgpu_type.most(
                nvml(231, 'T4-2B', 0, told), rules))

    def test_as_large_as(self):
        two, other, four = (
            nvml(number, '', size * 1024, None)
            for number, size in enumerate((2, 2, 4)))
        self.assertTrue(two.is_as_large_as(other))
        self.assertFalse(two.is_as_large_as(four))
        unknown = [nvml(number, '', 0, None) for number in (1, 2)]
        self.assertFalse(unknown[0].is_as_large_as(unknown[1]))
        self.assertTrue(unknown[0].is_as_large_as(unknown[0]))


class TestBacking(base.BaseTestCase):

    GFX, = boards.named(boards.RTX_PRO_6000, '1g.24gb+gfx')

    def types(self, *rows):
        return [nvml(number, name, framebuffer, None, profile_id)
                for number, name, framebuffer, profile_id in rows]

    def test_largest_framebuffer_then_series(self):
        types = self.types(
            (1, 'DC-1-12C', 12288, 47), (2, 'DC-1-24A', 24576, 47),
            (3, 'DC-1-24B', 24576, 47), (4, 'DC-1-24Q', 24576, 47),
            (5, 'DC-1-24C', 24576, 47), (6, 'DC-2-48C', 49152, 35))
        for expected in ('DC-1-24C', 'DC-1-24Q', 'DC-1-24B', 'DC-1-24A',
                         'DC-1-12C'):
            found = vgpu_type.backing(types, self.GFX)
            self.assertEqual(expected, found.name)
            types.remove(found)
        self.assertIsNone(vgpu_type.backing(types, self.GFX))

    def test_preferred(self):
        types = self.types(
            (1, 'DC-1-12C', 12288, 47), (2, 'DC-1-24A', 24576, 47),
            (6, 'DC-2-48C', 49152, 35))
        for preferred, expected in (
                (('DC-1-12C',), 'DC-1-12C'), (('nvidia-1',), 'DC-1-12C'),
                (('DC-2-48C', 'DC-1-12C', 'DC-1-24A'), 'DC-1-12C'),
                (('DC-2-48C',), 'DC-1-24A')):
            self.assertEqual(expected, vgpu_type.backing(
                types, self.GFX, preferred).name, preferred)

    def test_what_shares_an_instance_does_not_back_its_profile(self):
        types = [model.VgpuType(size, f'DC-1-{size}Q', '', size * 1024,
                                None, 47, per_instance)
                 for size, per_instance in ((8, 3), (12, 2), (24, 1))]
        self.assertEqual((types[2],), vgpu_type.filling(types, self.GFX))
        self.assertEqual(types[2], vgpu_type.backing(
            types, self.GFX, ('DC-1-8Q',)))
        # The largest type fills the instance, whatever NVML says.
        self.assertEqual(types[1], vgpu_type.backing(types[:2], self.GFX))

    def test_equal_types_go_by_number(self):
        types = self.types((100, 'DC-1-24Q', 24576, 47),
                           (99, 'DC-1-24QGFX', 24576, 47))
        for order in (types, types[::-1]):
            self.assertEqual(99, vgpu_type.backing(
                order, self.GFX).type_id)

    def test_profile_id_0_is_a_profile(self):
        whole = boards.A100_40[-1]
        self.assertEqual(0, whole.profile_id)
        sliced, = self.types((1, 'A100-40C', 40960, None))
        self.assertIsNone(vgpu_type.backing([sliced], whole))
        backed, = self.types((2, 'A100-7-40C', 40960, 0))
        self.assertEqual(backed, vgpu_type.backing([sliced, backed],
                                                   whole))
        smaller, = self.types((3, 'A100-7-20C', 20480, 0))
        self.assertEqual(smaller, vgpu_type.backing([smaller], whole))

    def test_by_name_alone(self):
        types = self.types(
            (474, 'A100-1-5C', 0, None), (706, 'A100-1-5CME', 0, None),
            (480, 'A100-1-10C', 0, None), (475, 'A100-2-10C', 0, None),
            (468, 'A100-5C', 0, None))
        found = {profile.name: vgpu_type.backing(types, profile)
                 for profile in boards.A100_40}
        self.assertEqual(
            {'1g.5gb': 'A100-1-5C', '1g.5gb+me': 'A100-1-5CME',
             '1g.10gb': 'A100-1-10C', '2g.10gb': 'A100-2-10C'},
            {name: entry.name for name, entry in found.items() if entry})

    def test_by_name_alone_with_attributes(self):
        types = self.types(
            (1, 'DC-1-24QNOME', 0, None), (2, 'DC-1-24QMEALL', 0, None),
            (3, 'DC-1-24QGFX', 0, None))
        for profile, type_id in (('1g.24gb-me', 1), ('1g.24gb+me.all', 2),
                                 ('1g.24gb+gfx', 3)):
            profile, = boards.named(boards.RTX_PRO_6000, profile)
            self.assertEqual(
                type_id, vgpu_type.backing(types, profile).type_id)


CLAIMS = st.lists(st.builds(vgpu_type.Demand, st.integers(0, 20),
                            st.integers(0, 3)), max_size=8)


def named(count, *claims):
    """The numbers of the functions that each claim gets."""
    vfs = boards.vfs(count)
    index = {function.address: function.index for function in vfs}
    return [[index[address] for address in given]
            for given in vgpu_type.assign(vfs, claims)]


class TestAssign(base.BaseTestCase):

    def test_distinct_while_there_are_enough(self):
        self.assertEqual([[0, 1, 2], [5], [3, 4]], named(
            6, vgpu_type.Demand(3), vgpu_type.Demand(1, 'alone'),
            vgpu_type.Demand(2)))

    def test_who_is_alone_shares_first(self):
        self.assertEqual([[0], [0, 1, 2], [3, 4]], named(
            5, vgpu_type.Demand(1, 'alone'), vgpu_type.Demand(3),
            vgpu_type.Demand(2)))

    def test_each_group_has_all_of_them(self):
        self.assertEqual([[0, 1], [0, 1, 2], [2, 3], [3]], named(
            4, vgpu_type.Demand(2, 2), vgpu_type.Demand(3, 1),
            vgpu_type.Demand(2, 2), vgpu_type.Demand(1, 1)))

    def test_the_last_of_a_group_get_what_is_left(self):
        self.assertEqual([[0, 1], [2, 3], [], [0, 1, 2, 3]], named(
            4, vgpu_type.Demand(3), vgpu_type.Demand(2), vgpu_type.Demand(3),
            vgpu_type.Demand(6, 'alone')))

    def test_order_of_the_functions_does_not_matter(self):
        vfs = boards.vfs(12)
        claims = [vgpu_type.Demand(7), vgpu_type.Demand(3)]
        self.assertEqual(vgpu_type.assign(vfs, claims),
                         vgpu_type.assign(vfs[::-1], claims))

    @hypothesis.given(st.integers(0, 20), CLAIMS)
    def test_none_of_a_group_share(self, count, claims):
        given = named(count, *claims)
        for group in {claim.group for claim in claims}:
            members = [number for number, claim in enumerate(claims)
                       if claim.group == group]
            there = [function for number in members
                     for function in given[number]]
            self.assertEqual(len(there), len(set(there)))
            self.assertEqual(
                min(count, sum(claims[number].total for number in members)),
                len(there))

    @hypothesis.given(st.integers(0, 20), CLAIMS)
    def test_nothing_is_shared_without_need(self, count, claims):
        there = [function for functions_ in named(count, *claims)
                 for function in functions_]
        if len(there) <= count:
            self.assertEqual(len(there), len(set(there)))


class TestEmpty(base.BaseTestCase):

    def test_only_the_offers_own_count(self):
        gpu = boards.gpu((), mig=None, vfs=boards.vfs(
            4, used=('nvidia-1',)))
        first, second, third, _ = (vf.address for vf in gpu.vfs)
        self.assertEqual(
            [second, third],
            [vf.address for vf in vgpu_type.empty(
                gpu, (first, second, third))])
