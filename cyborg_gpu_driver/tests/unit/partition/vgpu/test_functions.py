# SPDX-License-Identifier: Apache-2.0

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.partition import vgpu_type
from cyborg_gpu_driver.tests.unit.partition import boards

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
