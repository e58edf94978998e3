# SPDX-License-Identifier: Apache-2.0

"""The differences between accounts of one GPU, from plain values."""

import dataclasses
import uuid

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program.planning import desired
from cyborg_gpu_driver.record import gpu as gpu_record

_GPU = model.PciAddress.parse('0000:07:00.0')
_VFS = tuple(model.PciAddress.parse(f'0000:07:00.{number}')
             for number in (4, 5))
_HANDLE = str(uuid.UUID(int=1))
_OTHER = str(uuid.UUID(int=2))
_PLACE = model.Placement(4, 4)
_INSTANCE = model.GpuInstance(_PLACE, 9, 2)
_PROFILE = model.GpuInstanceProfile(9, '3g.40gb', 3, 40960, 2, (
    model.Placement(0, 4), _PLACE))
_ENTRY = gpu_record.Claim(
    handle=_HANDLE, gpu=_GPU, function=_VFS[0], mdev_type='nvidia-476',
    profile='3g.40gb', phase=gpu_record.Phase.BOUND, profile_id=9,
    placement=_PLACE, instance_id=2)
_CLAIM = reconcile.Request(_HANDLE, 'arq', 'server', _VFS[0], 'nvidia-476')
_USAGE = reconcile.Usage('provider', '3g.40gb', 'nvidia-476', 1, 0, 0)
_LAYOUT = gpu_record.SavedLayout(_GPU, '20b2', False, spec.MigLayout(
    True, True, (spec.MigInstanceSpec(_PLACE, 9, ((0, 1),)),)))
_CHANGE = gpu_record.Change(_GPU, spec.MigLayout(True, True), ('a',))
K = reconcile.Kind


def _gpu(vgpus=((_VFS[0], _HANDLE, 'nvidia-476'),), instances=(_INSTANCE,),
         **changes):
    vfs = tuple(model.VirtualFunction(
        address, number, 'nvidia', None, mdevs=tuple(
            model.Mdev(handle, parent, type_id)
            for parent, handle, type_id in vgpus if parent == address))
        for number, address in enumerate(_VFS))
    return model.Gpu(
        _GPU, '10de', '20b2', '0302', visible_to_nvml=True, vfs=vfs,
        framework=model.Framework.MDEV_VF,
        mig=model.Mig(True, True, (_PROFILE,), instances), **changes)


_VFIO = dataclasses.replace(_gpu(), vfs=(model.VirtualFunction(
    _VFS[0], 0, 'nvidia', None, current_vgpu_type=476, gpu_instance_id=2),),
    framework=model.Framework.VENDOR_VFIO)
_QUIET = desired.Facts(
    _gpu(), gpu_record.GpuRecord(claims=(_ENTRY,)),
    requests=reconcile.Requests((_CLAIM,)), usages=(_USAGE,),
    in_use={_PLACE: 'x'})


