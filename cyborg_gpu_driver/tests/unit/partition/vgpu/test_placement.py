# SPDX-License-Identifier: Apache-2.0

"""Placement ids of mixed sizes, compared with every alternative."""

import dataclasses
import functools

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import vgpu_type

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
