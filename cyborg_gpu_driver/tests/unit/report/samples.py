# SPDX-License-Identifier: Apache-2.0


"""GPUs and offers to report, built by hand."""

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.report.content import build

MIG_PROFILES = (
    # 8 units: A100, H100, H200, GH200, B200, GB200, B300, GB300.
    *(f'1g.{gb}gb' for gb in (5, 10, 12, 18, 20, 23, 24, 34, 35, 36, 45, 47,
                              67, 70)),
    *(f'1g.{gb}gb+me' for gb in (5, 10, 12, 18, 23, 34, 35)),
    *(f'2g.{gb}gb' for gb in (10, 20, 24, 35, 36, 45, 47, 67, 70)),
    *(f'3g.{gb}gb' for gb in (20, 40, 47, 48, 71, 72, 90, 93, 135, 139)),
    *(f'4g.{gb}gb' for gb in (20, 40, 47, 48, 71, 72, 90, 93, 135, 139)),
    *(f'7g.{gb}gb' for gb in (40, 80, 94, 96, 141, 144, 180, 186, 269,
                              278)),
    # A30.
    '1g.6gb', '1g.6gb+me', '2g.12gb', '2g.12gb+me', '4g.24gb',
    # RTX PRO 6000 and 5000.
    '1g.24gb+me', '1g.24gb+gfx', '1g.24gb+me.all', '1g.24gb-me',
    '2g.48gb', '2g.48gb+gfx', '2g.48gb+me.all', '2g.48gb-me',
    '4g.96gb+gfx', '1g.12gb+gfx', '1g.12gb-me', '2g.24gb-me', '4g.48gb+gfx',
)
VGPU_TYPES = (
    'T4-1B', 'T4-2B', 'T4-2B4', 'T4-16Q', 'M60-0B', 'A40-48Q', 'L40S-1B',
    'A100-40C', 'A100D-80C', 'A100-1-5C', 'A100-1-5CME', 'A100-2-10C',
    'H200X-141C', 'H200X-1-18C', 'DC-1-24Q', 'DC-1-24QNOME', 'RTXA6000-48Q',
)

A100 = model.PciAddress.parse('0000:07:00.0')
T4 = model.PciAddress.parse('0000:3b:00.0')
WHOLE = model.PciAddress.parse('0000:d8:00.0')

_A100_TYPES = {
    # profile: (id, compute slices, total, mdev type id, vGPU type's name)
    '1g.10gb': (19, 7, 699, 'A100D-1-10C'),
    '1g.10gb+me': (20, 1, 707, 'A100D-1-10CME'),
    '2g.20gb': (14, 3, 700, 'A100D-2-20C'),
    '3g.40gb': (9, 2, 701, 'A100D-3-40C'),
    '7g.80gb': (0, 1, 703, 'A100D-7-80C'),
}


def a100(**fields):
    """An A100-80 with 20 virtual functions and MIG-backed types."""
    types = tuple(
        model.VgpuType(
            type_id=number, name=name, vgpu_class='Compute',
            framebuffer_mib=1024, max_instances=total, gi_profile_id=gi)
        for gi, total, number, name in _A100_TYPES.values())
    functions = tuple(
        model.VirtualFunction(address=vf(index), index=index,
                              driver='nvidia', iommu_group=100 + index)
        for index in range(20))
    return model.Gpu(**{
        'address': A100, 'vendor_id': '10de', 'device_id': '20b2',
        'class_code': '0302', 'model': 'NVIDIA A100-SXM4-80GB',
        'architecture': 'ampere', 'memory_mib': 81920, 'numa_node': 3,
        'uuid': 'GPU-8a100000-0000-4000-8000-000000000007',
        'serial': '1563221000007', 'visible_to_nvml': True, 'vfs': functions,
        'framework': model.Framework.MDEV_VF, 'vgpu_types': types, **fields})


def vf(index):
    return model.PciAddress(0, 7, (4 + index) // 8, (4 + index) % 8)


def a100_offers(**fields):
    """One offer per profile, each on the next VFs, wrapping at the last."""
    result = []
    start = 0
    for profile, (gi, total, number, _name) in _A100_TYPES.items():
        result.append(offers.Offer(**{
            'gpu': A100, 'policy': 'slices', 'mode': policy.Mode.MIG,
            'profile': profile, 'total': total, 'in_use': 0,
            'creatable': total, 'gi_profile_id': gi,
            'vgpu_type_id': f'nvidia-{number}',
            'parents': tuple(vf((start + n) % 20) for n in range(total)),
            'problem': '', **fields}))
        start += total
    return tuple(result)


def t4(**fields):
    """A T4, whose mdev types belong to the GPU itself."""
    return model.Gpu(**{
        'address': T4, 'vendor_id': '10de', 'device_id': '1eb8',
        'class_code': '0302', 'model': 'Tesla T4', 'architecture': 'turing',
        'memory_mib': 15360, 'visible_to_nvml': True,
        'framework': model.Framework.MDEV_PF,
        'mdev_types': (model.MdevType('nvidia-231', 'T4-2B', 8,
                                      framebuffer_mib=2048),),
        **fields})


def t4_offer(**fields):
    return offers.Offer(**{
        'gpu': T4, 'policy': 'desktops', 'mode': policy.Mode.VGPU,
        'profile': 'T4-2B', 'total': 8, 'in_use': 0, 'creatable': 8,
        'gi_profile_id': None, 'vgpu_type_id': 'nvidia-231',
        'parents': (T4,), 'problem': '', **fields})


def whole(**fields):
    """A GPU bound to vfio-pci, of which only sysfs can be read."""
    return model.Gpu(**{
        'address': WHOLE, 'vendor_id': '10de', 'device_id': '2235',
        'class_code': '0300', 'driver': 'vfio-pci', **fields})


def whole_offer(**fields):
    return offers.Offer(**{
        'gpu': WHOLE, 'policy': 'automatic',
        'mode': policy.Mode.PASSTHROUGH, 'profile': 'passthrough', 'total': 1,
        'in_use': 0, 'creatable': 1, 'gi_profile_id': None,
        'vgpu_type_id': None, 'parents': (WHOLE,), 'problem': '', **fields})


def host():
    """Return a host with one GPU of each kind, and its offers."""
    gpus = (a100(), t4(), whole())
    return model.Host(gpus=gpus), {
        A100: a100_offers(), T4: (t4_offer(),), WHOLE: (whole_offer(),)}


def reported(found, offered, hostname):
    """Return the devices of a host's GPUs that have deployables.

    :param offered: offers by the GPU's address.
    """
    devices = (build.device(gpu, offered.get(gpu.address, ()), hostname)
               for gpu in sorted(found.gpus, key=lambda gpu: gpu.address))
    return tuple(device for device in devices if device.deployables)
