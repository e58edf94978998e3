# SPDX-License-Identifier: Apache-2.0

"""Reads GPUs and their virtual functions from sysfs."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci

# vGPUs as sysfs shows them: mdev types, live mdevs, vendor VFIO.
#
# Documentation/driver-api/vfio-mediated-device.rst of the kernel describes
# the mdev files. NVIDIA's vGPU guide describes the ``nvidia/`` directory of a
# virtual function, for kernels without mdev.

DEVICES = ('bus', 'mdev', 'devices')
"""The mdevs of the machine in sysfs, by UUID."""
_TYPES = 'mdev_supported_types'
_MAX_INSTANCE = re.compile(r'\bmax_instance=(\d{1,9})\b', re.ASCII)
_FRAMEBUFFER = re.compile(r'\bframebuffer=(\d{1,9})M\b', re.ASCII)
_CREATABLE = re.compile(r'\s*(\d{1,9})\s*(?::|$)', re.ASCII)
_NUMBER = re.compile(r'\d{1,10}', re.ASCII)
_NONE = frozenset({0xffff, 0xffffffff})
"""NVML's numbers for no placement and for no GPU instance (nvml.h)."""


class MdevTree:
    """Reads mdev types and mdevs, and caches the types of one GPU.

    A type's name and description belong to the GPU's driver; they are read
    once, not once for each virtual function.
    """

    def __init__(self, sysfs: pci.Sysfs):
        self._sysfs = sysfs
        self._types: dict[str, model.MdevType] = {}
        self._listed: dict[model.PciAddress, tuple[str, ...]] = {}

    def forget(self, function: model.PciAddress) -> None:
        """List a function's types again."""
        self._listed.pop(function, None)

    def types(self, function: model.PciAddress
              ) -> tuple[model.MdevType, ...]:
        """The mdev types of a function, without their availability."""
        if function not in self._listed:
            names = tuple(sorted(self._sysfs.listdir(
                *pci.DEVICES, str(function), _TYPES), key=_type_number))
            if not names:
                # The driver may yet publish them: look again next time.
                return ()
            self._listed[function] = names
        for name in self._listed[function]:
            if name not in self._types:
                self._types[name] = self._describe(function, name)
        return tuple(self._types[name] for name in self._listed[function])

    def available(self, function: model.PciAddress,
                  types: tuple[model.MdevType, ...]
                  ) -> tuple[model.MdevType, ...]:
        """Return ``types`` with how many more a function can take now."""
        return tuple(
            dataclasses.replace(mdev_type, available=pci.number(
                self._sysfs.read(*pci.DEVICES, str(function), _TYPES,
                                 mdev_type.type_id, 'available_instances'),
                'available_instances'))
            for mdev_type in types)

    def live(self, problems: problems_module.Problems
             ) -> Mapping[model.PciAddress, tuple[model.Mdev, ...]]:
        """Return every mdev of the machine, by its parent."""
        found = collections.defaultdict(list)
        with problems.noted('mdevs'):
            for uuid in self._sysfs.listdir(*DEVICES):
                with problems.noted(f'mdev {uuid}'):
                    mdev = self._mdev(uuid)
                    if mdev is not None:
                        found[mdev.parent].append(mdev)
        return {parent: tuple(sorted(mdevs))
                for parent, mdevs in found.items()}

    def _mdev(self, uuid: str) -> model.Mdev | None:
        """One mdev; None if it is gone or its parent is no PCI function."""
        place = self._sysfs.link_parts(*DEVICES, uuid)
        type_id = self._sysfs.link_name(*DEVICES, uuid, 'mdev_type')
        if len(place) < 2 or type_id is None:
            return None
        try:
            parent = model.PciAddress.parse(place[-2])
        except exception.InvalidValue:
            return None
        return model.Mdev(uuid=uuid, parent=parent, type_id=type_id)

    def current_vgpu_type(self, function: model.PciAddress) -> int | None:
        """Type of the vGPU on a function of vendor VFIO; 0 for no vGPU.

        :returns: None if the function has no such file.
        """
        return pci.number(self._sysfs.read_optional(
            *pci.DEVICES, str(function), 'nvidia', 'current_vgpu_type'),
            'current_vgpu_type')

    def creatable_types(self, function: model.PciAddress
                        ) -> tuple[int, ...] | None:
        """vGPU types that can be created on a function of vendor VFIO now.

        None if the function has no such file. NVIDIA shows the table with a
        line "ID : vGPU Name" (vGPU software documentation) and without it
        (README of kubevirt-gpu-device-plugin). Lines without an id are
        ignored.
        """
        text = self._sysfs.read_optional(
            *pci.DEVICES, str(function), 'nvidia', 'creatable_vgpu_types')
        if not text:
            return None if text is None else ()
        return tuple(sorted({int(match[1]) for match
                             in map(_CREATABLE.match, text.splitlines())
                             if match}))

    def vgpu_output(self, function: model.PciAddress, name: str
                    ) -> int | None:
        """Return a number of the vGPU on a function of vendor VFIO.

        :returns: None if the driver reports none, by whatever word, or there
            is no vGPU (ENXIO).
        """
        text = self._sysfs.read_optional(
            *pci.DEVICES, str(function), 'nvidia', name)
        if text is None or not _NUMBER.fullmatch(text):
            return None
        value = int(text)
        return None if value in _NONE else value

    def _describe(self, function: model.PciAddress, type_id: str
                  ) -> model.MdevType:
        place = (*pci.DEVICES, str(function), _TYPES, type_id)
        words = self._sysfs.read(*place, 'name').split()
        description = self._sysfs.read_optional(*place, 'description') or ''
        return model.MdevType(
            type_id=type_id, name=words[-1] if words else type_id,
            available=None,
            max_instances=_find(_MAX_INSTANCE, description),
            framebuffer_mib=_find(_FRAMEBUFFER, description))


