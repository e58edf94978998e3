# SPDX-License-Identifier: Apache-2.0

"""Names of resource providers, resource classes and traits.

A provider's name is its identity: Cyborg's conductor derives the provider's
UUID from it. So a name depends on the host, the GPU's address and what is
offered there, and on nothing that can change while servers come and go.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import uuid
from collections.abc import Iterator

import os_resource_classes as orc
import os_traits

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers

PROVIDER_NAME_MAX = 200
"""Placement's limit on a provider's name, in characters."""
CUSTOM_NAME_MAX = 255
"""Placement's limit on a resource class and on a trait, in characters."""

VENDOR = 'NVIDIA'
"""Vendor 10de, as the driver in Cyborg's tree spells it in its traits."""

_ADDRESS_MAX = len('01234567:00:00.0')
_LABEL_MAX = 40
_HOST_MAX = PROVIDER_NAME_MAX - len('_gpu_') - _ADDRESS_MAX - 1 - _LABEL_MAX

_DIGEST_LENGTH = 12
_KEPT = 2048
"""Names that are remembered: each report needs those of its host often."""
_UNSAFE = re.compile(r'[^A-Za-z0-9._-]')
_NOT_CUSTOM = re.compile(r'[^A-Z0-9]+')
_PROVIDER = re.compile(
    r'(?P<host>.+)_gpu_'
    r'(?P<gpu>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])_'
    r'(?P<label>[A-Za-z0-9._-]+)', re.ASCII)
_MIG_PROFILE = re.compile(r'(\d+c\.)?\d+g\.\d+gb', re.ASCII)


def digest(text: str, length: int = _DIGEST_LENGTH) -> str:
    """``length`` hexadecimal digits that stand for ``text``."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _shortened(text: str, limit: int) -> str:
    return text[:limit - _DIGEST_LENGTH - 1] + '-' + digest(text)


@functools.lru_cache(_KEPT)
def _safe(text: str, limit: int) -> str:
    """``text`` if it is short and plain, else a similar text with a digest.

    Only letters, digits, ``.``, ``_`` and ``-`` are kept: no colon, because
    it separates the parts of an address, and nothing that has to be quoted
    in the query of a URL.
    """
    if len(text) <= limit and not _UNSAFE.search(text):
        return text
    likeness = _UNSAFE.sub('-', text)[:limit - _DIGEST_LENGTH - 1]
    return f'{likeness}-{digest(text)}'


def label(offer: offers.Offer) -> str:
    """The last part of an offer's provider name, at most 40 characters.

    ``passthrough`` for a whole GPU, else the profile, with ``.`` for the
    ``+`` that a URL's query would turn into a space: ``1g.10gb.me``.
    """
    if offer.mode is policy.Mode.PASSTHROUGH:
        return offer.mode.value
    return _safe(offer.profile.replace('+', '.'), _LABEL_MAX)


def provider_name(hostname: str, offer: offers.Offer) -> str:
    """The name of an offer's deployable and resource provider.

    :param hostname: the compute node's hypervisor_hostname. If it is too
        long or has unusual characters, it is replaced by a similar text with
        a digest, the same for every GPU of the host.
    :returns: ``<hostname>_gpu_<address>_<label>``, at most 200 characters.
        It never equals the name of one of Nova's own PCI providers,
        ``<hostname>_<ADDRESS>``. Cyborg's own driver has
        ``<hostname>_<address>`` (_generate_dep_list in
        cyborg/accelerator/drivers/gpu/nvidia/sysinfo.py).
    :raises InvalidValue: if ``hostname`` is empty.
    """
    if not hostname:
        raise exception.InvalidValue(
            what='host name', value=hostname,
            expected="expected the compute node's hypervisor_hostname")
    if offer.function:
        return f'{hostname}_{offer.function}'
    return f'{_safe(hostname, _HOST_MAX)}_gpu_{offer.gpu}_{label(offer)}'


@dataclasses.dataclass(frozen=True)
class ProviderName:
    """The parts of a provider's name.

    :ivar host: the compute node's name, or a similar text with a digest.
    :ivar gpu: PCI address.
    :ivar label: see :func:`label`.
    """

    host: str
    gpu: str
    label: str


def parse_provider_name(name: str) -> ProviderName | None:
    """Parse a name of :func:`provider_name`; None if it is not one."""
    found = _PROVIDER.fullmatch(name)
    return found and ProviderName(**found.groupdict())


@functools.lru_cache(_KEPT)
def provider_uuid(name: str) -> str:
    """The UUID that Cyborg's conductor gives to a provider by its name."""
    return str(uuid.uuid3(uuid.NAMESPACE_DNS, name))


