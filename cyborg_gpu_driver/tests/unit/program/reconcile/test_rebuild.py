# SPDX-License-Identifier: Apache-2.0

"""Rebuilding the journal from what exists."""

import dataclasses
import itertools
import uuid

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.program import cordons
from cyborg_gpu_driver.program.reconcile import rebuild
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import unreadable
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

_GPU = model.PciAddress.parse('0000:07:00.0')
_TAKEN = spec.MigInstanceSpec(model.Placement(0, 1), 19)


def _vf(number):
    return model.PciAddress.parse(f'0000:07:01.{number}')


def _uuid(number):
    return str(uuid.UUID(int=number))


def _entry(number, **changes):
    return gpu_record.Claim(**{
        'handle': _uuid(number), 'gpu': _GPU, 'function': _vf(number),
        'mdev_type': 'nvidia-1', 'profile': 'small',
        'phase': gpu_record.Phase.BOUND, **changes})


def _offer(type_id='nvidia-1', **changes):
    return offer.Offer(_GPU, 'p', policy.Mode.MIG, 'small', 4, **{
        'gi_profile_id': 19, 'vgpu_type_id': type_id, 'per_instance': 1,
        'framebuffer_mib': 8, **changes})


def _gpu(mdevs=(), instances=0, **changes):
    """A GPU with mdevs by number, and instances of profile 19, ids from 1."""
    return model.Gpu(**{
        'address': _GPU, 'vendor_id': '10de', 'device_id': '20b2',
        'class_code': '0302', 'framework': model.Framework.MDEV_VF,
        'vfs': tuple(model.VirtualFunction(
            _vf(number), number, None, None, mdevs=(model.Mdev(
                _uuid(number), _vf(number), type_id),))
            for number, type_id in mdevs),
        'mig': model.Mig(True, True, (), tuple(
            model.GpuInstance(model.Placement(number - 1, 1), 19, number)
            for number in range(1, instances + 1))), **changes})


class EntriesTest(base.BaseTestCase):

    def entries(self, gpu, claims=None, **more):
        return {entry.handle: entry for entry in rebuild.bare_claims(
            gpu, [_offer()], claims, **{'known': (), 'fixed': (), **more})}

    def test_placement_ids_of_what_runs(self):
        mdevs = [(1, 'nvidia-1'), (2, 'nvidia-1')]
        running = [usage.GuestVgpu('nvidia-1', _uuid(2), placement_id=3)]
        for mixed, placement in ((True, 3), (False, None)):
            self.assertEqual(
                {_uuid(1): _entry(1),
                 _uuid(2): _entry(2, vgpu_placement=placement)},
                self.entries(_gpu(mdevs, mixed_sizes=mixed),
                             running=running))

    def test_mdevs_of_offered_types(self):
        gpu = _gpu([(1, 'nvidia-1'), (2, 'nvidia-2')])
        self.assertEqual({_uuid(1): _entry(1)}, self.entries(gpu))
        self.assertEqual({}, self.entries(gpu, known={_uuid(1)}))

    def test_of_known_requests_only_theirs(self):
        gpu = _gpu([(1, 'nvidia-1'), (2, 'nvidia-1')])
        claims = reconcile.Requests((reconcile.Request(
            _uuid(2), 'arq', None, _vf(2), 'nvidia-1'),))
        self.assertEqual({_uuid(2)}, set(self.entries(gpu, claims)))
        self.assertEqual({}, self.entries(gpu, reconcile.Requests()))

    def test_functions_of_vendor_vfio_through_requests_alone(self):
        gpu = dataclasses.replace(
            _gpu(mixed_sizes=True), framework=model.Framework.VENDOR_VFIO,
            vfs=tuple(
                model.VirtualFunction(
                    _vf(number), number, None, None, current_vgpu_type=1,
                    placement_id=7) for number in (1, 2)))
        self.assertEqual({}, self.entries(gpu))
        claims = reconcile.Requests((
            reconcile.Request(_uuid(9), 'arq', None, _vf(2), 'nvidia-1'),
            reconcile.Request(_uuid(8), 'arq', None, _vf(1), 'nvidia-2')))
        self.assertEqual(
            {_uuid(9): _entry(2, handle=_uuid(9), vfio=True,
                              vgpu_placement=7)}, self.entries(gpu, claims))
        self.assertEqual({}, self.entries(gpu, claims, fixed={_vf(2)}))
        entries = self.entries(dataclasses.replace(gpu, mixed_sizes=False),
                               claims)
        self.assertIsNone(entries[_uuid(9)].vgpu_placement)


