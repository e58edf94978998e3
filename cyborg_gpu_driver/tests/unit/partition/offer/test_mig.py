# SPDX-License-Identifier: Apache-2.0

"""MIG-backed vGPUs, several of which share a GPU instance."""

import dataclasses
import random

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition import test_fixed

GFX, GFX_2 = boards.named(boards.RTX_PRO_6000, '1g.24gb+gfx', '2g.48gb+gfx')
MDEV_TYPES = tuple(
    model.MdevType(f'nvidia-{number}', name, 1)
    for number, name, *_more in test_fixed.PRO_6000)


def gpu(*live, used=(), vfs=48):
    """An RTX PRO 6000 with mdev."""
    return boards.gpu(
        boards.RTX_PRO_6000, live, framework=model.Framework.MDEV_VF,
        vgpu_types=test_fixed.types(test_fixed.PRO_6000),
        vfs=boards.vfs(vfs, MDEV_TYPES, used))


def rules(*types, profiles=(), **fields):
    return policy.Policy('p', policy.Mode.MIG, profiles=profiles,
                         vgpu_types=types, **fields)


def by_profile(board, governing, held=()):
    found = {offer.profile: offer for offer in offers.offers(
        board, governing, held)}
    return found


def held(board, *types):
    """The vGPUs of those types, all on the board's first instance."""
    first = spec.of(board.mig.instances[0])
    return tuple(offers.Held(first, type_id) for type_id in types)


class TestWhatIsOffered(base.BaseTestCase):

    def test_by_default_what_fills_an_instance(self):
        self.assertEqual(
            {'1g.24gb+gfx': 'nvidia-11', '2g.48gb+gfx': 'nvidia-15'},
            {name: offer.vgpu_type_id for name, offer in
             by_profile(gpu(), rules()).items()})

    def test_named_types_alone(self):
        for types, expected in (
                (('DC-1-8Q',), ['DC-1-8Q']),
                (('DC-1-24Q',), ['1g.24gb+gfx']),
                (('nvidia-13', 'DC-1-24Q', 'DC-2-24Q'),
                 ['1g.24gb+gfx', 'DC-1-8Q', 'DC-2-24Q'])):
            self.assertEqual(expected, list(by_profile(
                gpu(), rules(*types))), types)

    def test_named_profiles_and_shared_types(self):
        self.assertEqual(
            ['DC-1-12Q', '2g.48gb+gfx'], list(by_profile(gpu(), rules(
                'DC-1-12Q', 'DC-1-24Q', profiles=('2g.48gb+gfx',)))))

    def test_a_shared_one_in_full(self):
        offer, = offers.offers(gpu(), rules('DC-1-8Q'))
        self.assertEqual(
            ('DC-1-8Q', 12, 0, 12, 47, 'nvidia-13', 3, 8192, ''),
            (offer.profile, offer.total, offer.in_use, offer.creatable,
             offer.gi_profile_id, offer.vgpu_type_id, offer.per_instance,
             offer.framebuffer_mib, offer.problem))
        self.assertIs(model.Framework.MDEV_VF, offer.framework)
        self.assertEqual(12, len(set(offer.parents)))

    def test_totals(self):
        for board, governing, expected in (
                (gpu(vfs=5), rules('DC-1-8Q'), 5),
                (gpu(), rules('DC-1-8Q', max_instances=(('DC-1-8Q', 2),)),
                 2),
                (gpu(), rules('DC-1-24Q', max_instances=(
                    ('nvidia-11', 3),)), 3)):
            offer, = offers.offers(board, governing)
            self.assertEqual((expected, expected),
                             (offer.total, offer.creatable))

    def test_unknown_types(self):
        self.assertIn('no vGPU type DC-1-7Q', by_profile(
            gpu(), rules('DC-1-8Q', 'DC-1-7Q'))['DC-1-7Q'].problem)
        self.assertEqual(['1g.24gb+gfx'], list(by_profile(
            gpu(), rules('A100-1-5C', profiles=('1g.24gb+gfx',)))))

    def test_handles_have_functions_of_their_own(self):
        found = offers.offers(gpu(), rules('DC-1-8Q', 'DC-1-12Q',
                                           'DC-1-24Q'))
        parents = [parent for offer in found for parent in offer.parents]
        self.assertEqual(12 + 8 + 4, len(set(parents)))

    def test_what_never_meets_shares_functions(self):
        whole = boards.named(boards.RTX_PRO_6000, '4g.96gb+gfx')
        board = dataclasses.replace(
            boards.gpu(whole), framework=model.Framework.MDEV_VF,
            vfs=boards.vfs(12), vgpu_types=test_fixed.types((
                (21, 'DC-4-8Q', 8, 12, 32, 12),
                (22, 'DC-4-8A', 8, 12, 32, 12),
                (23, 'DC-4-24Q', 24, 4, 32, 4),
                (24, 'DC-4-96Q', 96, 1, 32, 1))))
        found = by_profile(board, rules('DC-4-8Q', 'DC-4-96Q'))
        self.assertEqual(found['DC-4-8Q'].parents[:1],
                         found['4g.96gb+gfx'].parents)
        # vGPUs of one size lie side by side, and need distinct functions.
        more = dataclasses.replace(board, vfs=boards.vfs(20))
        found = by_profile(more, rules('DC-4-8Q', 'DC-4-8A'))
        self.assertEqual(20, len({parent for offer in found.values()
                                  for parent in offer.parents}))


