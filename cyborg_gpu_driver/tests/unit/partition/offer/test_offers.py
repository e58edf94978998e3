# SPDX-License-Identifier: Apache-2.0

import dataclasses
import random

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition import test_geometry

MIG = policy.Policy('slices', policy.Mode.MIG)
WHOLE = policy.Policy('whole', policy.Mode.PASSTHROUGH)
PF = model.PciAddress(0, 7, 0, 0)


def backed(*rows):
    return tuple(
        model.VgpuType(number, name, 'Compute', framebuffer, maximum,
                       profile_id)
        for number, name, framebuffer, maximum, profile_id in rows)


A100_TYPES = backed(
    (468, 'A100-4C', 4096, 10, None), (473, 'A100-40C', 40960, 1, None),
    (474, 'A100-1-5C', 4864, 7, 19), (475, 'A100-2-10C', 9856, 3, 14),
    (476, 'A100-3-20C', 19968, 2, 9), (477, 'A100-4-20C', 19968, 1, 5),
    (478, 'A100-7-40C', 40192, 1, 0), (706, 'A100-1-5CME', 4864, 1, 20))
A100_MDEV_TYPES = tuple(
    model.MdevType(entry.mdev_type_id, entry.name, 1)
    for entry in A100_TYPES)


def a100(*live, vfs=16, **fields):
    """An A100-40 in MIG mode with VFs and mdev."""
    return boards.gpu(boards.A100_40, live, **{
        'framework': model.Framework.MDEV_VF, 'vgpu_types': A100_TYPES,
        'vfs': boards.vfs(vfs, A100_MDEV_TYPES), 'sriov_totalvfs': 16,
        'sriov_numvfs': vfs, **fields})


def t4(used=(), available=16, **fields):
    """A T4, whose mdevs are children of the GPU itself."""
    return boards.gpu((), **{
        'mig': None, 'framework': model.Framework.MDEV_PF,
        'mdev_types': (
            model.MdevType('nvidia-230', 'T4-1B', available, 16),
            model.MdevType('nvidia-231', 'T4-2B', available, 8)),
        'mdevs': tuple(model.Mdev(f'mdev-{number}', PF, type_id)
                       for number, type_id in enumerate(used)),
        **fields})


def vgpu(*types):
    return policy.Policy('desktops', policy.Mode.VGPU, vgpu_types=types)


def by_profile(gpu, rules):
    return {offer.profile: offer for offer in offers.offers(gpu, rules)}