@functools.lru_cache(_KEPT)
def token(text: str) -> str:
    """``text`` in the characters of custom names: A-Z, 0-9 and ``_``.

    In a GPU instance profile ``+`` and ``-`` mean opposite things and must
    not become the same underscore: ``1g.24gb+me`` becomes ``1G_24GB_ME``
    and ``1g.24gb-me`` becomes ``1G_24GB_NOME``. The hyphens of a vGPU type
    only separate: ``T4-2B`` becomes ``T4_2B``, as in Cyborg's own driver.
    """
    if _MIG_PROFILE.match(text):
        text = text.replace('-', '_no')
    plain = _NOT_CUSTOM.sub('_', text.upper()).strip('_')
    return plain or digest(text).upper()


def custom(*parts: str) -> str:
    """A name for Placement: ``CUSTOM_`` and the parts' tokens.

    The name has at most 255 characters; a longer one is cut and ends in a
    digest of the whole name.
    """
    name = '_'.join(('CUSTOM', *(token(part) for part in parts)))
    if len(name) > CUSTOM_NAME_MAX:
        name = _shortened(name, CUSTOM_NAME_MAX).replace('-', '_').upper()
    return name


def without_vendor(name: str) -> str:
    """NVML's name of a model, without a leading NVIDIA.

    Older drivers omit NVIDIA. What is made from the name must not depend on
    the driver's release.
    """
    return re.sub(r'^nvidia\s+(?=\S)', '', name, flags=re.IGNORECASE)


def resource_class(offer: offers.Offer) -> str:
    """The resource class of an offer's inventory.

    PGPU for a whole GPU, ``CUSTOM_NVIDIA_<PROFILE>`` otherwise. Each profile
    has its own class, so that a quota can name it. The class is never VGPU,
    because Nova's own mdev code would claim it. The class of a group of GPUs
    includes their model: ``CUSTOM_NVIDIA_NVLINK_2_H100_80GB_HBM3``.
    """
    if offer.mode is policy.Mode.NVLINK:
        return custom(VENDOR, offer.profile, without_vendor(offer.board))
    if offer.function:
        return offer.profile
    if offer.mode is policy.Mode.PASSTHROUGH:
        return orc.PGPU
    return custom(VENDOR, offer.profile)


# Traits of the offers, so that a device profile can ask for them. The table of
# doc/source/reference/index.rst says what each means.
#
# An unknown fact has no trait. The memory of a slice or vGPU is the number in
# the name of its type or profile, by which people know it (NVML's own number
# is a little less: 3g.40gb has 39.25 GiB). The memory of a whole GPU is also
# the number that people use: see :func:`of_whole`.

ISOLATED = custom('GPU', 'ISOLATION', 'PROJECT')
"""All servers on the GPU must be of one project."""
WITHDRAWN = custom('GPU', 'WITHDRAWN')
"""Reserved in full until an operator removes the provider."""
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


def traits_of_board(gpu: model.Gpu) -> tuple[str, ...]:
    """The traits of a GPU's hardware, independent of its use."""
    memory = whole_memory(gpu.memory_mib)
    return (custom(VENDOR, gpu.device_id), *_kind(gpu),
            *([custom('GPU', 'MEMORY', memory)] if memory else []))


def _product(gpu: model.Gpu, offer: offers.Offer) -> Iterator[str]:
    yield custom(VENDOR, gpu.device_id)
    if offer.mode is policy.Mode.PASSTHROUGH:
        return
    yield custom(VENDOR, gpu.device_id, offer.profile)
    type_name = vgpu_type_name(gpu, offer)
    if type_name:
        yield custom(VENDOR, gpu.device_id, type_name)