class TestRoom(base.BaseTestCase):

    TYPES = ('DC-1-8Q', 'DC-1-8A', 'DC-1-12Q', 'DC-1-24Q', 'DC-2-48Q')

    def creatable(self, board, *there):
        found = by_profile(board, rules(*self.TYPES), held(board, *there)
                           if there else ())
        return {offer.profile: offer.creatable for offer in found.values()}

    def test_on_an_instance_of_ours(self):
        board = gpu(('1g.24gb+gfx', 9), used=['nvidia-13'])
        self.assertEqual(
            {'DC-1-8Q': 11, 'DC-1-8A': 11, 'DC-1-12Q': 6, '1g.24gb+gfx': 3,
             '2g.48gb+gfx': 1}, self.creatable(board, 'nvidia-13'))

    def test_instances_that_take_no_more(self):
        for live, used, there, expected in (
                ('1g.24gb+gfx', 3 * ['nvidia-13'], 3 * ['nvidia-13'], 9),
                # An instance of another tool.
                ('1g.24gb+gfx', ['nvidia-13'], [], 9),
                # vGPUs of another size.
                ('1g.24gb+gfx', ['nvidia-13', 'nvidia-12'],
                 ['nvidia-13', 'nvidia-12'], 9),
                ('1g.24gb+gfx', ['nvidia-13', 'nvidia-12'],
                 ['nvidia-13', 'nvidia-99'], 9),
                # An instance of another profile.
                ('2g.48gb+gfx', ['nvidia-13'], ['nvidia-13'], 6)):
            board = gpu((live, 9 if live.startswith('1g') else 0), used=used)
            self.assertEqual(
                expected, self.creatable(board, *there)['DC-1-8Q'], there)

    def test_what_the_driver_says_is_there_counts(self):
        board = boards.gpu(
            boards.RTX_PRO_6000, [('1g.24gb+gfx', 9)],
            framework=model.Framework.VENDOR_VFIO,
            vgpu_types=test_fixed.types(test_fixed.PRO_6000),
            vfs=test_fixed.functions(48, [
                (14, {'gpu_instance_id': 7})] * 2))
        found = by_profile(board, rules('DC-1-8Q'),
                           held(board, 'nvidia-14'))
        self.assertEqual(10, found['DC-1-8Q'].creatable)

    def test_nothing_in_the_place_of_a_missing_one(self):
        """A restore has failed, or another tool has destroyed it."""
        there = held(gpu(('1g.24gb+gfx', 9)), 'nvidia-13')
        found = by_profile(gpu(), rules(*self.TYPES), there)
        self.assertEqual(
            {'DC-1-8Q': 9, 'DC-1-8A': 9, 'DC-1-12Q': 6, '1g.24gb+gfx': 3,
             '2g.48gb+gfx': 1},
            {name: offer.creatable for name, offer in found.items()})

    def test_empty_functions_are_a_limit(self):
        board = gpu(vfs=14, used=['nvidia-5'] * 10)
        offer, = offers.offers(board, rules('DC-1-8Q'))
        self.assertEqual((12, 2), (offer.total, offer.creatable))

    def test_in_use(self):
        board = gpu(('1g.24gb+gfx', 9), used=['nvidia-13', 'nvidia-14'])
        found = by_profile(board, rules(*self.TYPES),
                           held(board, 'nvidia-13', 'nvidia-14'))
        self.assertEqual(
            {'DC-1-8Q': 1, 'DC-1-8A': 1, 'DC-1-12Q': 0, '1g.24gb+gfx': 1,
             '2g.48gb+gfx': 0},
            {name: offer.in_use for name, offer in found.items()})

    @hypothesis.given(st.integers(0, 2 ** 16), st.integers(4, 48))
    def test_promises_are_kept_and_add_up(self, seed, vfs):
        """After random binds, ``creatable`` is exactly what can be made."""
        chance = random.Random(seed)
        board = gpu(vfs=vfs)
        governing = rules(*self.TYPES, 'DC-2-24Q')
        there, bound = (), []
        totals = {name: offer.total for name, offer in
                  by_profile(board, governing).items()}
        for _ in range(16):
            found = by_profile(board, governing, there)
            self.assertEqual(totals, {name: offer.total
                                      for name, offer in found.items()})
            for offer in found.values():
                self.assertLessEqual(
                    bound.count(offer.profile) + offer.creatable,
                    offer.total)
                self.assertEqual(offer.creatable > 0, bound.count(
                    offer.profile) < offer.total and _place(
                        board, offer, there) is not None, offer)
            open_ = [offer for offer in found.values() if offer.creatable]
            if not open_:
                break
            offer = chance.choice(open_)
            place = _place(board, offer, there)
            bound.append(offer.profile)
            there += (offers.Held(
                spec.MigInstanceSpec(place, offer.gi_profile_id),
                offer.vgpu_type_id),)
            board = _bound(board, offer, place)