class CompareTest(base.BaseTestCase):

    def compare(self, **changes):
        """Return the kind of each difference, and whether it may be repaired.

        :param changes: changes of the facts, or of the record in them.
        """
        record = dataclasses.replace(
            _QUIET.record, claims=changes.pop('claims_of', (_ENTRY,)), **{
                name: changes.pop(name) for name in tuple(changes)
                if name in ('fixed', 'layout', 'change')})
        found = desired.compare(dataclasses.replace(
            _QUIET, record=record, **changes))
        for difference in found:
            self.assertNotEqual('', difference.text)
            self.assertNotEqual('', difference.remedy)
            self.assertEqual(_GPU, difference.gpu)
        self.found = found
        return [(item.kind, item.safe) for item in found]

    def test_each(self):
        free = model.GpuInstance(model.Placement(0, 4), 9, 1)
        small = model.GpuInstance(model.Placement(7, 1), 19, 3)
        other = dataclasses.replace(_INSTANCE, instance_id=3)
        nobody = {'claims_of': (), 'requests': reconcile.Requests(),
                  'usages': ()}
        strange = {**nobody, 'gpu': _gpu(((_VFS[1], _OTHER, 'nvidia-474'),),
                                         (_INSTANCE,))}
        bare = {**nobody, 'gpu': _gpu(()), 'in_use': {}}
        place = frozenset({spec.MigInstanceSpec(_PLACE, 9)})
        vfio = {**nobody, 'gpu': _VFIO}
        wrong = ((_VFS[0], _HANDLE, 'nvidia-474'),)
        elsewhere = dataclasses.replace(
            _CLAIM, handle=_OTHER,
            function=model.PciAddress.parse('0000:0f:00.4'))
        for changes, *expected in (
                # All agree.
                ({},),
                ({'gpu': _gpu(((_VFS[1], _HANDLE, 'nvidia-476'),))},),
                ({'requests': reconcile.Requests((_CLAIM, elsewhere))},),
                # What is not known is no difference.
                ({'requests': None, 'usages': ()},),
                ({'gpu': _gpu((), (), problems=('lost',)), 'usages': ()},),
                ({'gpu': dataclasses.replace(_gpu(), mig=None,
                                             visible_to_nvml=False)},),
                ({**nobody, 'requests': None, 'in_use': None,
                  'gpu': _gpu(())},),
                # A vGPU or its instance is gone.
                ({'gpu': _gpu(())}, (K.VGPU_GONE, True)),
                ({'gpu': _gpu(()), 'requests': None}, (K.VGPU_GONE, False)),
                ({'gpu': _gpu((), ())}, (K.VGPU_GONE, True)),
                ({'gpu': _gpu((), (free,)), 'in_use': {free.placement: 'x'}},
                 (K.VGPU_GONE, True)),
                # Another instance is in its place.
                ({'gpu': _gpu((), (small,)),
                  'in_use': {small.placement: 'x'}}, (K.VGPU_GONE, False)),
                ({'gpu': _gpu((), (other,))}, (K.VGPU_GONE, False)),
                ({'gpu': _gpu(instances=())}, (K.INSTANCE_GONE, True)),
                ({'gpu': _gpu(instances=()), 'requests': None},
                 (K.INSTANCE_GONE, False)),
                ({'boot': 'now', 'claims_of': (dataclasses.replace(
                    _ENTRY, boot='now'),)},),
                ({'boot': 'now', 'claims_of': (dataclasses.replace(
                    _ENTRY, boot='earlier'),)}, (K.INSTANCE_GONE, False)),
                ({'gpu': _gpu(wrong)}, (K.OTHER_TYPE, False)),
                # A vGPU has no claim.
                ({'claims_of': ()}, (K.NOT_RECORDED, True)),
                ({'claims_of': (), 'gpu': _gpu(())}, (K.NOT_RECORDED, False)),
                ({'claims_of': (), 'gpu': _gpu(wrong)},
                 (K.NOT_RECORDED, False), (K.FOREIGN_VGPU, False)),
                # With vendor VFIO it goes by its function.
                ({'gpu': _VFIO, 'claims_of': (dataclasses.replace(
                    _ENTRY, vfio=True),)},),
                ({'gpu': _VFIO, 'claims_of': ()}, (K.NOT_RECORDED, True)),
                (vfio, (K.FOREIGN_VGPU, False)),
                ({**vfio, 'fixed': gpu_record.FixedVgpus(
                    {_VFS[0]: 'nvidia-476'})},),
                # Nothing explains a vGPU or an instance.
                (strange, (K.FOREIGN_VGPU, False)),
                ({**strange, 'in_use': {}}, (K.FOREIGN_VGPU, False),
                 (K.FOREIGN_INSTANCE, False)),
                ({**strange, 'in_use': {}, 'governed': False},),
                (bare, (K.FOREIGN_INSTANCE, False)),
                ({**bare, 'layout': _LAYOUT},),
                ({**bare, 'fixed': gpu_record.FixedVgpus({}, place)},),
                ({**bare, 'in_use': {_PLACE: 'process 1'}},),
                # A bind, an unbind or a change did not finish.
                *(({'usages': (), 'claims_of': (dataclasses.replace(
                    _ENTRY, phase=phase),)}, (K.UNFINISHED, True))
                  for phase in (gpu_record.Phase.BINDING,
                                gpu_record.Phase.UNBINDING)),
                ({'change': _CHANGE}, (K.LAYOUT_CHANGE, False))):
            self.assertEqual(expected, self.compare(**changes), changes)

    def test_many_requests_are_gone_through_a_few_times(self):
        class Counted(tuple):
            times = 0

            def __iter__(self):
                Counted.times += 1
                return super().__iter__()

        handles = [str(uuid.UUID(int=number)) for number in range(1, 65)]
        self.assertEqual(64, len(desired.compare(dataclasses.replace(
            _QUIET, usages=(), record=gpu_record.GpuRecord(claims=tuple(
                dataclasses.replace(_ENTRY, handle=handle)
                for handle in handles)), gpu=_gpu(()),
            requests=reconcile.Requests(Counted(
                dataclasses.replace(_CLAIM, handle=handle)
                for handle in handles))))))
        self.assertLess(Counted.times, 10)

    def test_no_request(self):
        none = {'requests': reconcile.Requests(),
                'usages': (dataclasses.replace(_USAGE, used=0),)}
        self.assertEqual([(K.NO_REQUEST, True)], self.compare(**none))
        self.assertTrue(self.found[0].may_pass)
        self.assertEqual([(K.NO_REQUEST, False)], self.compare(
            **none, users={_HANDLE: 'a virtual machine'}))
        self.assertIn('a virtual machine', self.found[0].text)
        self.assertEqual([(K.NO_REQUEST, False)], self.compare(
            **{**none, 'requests': reconcile.Requests((), ('arq-2',))}))
        self.assertIn('arq-2', self.found[0].text)
        # The repair covers what else is wrong with the entry.
        self.assertEqual([(K.NO_REQUEST, True)], self.compare(
            **none, gpu=_gpu((), ())))

    def test_placement(self):
        def usage(**changes):
            return {'usages': (dataclasses.replace(_USAGE, **changes),)}

        self.assertEqual([(K.ALLOCATED, False)],
                         self.compare(**usage(used=2)))
        self.assertTrue(self.found[0].may_pass)
        self.assertEqual([(K.NOT_ALLOCATED, False)],
                         self.compare(**usage(used=0)))
        self.assertTrue(self.found[0].may_pass)
        self.assertEqual([(K.RESERVED, True)],
                         self.compare(**usage(reserved=1)))
        self.assertTrue(self.found[0].by_report)
        # A vGPU that is known to be bound is not a second difference.
        self.assertEqual([(K.NOT_RECORDED, True)], self.compare(
            claims_of=(), **usage(reserved=1)))

    def test_keys_tell_differences_apart(self):
        second = dataclasses.replace(_ENTRY, handle=_OTHER)
        self.compare(gpu=_gpu(()), claims_of=(_ENTRY, second), requests=None,
                     usages=())
        self.assertEqual(2, len({item.key for item in self.found}))


class AbsentTest(base.BaseTestCase):

    def test_a_gpu_that_is_gone(self):
        (found,) = desired.absent((_ENTRY,), model.Host())
        self.assertEqual((K.GPU_GONE, False), (found.kind, found.safe))
        self.assertEqual((), desired.absent(
            (_ENTRY,), model.Host((_gpu(),))))
