# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Traits of the offers, so that a device profile can ask for them.

================================== =======================================
trait                              meaning
================================== =======================================
OWNER_CYBORG                       the provider is Cyborg's
CUSTOM_NVIDIA_20B2                 PCI device id, as in Cyborg's own driver
CUSTOM_NVIDIA_20B2_A100DX_1_10C    PCI device id and vGPU type, likewise
CUSTOM_NVIDIA_20B2_1G_10GB         PCI device id and GPU instance profile
CUSTOM_NVIDIA_2330_NVLINK_2        PCI device id and size of the GPU group
CUSTOM_GPU_KIND_MIG                how the GPU is shared: PASSTHROUGH, VGPU,
                                   MIG, or NVLINK
CUSTOM_GPU_MODEL_A100_SXM4_80GB    NVML's name, without a leading NVIDIA
CUSTOM_GPU_ARCH_AMPERE             architecture
CUSTOM_GPU_NUMA_3                  the GPU's NUMA node
CUSTOM_GPU_MEMORY_10GB             memory that the server gets
CUSTOM_GPU_ISOLATION_PROJECT       only servers of one project share the GPU
CUSTOM_GPU_UNHEALTHY_XID_79        a health condition of the GPU
================================== =======================================

An unknown fact has no trait. The memory of a slice or vGPU is the number in
the name of its type or profile, by which people know it (NVML's own number is
a little less: 3g.40gb has 39.25 GiB). The memory of a whole GPU is also the
number that people use: see :func:`of_whole`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import os_traits

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.report.content import names

ISOLATED = names.custom('GPU', 'ISOLATION', 'PROJECT')
"""All servers on the GPU must be of one project."""
_MIB_PER_GIB = 1024
_ECC_SIZES = (8, 16, 20, 24, 32, 48)
"""Sizes in GB of boards that have their ECC bits in the memory (GDDR)."""
_TYPE_MEMORY = re.compile(
    r'-(?P<gb>\d+)[ABCQ](?:ME|NOME|MEALL|GFX)?', re.ASCII)
_PROFILE_MEMORY = re.compile(r'\.(?P<gb>\d+)gb', re.ASCII)


def traits(gpu: model.Gpu, offer: offers.Offer) -> tuple[str, ...]:
    """The traits of one offer's provider, sorted, each a valid name.

    They depend only on the hardware of the GPU and on its policy, never on
    what is in use.
    """
    return tuple(sorted({os_traits.OWNER_CYBORG, *_product(gpu, offer),
                         *_generic(gpu, offer)}))


def of_board(gpu: model.Gpu) -> tuple[str, ...]:
    """The traits of a GPU's hardware, independent of its use."""
    memory = of_whole(gpu.memory_mib)
    return (names.custom(names.VENDOR, gpu.device_id), *_kind(gpu),
            *([names.custom('GPU', 'MEMORY', memory)] if memory else []))


def _product(gpu: model.Gpu, offer: offers.Offer) -> Iterator[str]:
    yield names.custom(names.VENDOR, gpu.device_id)
    if offer.mode is policy.Mode.PASSTHROUGH:
        return
    yield names.custom(names.VENDOR, gpu.device_id, offer.profile)
    type_name = vgpu_type_name(gpu, offer)
    if type_name:
        yield names.custom(names.VENDOR, gpu.device_id, type_name)


def _generic(gpu: model.Gpu, offer: offers.Offer) -> Iterator[str]:
    yield names.custom('GPU', 'KIND', offer.mode.value)
    yield from _kind(gpu)
    if gpu.numa_node is not None:
        yield names.custom('GPU', 'NUMA', str(gpu.numa_node))
    memory = memory_class(gpu, offer)
    if memory:
        yield names.custom('GPU', 'MEMORY', memory)
    if offer.isolated:
        yield ISOLATED


def _kind(gpu: model.Gpu) -> Iterator[str]:
    if gpu.model:
        yield names.custom('GPU', 'MODEL', names.without_vendor(gpu.model))
    if gpu.architecture:
        yield names.custom('GPU', 'ARCH', gpu.architecture)


def _mdev_types(gpu: model.Gpu) -> Iterator[model.MdevType]:
    yield from gpu.mdev_types
    for function in gpu.vfs:
        yield from function.mdev_types


def _vgpu_type(gpu: model.Gpu, type_id: str | None
               ) -> model.VgpuType | model.MdevType | None:
    if type_id is None:
        return None
    for vgpu_type in gpu.vgpu_types:
        if vgpu_type.mdev_type_id == type_id:
            return vgpu_type
    return next((mdev_type for mdev_type in _mdev_types(gpu)
                 if mdev_type.type_id == type_id), None)


def vgpu_type_name(gpu: model.Gpu, offer: offers.Offer) -> str | None:
    """The vGPU type that a server gets: ``A100DX-1-10C``; None if none.

    The name is from NVML's list, else from that of sysfs. For a time-sliced
    vGPU that neither has, it is the offer's profile, which is the type.
    """
    if offer.mode in policy.WHOLE:
        return None
    found = _vgpu_type(gpu, offer.vgpu_type_id)
    if found is not None:
        return found.name
    return offer.profile if offer.mode is policy.Mode.VGPU else None


def memory_class(gpu: model.Gpu, offer: offers.Offer) -> str | None:
    """The memory that a server gets: ``10GB``, ``512MB``; None if unknown.

    GB means GiB here, as in NVIDIA's own names.
    """
    if offer.mode in policy.WHOLE:
        return of_whole(gpu.memory_mib)
    type_name = vgpu_type_name(gpu, offer)
    named = _TYPE_MEMORY.search(type_name or '')
    # A type called 0B or 0Q has half a GiB: only its framebuffer says so.
    if named and int(named['gb']):
        return f'{int(named["gb"])}GB'
    found = _vgpu_type(gpu, offer.vgpu_type_id)
    if found is not None and found.framebuffer_mib:
        return _rounded(found.framebuffer_mib)
    named = _PROFILE_MEMORY.search(offer.profile)
    return f'{int(named["gb"])}GB' if named else None


def of_whole(mib: int | None) -> str | None:
    """A board's memory as people write it: ``48GB``; None if unknown.

    NVIDIA's own names have NVML's total, rounded up to whole GiB: 143771 MiB
    of an H200 are the 141 of ``7g.141gb`` (go-nvlib, mig_profile.go). A
    board that has its ECC bits in its memory shows a sixteenth less. Older
    drivers show up to two percent less than that: 46068 MiB of an A40 with
    48 GB, 15360 or 15109 MiB of a T4 with 16 GB (listings of nvidia-smi).

    :param mib: NVML's total memory, in MiB.
    """
    if not mib or mib < _MIB_PER_GIB:
        return _rounded(mib)
    for size in _ECC_SIZES:
        left = size * _MIB_PER_GIB * 15 // 16
        if left * 98 <= mib * 100 <= left * 100:
            return f'{size}GB'
    return f'{-(-mib // _MIB_PER_GIB)}GB'


def _rounded(mib: int | None) -> str | None:
    if not mib:
        return None
    if mib < _MIB_PER_GIB:
        return f'{mib}MB'
    return f'{(mib + _MIB_PER_GIB // 2) // _MIB_PER_GIB}GB'