def _generic(gpu: model.Gpu, offer: offers.Offer) -> Iterator[str]:
    yield custom('GPU', 'KIND', offer.mode.value)
    yield from _kind(gpu)
    if gpu.numa_node is not None:
        yield custom('GPU', 'NUMA', str(gpu.numa_node))
    if gpu.pcie_root:
        yield custom('GPU', 'PCIE', 'ROOT', gpu.pcie_root)
    # The driver in the guest of a whole GPU does not depend on the host's.
    if gpu.driver_branch and offer.mode not in policy.WHOLE:
        yield custom('GPU', 'DRIVER', gpu.driver_branch)
    memory = memory_class(gpu, offer)
    if memory:
        yield custom('GPU', 'MEMORY', memory)
    if offer.isolated:
        yield ISOLATED
    if offer.withdrawn:
        yield WITHDRAWN


def _kind(gpu: model.Gpu) -> Iterator[str]:
    if gpu.model:
        yield custom('GPU', 'MODEL', without_vendor(gpu.model))
    if gpu.architecture:
        yield custom('GPU', 'ARCH', gpu.architecture)
    if gpu.compute_capability:
        yield custom('GPU', 'COMPUTE', gpu.compute_capability)


def _vgpu_type(gpu: model.Gpu, type_id: str | None
               ) -> model.VgpuType | model.MdevType | None:
    # This does not read the types of all functions in each report.
    return next((kind for kind in gpu.vgpu_types
                 if kind.mdev_type_id == type_id), None) or next((
                     kind for kinds in (gpu.mdev_types, *(
                         vf.mdev_types for vf in gpu.vfs))
                     for kind in kinds if kind.type_id == type_id), None)


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
        return whole_memory(gpu.memory_mib)
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


def whole_memory(mib: int | None) -> str | None:
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


# What is reported to Cyborg, as plain values.
#
# They mirror Cyborg's driver objects (``cyborg/objects/driver_objects``)
# field by field and hold the exact strings that Cyborg stores and compares.
# No value may change when servers come and go: Cyborg identifies handles by
# ``attach_info``, devices by ``cpid_info``, deployables by name and attributes
# by key, and acts on every difference.

DRIVER_NAME = 'cyborg_gpu_driver'
DEVICE_TYPE = 'GPU'
PCI = 'PCI'
"""Type of a device's control path, and of the handle of a whole GPU."""
MDEV = 'MDEV'

INFO_MAX = 255
"""Characters in Cyborg's columns attach_info, cpid_info, vendor, model."""


@dataclasses.dataclass(frozen=True)
class ReportedHandle:
    """One attach handle: what one server gets."""

    attach_type: str
    """PCI (a whole function) or MDEV (Cyborg calls the agent at bind)."""
    attach_info: str
    """Flat JSON object of strings, keys sorted; read by Nova."""
    address: model.PciAddress
    """The function in ``attach_info``: the GPU, or one of its VFs."""

    @property
    def asked_type(self) -> str | None:
        """The vGPU type with which Cyborg calls the agent at bind."""
        return json.loads(self.attach_info).get('asked_type')


@dataclasses.dataclass(frozen=True)
class ReportedDeployable:
    """One offer: one resource provider with one resource class."""

    name: str
    offer: offers.Offer
    """Without what depends on servers."""
    resource_class: str
    traits: tuple[str, ...]
    handles: tuple[ReportedHandle, ...]

    @property
    def num_accelerators(self) -> int:
        """The inventory's total: one for each handle, never 0."""
        return len(self.handles)

    @property
    def provider_uuid(self) -> str:
        return provider_uuid(self.name)

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """Cyborg's attributes: ``rc`` and one key for each trait.

        Cyborg compares attributes by key, so a trait's key is made from the
        trait. With numbered keys, traits would be lost when one is added or
        removed.
        """
        return (('rc', self.resource_class),
                *((f'trait_{trait}', trait) for trait in self.traits))


@dataclasses.dataclass(frozen=True)
class ReportedDevice:
    """One GPU.

    A device with ``stub`` set tells Cyborg not to change what it knows of
    that GPU.
    """

    address: model.PciAddress
    vendor: str
    model: str
    std_board_info: str
    vendor_board_info: str
    cpid_info: str
    deployables: tuple[ReportedDeployable, ...] = ()
    stub: bool = False
    busy: str = ''
    """Why some deployables are not available now, for example because
    processes of the machine use the GPU; empty otherwise."""
    busy_names: frozenset[str] = dataclasses.field(
        default=frozenset(), compare=False)
    """Names of the deployables that are not available for that reason."""
