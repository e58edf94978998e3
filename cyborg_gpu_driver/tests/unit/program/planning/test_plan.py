# SPDX-License-Identifier: Apache-2.0

"""What a bind will do, decided from plain values."""

import dataclasses
import uuid

from hypothesis import given
from hypothesis import strategies
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.record import gpu as gpu_record

_GPU = model.PciAddress.parse('0000:16:00.0')
_VFS = tuple(dataclasses.replace(_GPU, function=number)
             for number in range(1, 8))
_PLACES = tuple(model.Placement(start, 3) for start in (0, 3, 6, 9))
_VFIO = model.Framework.VENDOR_VFIO
_MDEV = model.Framework.MDEV_VF


def _gpu(framework=_MDEV, instances=(), **changes):
    """A GPU whose instances of profile 47 are given by start and id."""
    profile = model.GpuInstanceProfile(47, '1g.24gb+gfx', 1, 24192, 4,
                                       _PLACES)
    return dataclasses.replace(model.Gpu(
        _GPU, '10de', '2bb5', '0302', framework=framework,
        vfs=tuple(model.VirtualFunction(address, number, 'nvidia', None)
                  for number, address in enumerate(_VFS)),
        mig=model.Mig(True, True, (profile,), tuple(
            model.GpuInstance(model.Placement(start, 3), 47, number)
            for start, number in instances)),
        vgpu_types=tuple(
            model.VgpuType(number, name, 'Quadro', size, 12, 47, most)
            for number, name, size, most in (
                (1463, 'DC-1-6Q', 6144, 4), (1464, 'DC-1-8Q', 8192, 3),
                (1471, 'DC-1-8A', 8192, 3), (1466, 'DC-1-24Q', 24576, 1)))),
        **changes)


def _offer(type_number=1464, per_instance=3, framebuffer=8192):
    return offers.Offer(
        gpu=_GPU, policy='p', mode=policy.Mode.MIG, profile='DC-1-8Q',
        total=6, gi_profile_id=47, vgpu_type_id=f'nvidia-{type_number}',
        parents=_VFS[:6], per_instance=per_instance,
        framebuffer_mib=framebuffer)


def _asked(function=_VFS[0]):
    return plan.Request(function, 'nvidia-1464', str(uuid.UUID(int=99)))


def _entry(number, start, instance_id, type_number=1464, **changes):
    return dataclasses.replace(gpu_record.Claim(
        handle=str(uuid.UUID(int=number)), gpu=_GPU,
        function=_VFS[-number], mdev_type=f'nvidia-{type_number}',
        profile='x', phase=gpu_record.Phase.BOUND, profile_id=47,
        placement=model.Placement(start, 3), instance_id=instance_id),
        **changes)


def _with_vgpu(gpu, index, type_number, instance_id=None):
    """The GPU with a vGPU of vendor VFIO on one of its functions."""
    vfs = list(gpu.vfs)
    vfs[index] = dataclasses.replace(
        vfs[index], current_vgpu_type=type_number,
        gpu_instance_id=instance_id)
    return dataclasses.replace(gpu, vfs=tuple(vfs))


class SharedInstanceTest(base.BaseTestCase):

    def where(self, gpu, *entries, offer=None, asked=None):
        offer = offer or _offer()
        return plan.plan(gpu, (offer,), offer, asked or _asked(), entries,
                         '')

    def assert_cut(self, planned):
        self.assertIsNone(planned.instance_id)
        self.assertEqual(47, planned.profile_id)

    def test_the_fullest_of_ours_with_room_is_filled(self):
        gpu = _gpu(instances=((0, 1), (3, 2), (6, 3)))
        full = [_entry(number, 0, 1) for number in (1, 2, 3)]
        planned = self.where(gpu, *full, _entry(4, 3, 2), _entry(5, 6, 3),
                             _entry(6, 6, 3, type_number=1471))
        self.assertEqual(3, planned.instance_id)
        self.assertEqual(model.Placement(6, 3), planned.placement)

    def test_one_of_another_framebuffer_size_is_not_joined(self):
        gpu = _gpu(instances=((0, 1),))
        self.assert_cut(self.where(gpu, _entry(1, 0, 1, type_number=1463)))

    def test_what_has_to_be_restored_keeps_its_place(self):
        lost = [_entry(number, start, number)
                for number, start in enumerate((0, 3, 6), 1)]
        found = self.where(_gpu(), *lost)
        self.assertEqual(9, found.placement.start)
        self.assert_cut(found)
        # Two vGPUs are on the last instance.
        error = self.assertRaises(
            exception.BindRefused, self.where, _gpu(), *lost,
            *(_entry(number, 9, 9) for number in (4, 5)))
        self.assertIn('next to 1g.24gb+gfx@0, 1g.24gb+gfx@3, 1g.24gb+gfx@6, '
                      '1g.24gb+gfx@9', str(error))

    def test_what_the_driver_tells_goes_before_the_journal(self):
        # The journal has three vGPUs on the first instance. The NVIDIA driver
        # has one there, and two of another tool on the second instance.
        gpu = _gpu(_VFIO, instances=((0, 1), (3, 2)))
        gpu = _with_vgpu(gpu, 6, 1464, 1)
        gpu = _with_vgpu(_with_vgpu(gpu, 2, 1464, 2), 3, 1464, 2)
        entries = [_entry(number, 0, 1, function=_VFS[6], vfio=True)
                   for number in (1, 2, 3)]
        self.assertEqual(1, self.where(gpu, *entries).instance_id)
        self.assertEqual(
            (offers.Held(spec.of(gpu.mig.instances[0]), 'nvidia-1464'),),
            plan.held(gpu, entries, ''))


_HANDLE = '7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b'


class ParseTest(base.BaseTestCase):

    def test_each_bad_string_is_named(self):
        good = ('0000:3b:00.4', 'nvidia-474', _HANDLE)
        bad = {
            0: ('../../x', '', '0000:3b:00.8', '0000:3b:20.0', None, 7,
                '0000:3b:00.4\n', '0000:3b:00.4/../x', '٠٠٠٠:3b:00.4'),
            1: ('../../x', '', 'nvidia-', 'nvidia-0', 'i915-GVTg_V5_4',
                'nvidia-474/..', 'nvidia-474\n', 'nvidia-١', None),
            2: ('../../x', '', 'x' * 36, _HANDLE[:-1], _HANDLE + '\n',
                '{' + _HANDLE + '}', _HANDLE.replace('-', ''), None, 3),
        }
        for position, values in bad.items():
            for value in values:
                strings = list(good)
                strings[position] = value
                error = self.assertRaises(exception.InvalidValue,
                                          plan.parse_request, *strings)
                self.assertIn(repr(str(value)).strip("'"), str(error))

    @given(strategies.text(), strategies.text(), strategies.text())
    def test_nothing_but_our_error_comes_of_any_text(self, address, kind,
                                                     handle):
        try:
            asked = plan.parse_request(address, kind, handle)
        except exception.InvalidValue:
            return
        for value in (str(asked.function), asked.mdev_type, asked.handle):
            self.assertNotIn('/', value)

    @given(strategies.uuids())
    def test_every_uuid_is_taken(self, value):
        self.assertEqual(value, uuid.UUID(vgpu_name.handle(str(value))))