class TestMig(base.BaseTestCase):

    def test_off(self):
        self.assertEqual((), offers.offers(
            a100(), policy.Policy('none', policy.Mode.OFF)))

    def test_empty_a100(self):
        found = by_profile(a100(), MIG)
        self.assertEqual(
            {'1g.5gb': (7, 0, 7, 19, 'nvidia-474'),
             '1g.5gb+me': (1, 0, 1, 20, 'nvidia-706'),
             '2g.10gb': (3, 0, 3, 14, 'nvidia-475'),
             '3g.20gb': (2, 0, 2, 9, 'nvidia-476'),
             '4g.20gb': (1, 0, 1, 5, 'nvidia-477'),
             '7g.40gb': (1, 0, 1, 0, 'nvidia-478')},
            {name: (offer.total, offer.in_use, offer.creatable,
                    offer.gi_profile_id, offer.vgpu_type_id)
             for name, offer in found.items()})
        self.assertEqual({''}, {offer.problem for offer in found.values()})

    def test_what_lies_there_counts(self):
        found = by_profile(
            a100(('1g.5gb', 6), ('1g.10gb', 0), ('2g.10gb', 4)), MIG)
        self.assertEqual(
            {'1g.5gb': (1, 2), '1g.5gb+me': (0, 1), '2g.10gb': (1, 1),
             '3g.20gb': (0, 0), '4g.20gb': (0, 0), '7g.40gb': (0, 0)},
            {name: (offer.in_use, offer.creatable)
             for name, offer in found.items()})

    def test_named_profiles(self):
        rules = policy.Policy('some', policy.Mode.MIG,
                              profiles=('3g.20gb', '1g.5gb', '1g.10gb'))
        found = by_profile(a100(), rules)
        self.assertEqual(['1g.5gb', '1g.10gb', '3g.20gb'], list(found))
        self.assertEqual('no vGPU type of this GPU uses 1g.10gb',
                         found['1g.10gb'].problem)
        self.assertEqual('', found['3g.20gb'].problem)

    def test_unknown_profile(self):
        rules = policy.Policy('some', policy.Mode.MIG,
                              profiles=('1g.6gb', '2g.10gb', '1g.6gb'))
        found = offers.offers(a100(), rules)
        self.assertEqual([('2g.10gb', 3), ('1g.6gb', 0)],
                         [(offer.profile, offer.total) for offer in found])
        self.assertEqual(
            'this GPU has no profile 1g.6gb; it has 1g.5gb, 1g.5gb+me, '
            '1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb', found[1].problem)

    def test_problems(self):
        for gpu, said in (
                (a100(vfs=0), 'no virtual functions'),
                (a100(framework=model.Framework.NONE), 'not support vGPUs'),
                (a100(enabled=False), 'MIG mode is off'),
                (dataclasses.replace(a100(), mig=model.Mig(
                    False, True, boards.A100_40)), 'until the GPU is')):
            found = offers.offers(gpu, MIG)
            self.assertEqual(6, len(found))
            for offer in found:
                self.assertIn(said, offer.problem)
                self.assertEqual(
                    gpu.mig.profile_by_id(
                        offer.gi_profile_id).max_instances, offer.creatable)

    def test_no_mig(self):
        offer, = offers.offers(t4(), MIG)
        self.assertEqual(('mig', 0, 'this GPU does not support MIG'),
                         (offer.profile, offer.total, offer.problem))
        unseen = boards.gpu((), mig=None, visible_to_nvml=False,
                            driver='vfio-pci')
        offer, = offers.offers(unseen, policy.Policy(
            'some', policy.Mode.MIG, profiles=('1g.5gb',)))
        self.assertEqual('1g.5gb', offer.profile)
        self.assertIn('driver vfio-pci', offer.problem)

    @hypothesis.given(st.integers(1, 20), st.integers(0, 12),
                      st.integers(0, 2 ** 16), st.booleans())
    def test_handles_do_not_follow_what_is_in_use(
            self, count, steps, seed, enabled):
        chance = random.Random(seed)
        _grid, occupancy = test_geometry.filled(
            boards.A100_40, steps, chance)
        empty = a100(vfs=count)
        used = dataclasses.replace(
            empty,
            vfs=boards.vfs(count, A100_MDEV_TYPES,
                           ['nvidia-474'] * chance.randint(0, count)),
            mig=dataclasses.replace(
                empty.mig, enabled=enabled, instances=tuple(
                    model.GpuInstance(place, profile_id, number)
                    for number, (profile_id, place) in
                    enumerate(occupancy.taken))))
        for before, after in zip(offers.offers(empty, MIG),
                                 offers.offers(used, MIG), strict=True):
            self.assertEqual(
                before, dataclasses.replace(
                    after, in_use=0, creatable=before.creatable,
                    problem=before.problem))
            self.assertTrue(
                0 <= after.creatable <= after.total, after)


class TestVgpuOnGpu(base.BaseTestCase):

    def test_by_name_and_by_type(self):
        for text in ('T4-2B', 'nvidia-231'):
            self.assertEqual((offers.Offer(
                PF, 'desktops', policy.Mode.VGPU, 'T4-2B', total=8,
                in_use=0, creatable=8, vgpu_type_id='nvidia-231',
                parents=(PF,), framework=model.Framework.MDEV_PF),),
                offers.offers(t4(), vgpu(text)))

    def test_in_use(self):
        found = by_profile(t4(['nvidia-231'] * 3, 5), vgpu('T4-2B', 'T4-1B'))
        self.assertEqual((8, 3, 5), (
            found['T4-2B'].total, found['T4-2B'].in_use,
            found['T4-2B'].creatable))
        self.assertEqual((16, 0, 0), (
            found['T4-1B'].total, found['T4-1B'].in_use,
            found['T4-1B'].creatable))

    def test_the_kernels_word_is_a_limit(self):
        for available, creatable in ((16, 8), (8, 8), (2, 2), (0, 0),
                                     (None, 8)):
            offer, = offers.offers(t4(available=available), vgpu('T4-2B'))
            self.assertEqual(creatable, offer.creatable, available)

    def test_no_types_named(self):
        offer, = offers.offers(t4(), vgpu())
        self.assertEqual((0, 'policy desktops has no vgpu_types'),
                         (offer.total, offer.problem))

    def test_unknown_type(self):
        known, unknown = offers.offers(t4(), vgpu(
            'T4-4Q', 'T4-2B', 'nvidia-231'))
        self.assertEqual(('T4-2B', ''), (known.profile, known.problem))
        self.assertEqual(
            ('T4-4Q', 'this GPU has no vGPU type T4-4Q; it has T4-1B '
             '(nvidia-230), T4-2B (nvidia-231)'),
            (unknown.profile, unknown.problem))