class PlacedTest(base.BaseTestCase):

    def placed(self, gpu, entries, offers=(), running=(), taken=()):
        return rebuild.placed(gpu, entries, offers or [_offer()], running,
                              set(taken))

    def test_ids_by_what_is_known(self):
        one, two, three, _ = entries = [
            _entry(number) for number in range(1, 5)]
        runs = {'running': [usage.GuestVgpu('nvidia-1', _uuid(1), 2)]}
        shared = {'offers': [_offer(per_instance=3)]}
        for expected, claims, instances, more in (
                ([1, 2], [one, two], 2, {}),
                # More or fewer instances tell nothing.
                ([None], [one], 2, {}),
                ([None, None], [one, two], 1, {}),
                ([None], [one], 0, {}),
                # An instance with another owner does not count.
                ([2], [one], 2, {'taken': [_TAKEN]}),
                ([None], [one], 1, {'taken': [_TAKEN], 'running': [
                    usage.GuestVgpu('nvidia-1', _uuid(1), 1)]}),
                # NVML knows the instances of guests.
                ([2, 1], [one, two], 2, runs),
                ([2, None, None], [one, two, three], 2, runs),
                # Several vGPUs share an instance.
                ([1, 2, 1, 2], entries, 2, shared),
                ([None] * 4, entries, 1, shared),
                ([None] * 4, entries, 5, shared),
                ([None, None], [one, _entry(2, mdev_type='nvidia-2')], 2,
                 {'offers': [_offer(),
                             _offer('nvidia-2', framebuffer_mib=16)]}),
                # Time-sliced vGPUs have no instance.
                ([None], [one], 1, {'offers': [
                    _offer(gi_profile_id=None)]})):
            self.assertEqual(expected, [
                entry.instance_id for entry in self.placed(
                    _gpu(instances=instances), claims, **more)])

    def test_the_place_of_an_instance(self):
        self.assertEqual(
            [_entry(1, profile_id=19, instance_id=1,
                    placement=model.Placement(0, 1))],
            self.placed(_gpu(instances=1), [_entry(1)]))

    def test_vendor_vfio_is_told_by_the_driver(self):
        gpu = dataclasses.replace(
            _gpu(instances=3), framework=model.Framework.VENDOR_VFIO,
            vfs=(model.VirtualFunction(
                _vf(1), 1, None, None, current_vgpu_type=1,
                gpu_instance_id=3),))
        (entry,) = self.placed(gpu, [_entry(1, vfio=True)])
        self.assertEqual(3, entry.instance_id)


class RebuilderTest(binder_case.BinderCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.claims = None
        for profile, number in itertools.product(
                ('1g.5gb', '2g.10gb'), range(2)):
            self.binder.bind(*self.handle(profile, number))
        self.bound = {entry.handle: entry
                      for entry in self.records.claims()}

    def lose(self):
        with open(store.of(self.state_path).path(self.address), 'w',
                  encoding='utf-8') as stream:
            stream.write('{')
        self.restart()
        self.assertTrue(self.records.check())
        self.rebuilder = self.node.rebuilder
        self.cloud.requests = lambda: self.claims

    def test_a_stranger_leaves_its_profile_open(self):
        self.binder.unbind(*self.handle('1g.5gb', 1))
        gone = self.bound.pop(self.handle('1g.5gb', 1)[2])
        self.stranger(19, gone.placement.start, 1)
        self.lose()
        self.rebuilder.rebuild()
        self.assertEqual(
            {('1g.5gb', False), ('2g.10gb', True)},
            {(entry.profile, entry.placement is not None)
             for entry in self.records.claims()})
        for handle, entry in self.bound.items():
            self.assertEqual(entry.profile == '1g.5gb', (
                f'{handle} ({entry.profile}, no or an unknown'
                in self.log.output))

    def test_what_was_bound_meanwhile_stays(self):
        self.lose()
        # The GPU is closed until the operator lifts the cordon.
        cordons.GpuCordons(self.state_path).lift(self.address)
        self.binder.bind(*self.handle('1g.5gb', 5))
        (entry,) = self.records.claims()
        self.rebuilder.rebuild()
        self.assertEqual(entry, self.records.claim(entry.handle))
        self.assertEqual(5, len(self.records.claims()))

    def test_a_gpu_that_is_locked_is_rebuilt_later(self):
        self.lose()
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.locks.REPORT_SECONDS', 0.0))
        with locks.gpu(self.state_path, self.address):
            for _ in range(2):
                self.assertEqual([], self.rebuilder.rebuild())
        self.assertEqual(1, self.log.output.count(
            f'The claims on GPU {self.address} are not rebuilt: GPU '
            f'{self.address} is locked: MainThread'))
        self.assertTrue(self.records.check())
        self.assertEqual([self.address], self.rebuilder.rebuild())

    def test_a_record_that_cannot_be_read_is_not_rebuilt(self):
        self.lose()
        self.cloud.requests = lambda: self.fail('asked for nothing')
        with unreadable.file(store.of(self.state_path).path(self.address)):
            self.assertEqual([], self.rebuilder.rebuild())

    def test_where_nothing_is_bound_there_is_a_journal_all_the_same(self):
        for entry in self.bound.values():
            self.binder.unbind(str(entry.function), entry.mdev_type,
                               entry.handle)
        self.lose()
        self.rebuilder.rebuild()
        self.assertFalse(self.records.check())

    def test_a_request_whose_vgpu_is_not_there_is_not_adopted(self):
        self.lose()
        claim = reconcile.Request(_uuid(1), 'arq', None, _vf(1), 'nvidia-474')
        self.assertRaises(exception.StepFailed, self.rebuilder.adopt,
                          self.live.gpu(self.address), claim)
        self.assertEqual((), self.records.claims())