def _place(board, offer, there):
    """Return the placement of one more; None if it cannot be made."""
    if not _empty(board, offer):
        return None
    sizes = {entry.mdev_type_id: entry.framebuffer_mib
             for entry in board.vgpu_types}
    for instance in board.mig.instances:
        on_it = [sizes[item.type_id] for item in there
                 if item.instance == spec.of(instance)]
        if (offer.per_instance > len(on_it)
                and instance.profile_id == offer.gi_profile_id
                and set(on_it) == {offer.framebuffer_mib}):
            return instance.placement
    grid = geometry.Geometry(board.mig.profiles)
    return geometry.choose_start(
        grid, grid.occupancy_of(board.mig.instances),
        board.mig.profile_by_id(offer.gi_profile_id))


def _empty(board, offer):
    """The empty functions that a handle of an offer may name."""
    return [function for function in board.vfs
            if function.address in offer.parents and not function.mdevs]


def _bound(board, offer, place):
    instances = board.mig.instances
    if place not in [instance.placement for instance in instances]:
        instances += (model.GpuInstance(place, offer.gi_profile_id,
                                        len(instances)),)
    empty = _empty(board, offer)[0]
    used = dataclasses.replace(empty, mdevs=(model.Mdev(
        f'mdev-{empty.index}', empty.address, offer.vgpu_type_id),))
    return dataclasses.replace(
        board, mig=dataclasses.replace(board.mig, instances=instances),
        vfs=tuple(used if function is empty else function
                  for function in board.vfs))


class TestVendorVfio(base.BaseTestCase):

    def gpu(self, *carried, live=()):
        return test_fixed.pro_6000(*carried, live=live, vfs=48)

    def test_functions_that_carry_one_are_not_empty(self):
        offer, = offers.offers(self.gpu(*[5] * 4), rules('DC-1-8Q'))
        self.assertEqual(8, offer.creatable)

    def test_what_is_creatable_now_is_no_limit_to_what_is_cut(self):
        # The driver lists only the types that a live instance takes.
        offer, = offers.offers(
            self.gpu(*[(0, {'creatable_types': ()})] * 48),
            rules('DC-1-8Q'))
        self.assertEqual(12, offer.creatable)