class TestVgpuOnFunctions(base.BaseTestCase):

    def test_problems(self):
        offer, = offers.offers(a100(), vgpu('A100-4C'))
        self.assertIn('MIG mode is on', offer.problem)

    def test_mig_backed_types_are_not_time_sliced(self):
        offer, = offers.offers(a100(enabled=False), vgpu('A100-1-5C'))
        self.assertEqual((0, 'A100-1-5C'), (offer.total, offer.profile))
        self.assertIn('A100-4C (nvidia-468)', offer.problem)
        self.assertNotIn('nvidia-474', offer.problem)


class TestPossibleOffers(base.BaseTestCase):

    def test_every_mode(self):
        found = offers.possible_offers(a100(enabled=False, vfs=0))
        self.assertEqual(
            [('passthrough', 'passthrough'), ('vgpu', 'A100-4C'),
             ('vgpu', 'A100-40C'), *(
                 ('mig', name) for name in (
                     '1g.5gb', '1g.5gb+me', '2g.10gb', '3g.20gb', '4g.20gb',
                     '7g.40gb'))],
            [(offer.mode.value, offer.profile) for offer in found])
        self.assertEqual('', found[0].problem)

    def test_what_shares_an_instance(self):
        board = boards.gpu(boards.RTX_PRO_6000, vgpu_types=(
            *backed((11, 'DC-1-24Q', 24576, 4, 47)),
            dataclasses.replace(*backed((13, 'DC-1-8Q', 8192, 12, 47)),
                                per_instance=3)))
        self.assertEqual(
            ['passthrough', '1g.24gb+gfx', 'DC-1-8Q'],
            [offer.profile for offer in offers.possible_offers(board)])

class TestCheckPolicy(base.BaseTestCase):

    def test_well(self):
        for gpu, rules in (
                (a100(), MIG), (t4(), vgpu('T4-2B')), (t4(), WHOLE),
                (a100(), policy.Policy(
                    'x', policy.Mode.MIG, profiles=('1g.5gb', '1g.10gb'),
                    vgpu_types=('A100-1-5C', 'nvidia-475')))):
            self.assertEqual([], offers.check_policy(gpu, rules))

    def test_unknown(self):
        said = offers.check_policy(a100(), policy.Policy(
            'x', policy.Mode.MIG, profiles=('1g.5gb', '1g.6gb'),
            vgpu_types=('A100-1-5C', 'A100-4C')))
        self.assertEqual(2, len(said))
        self.assertIn('policy x, GPU 0000:07:00.0: profiles: this GPU has '
                      'no profile 1g.6gb; it has 1g.5gb, ', said[0])
        self.assertIn('vgpu_types: this GPU has no vGPU type A100-4C; it '
                      'has A100-1-5C (nvidia-474), ', said[1])

    def test_every_option_that_names_types(self):
        said = offers.check_policy(a100(), policy.Policy(
            'x', policy.Mode.MIG, max_instances=(('A100-1-6C', 1),),
            fixed_vgpus=(('A100-1-5C', 1), ('A100-9C', 1))))
        self.assertEqual(2, len(said))
        self.assertIn('fixed_vgpus: this GPU has no vGPU type A100-9C',
                      said[0])
        self.assertIn('max_instances: this GPU has no vGPU type A100-1-6C',
                      said[1])

    def test_nothing_is_known_of_a_gpu_that_nvml_cannot_see(self):
        gpu = boards.gpu((), mig=None, visible_to_nvml=False)
        for rules in (vgpu('T4-2B'), policy.Policy(
                'x', policy.Mode.MIG, profiles=('1g.5gb',))):
            self.assertEqual([], offers.check_policy(gpu, rules))