def _find(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None


def _type_number(type_id: str) -> tuple[int, str]:
    """Sort ``nvidia-63`` before ``nvidia-222``."""
    number = type_id.rpartition('-')[2]
    return (int(number) if _NUMBER.fullmatch(number) else 0, type_id)


Mdevs = Mapping[model.PciAddress, tuple[model.Mdev, ...]]


@dataclasses.dataclass
class _Known:
    """What does not change while a GPU has its driver and its functions."""

    binding: tuple[str | None, int]
    """The driver, and the number of virtual functions."""
    tree: MdevTree
    virtual: tuple[model.PciAddress, ...] | None = None
    """None until all virtual functions exist."""
    groups: dict[model.PciAddress, int | None] = dataclasses.field(
        default_factory=dict)
    """IOMMU groups of the GPU and its virtual functions."""
    drivers: dict[model.PciAddress, str | None] = dataclasses.field(
        default_factory=dict)
    """Drivers of the virtual functions."""


class FunctionReader:
    """Reads GPUs from the PCI bus and caches static facts.

    Facts that belong to a driver binding (IOMMU groups, mdev types) are read
    again when the driver or the number of virtual functions has changed.
    """

    def __init__(self, bus: pci.PciBus, sysfs: pci.Sysfs):
        self._bus = bus
        self._sysfs = sysfs
        self._known: dict[model.PciAddress, _Known] = {}

    def mdevs(self, problems: problems_module.Problems) -> Mdevs:
        """Return every live mdev of the machine, by its parent."""
        return MdevTree(self._sysfs).live(problems)

    def keep(self, present: Collection[model.PciAddress]) -> None:
        """Forget all GPUs except those in ``present``."""
        for address in [*self._known]:
            if address not in present:
                # Another snapshot may do the same at the same time.
                self._known.pop(address, None)

    def bare(self, identity: pci.Identity,
             problems: problems_module.Problems) -> model.Gpu:
        """Return a GPU without its vGPUs and without NVML's facts."""
        address = identity.address
        driver, numvfs, group, neighbours = None, 0, None, None
        virtual: tuple[model.PciAddress, ...] = ()
        with problems.noted('driver'):
            driver = self._bus.driver(address)
        with problems.noted('virtual functions'):
            if identity.sriov_totalvfs:
                numvfs = self._bus.numvfs(address)
        known = self._known.get(address)
        if known is None or known.binding != (driver, numvfs):
            known = self._known[address] = _Known(
                (driver, numvfs), MdevTree(self._sysfs))
        with problems.noted('iommu_group'):
            group = self._group(known, address)
            neighbours = self._bus.neighbours(address, group)
        with problems.noted('virtual functions'):
            virtual = known.virtual or self._bus.virtual_functions(
                address, numvfs)
            if len(virtual) < numvfs:
                problems.add(f'only {len(virtual)} of {numvfs} virtual '
                             'functions exist')
            else:
                known.virtual = virtual
        return model.Gpu(
            address=address, vendor_id=identity.vendor_id,
            device_id=identity.device_id, class_code=identity.class_code,
            subsystem_vendor_id=identity.subsystem_vendor_id,
            subsystem_device_id=identity.subsystem_device_id,
            numa_node=identity.numa_node, pcie_root=identity.pcie_root,
            iommu_group=group,
            neighbours=neighbours, driver=driver,
            sriov_totalvfs=identity.sriov_totalvfs, sriov_numvfs=numvfs,
            vfs=tuple(self._bare_function(known, function, index)
                      for index, function in enumerate(virtual)),
            physfn=identity.physfn)

    def with_vgpus(self, gpu: model.Gpu, mdevs: Mdevs,
                   problems: problems_module.Problems,
                   detail: bool = False) -> model.Gpu:
        """The GPU with its vGPUs, their framework and what can be created.

        :param gpu: a GPU with its MIG state. In MIG mode, how many more mdevs
            can be created follows from the instances and is not read.
        :param detail: read what can be created on each virtual function.
            Otherwise only one empty function is read, because it is the same
            on all empty functions of a GPU.
        """
        known = self._known.get(gpu.address)
        tree = known.tree if known else MdevTree(self._sysfs)
        on_gpu: tuple[model.MdevType, ...] = ()
        counted = gpu.mig is None or not gpu.mig.enabled
        if not gpu.vfs:
            with problems.noted('mdev types'):
                on_gpu = tree.types(gpu.address)
                if counted:
                    on_gpu = tree.available(gpu.address, on_gpu)
        vfs = []
        sample: dict[str, Any] = {}
        for function in gpu.vfs:
            noted = problems_module.Problems(filter(None, [function.problem]))
            found: dict[str, Any] = {}
            with noted.noted('vGPUs'):
                # What was read before an error stays.
                found.update(_vgpu_facts(
                    tree, function.address, mdevs.get(function.address, ()),
                    counted, {} if detail else sample))
            vfs.append(dataclasses.replace(
                function, **found, problem='; '.join(noted.all())))
        if vfs and all(function.problem for function in vfs):
            # Otherwise the others tell what the GPU has and can have.
            problems.add(f'virtual function {vfs[0].address}: '
                         f'{vfs[0].problem}')
        return dataclasses.replace(
            gpu, vfs=tuple(vfs), mdev_types=on_gpu,
            mdevs=mdevs.get(gpu.address, ()),
            framework=_framework(on_gpu, vfs))

    def _bare_function(self, known: _Known, address: model.PciAddress,
                       index: int) -> model.VirtualFunction:
        driver: str | None = None
        group: int | None = None
        noted = problems_module.Problems()
        with noted.noted('driver'):
            driver = self._bus.driver(address)
            if known.drivers.get(address) != driver:
                known.drivers[address] = driver
                known.groups.pop(address, None)
                known.tree.forget(address)
            group = self._group(known, address)
        return model.VirtualFunction(
            address=address, index=index, driver=driver, iommu_group=group,
            problem='; '.join(noted.all()))

    def _group(self, known: _Known, address: model.PciAddress) -> int | None:
        if address not in known.groups:
            known.groups[address] = self._bus.iommu_group(address)
        return known.groups[address]


def _vgpu_facts(tree: MdevTree, address: model.PciAddress,
                mdevs: tuple[model.Mdev, ...], counted: bool,
                sample: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields about the vGPU of a virtual function, by name.

    A function that has a vGPU takes no other, whatever its list says.

    :param counted: whether to read how many more mdevs it can have.
    :param sample: what other empty functions of the GPU can create.
    """
    yield 'mdevs', mdevs
    types = tree.types(address)
    yield 'mdev_types', types
    if types and not counted:
        return
    if mdevs:
        yield 'mdev_types', tuple(dataclasses.replace(kind, available=0)
                                  for kind in types)
    elif types:
        names = [kind.type_id for kind in types]
        if names != sample.get('names'):
            sample.update(names=names, types=tree.available(address, types))
        yield 'mdev_types', sample['types']
    else:
        current = tree.current_vgpu_type(address)
        yield 'current_vgpu_type', current
        if current:
            yield 'creatable_types', ()
            for name in ('gpu_instance_id', 'placement_id'):
                yield name, tree.vgpu_output(address, name)
        elif current == 0:
            if 'creatable' not in sample:
                sample['creatable'] = tree.creatable_types(address)
            yield 'creatable_types', sample['creatable']


def _framework(on_gpu: Collection[model.MdevType],
               vfs: Collection[model.VirtualFunction]) -> model.Framework:
    if on_gpu:
        return model.Framework.MDEV_PF
    if any(function.mdev_types for function in vfs):
        return model.Framework.MDEV_VF
    if any(function.current_vgpu_type is not None for function in vfs):
        return model.Framework.VENDOR_VFIO
    return model.Framework.NONE