class TestPassthrough(base.BaseTestCase):

    def test_whole(self):
        gpu = boards.gpu((), mig=None)
        self.assertEqual((offers.Offer(
            PF, 'whole', policy.Mode.PASSTHROUGH, 'passthrough', total=1,
            in_use=0, creatable=1, parents=(PF,)),),
            offers.offers(gpu, WHOLE))

    def test_mig_capable_is_whole_while_mig_is_off(self):
        offer, = offers.offers(boards.gpu(boards.A30, enabled=False), WHOLE)
        self.assertEqual(('', 1), (offer.problem, offer.creatable))

    def test_carved_up(self):
        for fields, said in (
                ({'mig': model.Mig(True, True)}, 'MIG mode is on'),
                ({'vfs': boards.vfs(4)}, '4 virtual function(s)'),
                ({'sriov_numvfs': 3}, '3 virtual function(s)'),
                ({'mdevs': (model.Mdev('u', PF, 'nvidia-1'),)}, '1 vGPU(s)'),
                ({'vfs': boards.vfs(2, used=['nvidia-1'])}, '1 vGPU(s)'),
                ({'vfs': (dataclasses.replace(
                    boards.vfs(1)[0], current_vgpu_type=1145),)},
                 '1 vGPU(s)'),
                ({'physfn': PF}, 'a virtual function of 0000:07:00.0')):
            gpu = boards.gpu((), **{'mig': None, **fields})
            offer, = offers.offers(gpu, WHOLE)
            self.assertIn(said, offer.problem)
            self.assertEqual((1, 0), (offer.total, offer.creatable))

    def test_busy(self):
        gpu = boards.gpu((), mig=None, processes=2)
        offer, = offers.offers(gpu, WHOLE)
        self.assertEqual(
            (1, 0, '', '2 process(es) of this machine use it'),
            (offer.total, offer.creatable, offer.problem, offer.busy))
        offer, = offers.offers(
            dataclasses.replace(gpu, vfs=boards.vfs(1)), WHOLE)
        self.assertEqual((0, ''), (offer.creatable, offer.busy))
        self.assertIn('partitioned', offer.problem)

    def test_its_nvlinks_must_be_isolated(self):
        gpu = boards.gpu((), mig=None, nvlink_open='FABRIC_MODE is 0')
        offer, = offers.offers(gpu, WHOLE)
        self.assertEqual((1, 0, ''), (offer.total, offer.creatable,
                                      offer.problem))
        self.assertIn('nvlink_not_isolated', offer.busy)
        offer, = offers.offers(gpu, dataclasses.replace(
            WHOLE, nvlink_not_isolated=True))
        self.assertEqual((1, ''), (offer.creatable, offer.busy))

    def test_its_iommu_group_must_be_viable(self):
        turing = whole.Neighbour('0000:07:00.2', '0c03', 'xhci_hcd')
        storage = whole.Neighbour('0000:0a:00.0', '0108', 'nvme')
        second = whole.Neighbour('0000:08:00.0', '0302', 'vfio-pci')
        audio = whole.Neighbour('0000:07:00.1', '0403', 'vfio-pci')
        bridge = whole.Neighbour('0000:06:00.0', '0604', 'pcieport')
        unbound = whole.Neighbour('0000:0b:00.0', '0200', None)
        for neighbours, said in (
                ((audio, bridge, unbound), ''),
                ((audio, turing), '0000:07:00.2 (driver xhci_hcd)'),
                ((storage,), '0000:0a:00.0 (driver nvme)'),
                ((second,), 'GPU 0000:08:00.0'),
                (None, 'cannot be read')):
            gpu = boards.gpu((), mig=None, driver='vfio-pci',
                             neighbours=neighbours)
            offer, = offers.offers(gpu, WHOLE, must_be_bound=True)
            self.assertEqual(0 if said else 1, offer.creatable)
            self.assertIn(said, offer.busy)
            self.assertEqual(bool(said), bool(offer.busy))
        gpu = boards.gpu((), mig=None, iommu_group=None)
        self.assertIn('no IOMMU group', offers.offers(gpu, WHOLE)[0].busy)
        # The agent binds all of the board with the GPU.
        gpu = boards.gpu((), mig=None, neighbours=(turing,))
        self.assertEqual('', offers.offers(gpu, WHOLE)[0].busy)
        gpu = boards.gpu((), mig=None, neighbours=(storage,))
        self.assertIn('nvme', offers.offers(gpu, WHOLE)[0].busy)

    def test_libvirt_must_be_able_to_take_it(self):
        for must, fields, said in (
                (True, {}, 'bound to nvidia; '),
                (True, {'driver': 'nouveau'}, 'bound to nouveau; '),
                (True, {'driver': None}, 'not bound to vfio-pci'),
                (True, {'driver': 'vfio-pci'}, ''),
                (True, {'driver': 'nvgrace_gpu_vfio_pci'}, ''),
                (False, {}, '')):
            offer, = offers.offers(
                boards.gpu((), **{'mig': None, **fields}), WHOLE,
                must_be_bound=must)
            self.assertTrue(offer.busy.startswith(said), offer.busy)
            self.assertEqual((bool(said), '', int(not said)), (
                bool(offer.busy), offer.problem, offer.creatable))
