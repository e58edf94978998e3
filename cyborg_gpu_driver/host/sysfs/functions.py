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

"""Reads GPUs and their virtual functions from sysfs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import mdev
from cyborg_gpu_driver.host.sysfs import pci

Mdevs = Mapping[model.PciAddress, tuple[model.Mdev, ...]]


class FunctionReader:
    """Reads GPUs from the PCI bus and caches static facts.

    Facts that belong to a driver binding (IOMMU groups, mdev types) are read
    again when the driver or the number of virtual functions has changed.
    """

    def __init__(self, bus: pci.PciBus, tree: mdev.MdevTree):
        self._bus = bus
        self._tree = tree
        self._binding: dict[model.PciAddress, object] = {}
        self._virtual: dict[model.PciAddress,
                            tuple[model.PciAddress, ...]] = {}
        self._groups: dict[model.PciAddress, int | None] = {}

    def mdevs(self, problems: problems_module.Problems) -> Mdevs:
        """Return every live mdev of the machine, by its parent."""
        return self._tree.live(problems)

    def keep(self, present: Collection[model.PciAddress]) -> None:
        """Forget all functions except those in ``present``."""
        for known in (self._binding, self._virtual, self._groups):
            for address in [*known]:
                if address not in present:
                    # Another snapshot may do the same at the same time.
                    known.pop(address, None)
                    self._tree.forget(address)
                    self._tree.forget_function(address)

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
        self._renew(address, (driver, numvfs))
        with problems.noted('iommu_group'):
            group = self._group(address)
            neighbours = self._bus.neighbours(address, group)
        with problems.noted('virtual functions'):
            virtual = self._virtual_functions(address, numvfs)
            if len(virtual) < numvfs:
                problems.add(f'only {len(virtual)} of {numvfs} virtual '
                             'functions exist')
        return model.Gpu(
            address=address, vendor_id=identity.vendor_id,
            device_id=identity.device_id, class_code=identity.class_code,
            subsystem_vendor_id=identity.subsystem_vendor_id,
            subsystem_device_id=identity.subsystem_device_id,
            numa_node=identity.numa_node, iommu_group=group,
            neighbours=neighbours, driver=driver,
            sriov_totalvfs=identity.sriov_totalvfs, sriov_numvfs=numvfs,
            vfs=tuple(self._bare_function(function, index)
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
        on_gpu: tuple[model.MdevType, ...] = ()
        counted = gpu.mig is None or not gpu.mig.enabled
        if not gpu.vfs:
            with problems.noted('mdev types'):
                on_gpu = self._tree.types(gpu.address, gpu.address)
                if counted:
                    on_gpu = self._tree.available(gpu.address, on_gpu)
        vfs = []
        sample: tuple[model.MdevType, ...] = ()
        for function in gpu.vfs:
            noted = problems_module.Problems()
            with noted.noted('mdevs'):
                function = dataclasses.replace(
                    function, mdevs=mdevs.get(function.address, ()))
                function = self._with_vgpu(gpu.address, function)
                if counted:
                    function = self._counted(function, sample)
                    if not (function.mdevs or detail):
                        sample = function.mdev_types
            vfs.append(_with_problems(function, noted))
        vfs = self._with_vendors(vfs, detail)
        if vfs and all(function.problem for function in vfs):
            # Otherwise the others tell what the GPU has and can have.
            problems.add(f'virtual function {vfs[0].address}: '
                         f'{vfs[0].problem}')
        return dataclasses.replace(
            gpu, vfs=tuple(vfs), mdev_types=on_gpu,
            mdevs=mdevs.get(gpu.address, ()),
            framework=_framework(on_gpu, vfs))

    def _with_vgpu(self, gpu: model.PciAddress,
                   function: model.VirtualFunction) -> model.VirtualFunction:
        types = self._tree.types(gpu, function.address)
        return dataclasses.replace(
            function, mdev_types=types, current_vgpu_type=None if types else
            self._tree.current_vgpu_type(function.address))

    def _with_vendors(self, functions: Iterable[model.VirtualFunction],
                      detail: bool) -> list[model.VirtualFunction]:
        """Return the functions with what the vendor's VFIO driver reports.

        A function that has a vGPU takes no other, whatever its list says.
        """
        found, sample = [], None
        for function in functions:
            noted = problems_module.Problems()
            with noted.noted('vGPUs'):
                if function.current_vgpu_type:
                    function = self._with_outputs(function)
                elif function.current_vgpu_type == 0:
                    if sample is None or detail:
                        sample = self._tree.creatable_types(function.address)
                    function = dataclasses.replace(function,
                                                   creatable_types=sample)
            found.append(_with_problems(function, noted))
        return found

    def _with_outputs(self, function: model.VirtualFunction
                      ) -> model.VirtualFunction:
        return dataclasses.replace(
            function, creatable_types=(),
            gpu_instance_id=self._tree.vgpu_output(function.address,
                                                   'gpu_instance_id'),
            placement_id=self._tree.vgpu_output(function.address,
                                                'placement_id'))

    def _counted(self, function: model.VirtualFunction,
                 sample: tuple[model.MdevType, ...]) -> model.VirtualFunction:
        """Return a virtual function with how many more vGPUs it takes now.

        :param sample: the answer of another empty function of the GPU.
        """
        types = function.mdev_types
        if function.mdevs:
            # A virtual function takes only one vGPU.
            types = tuple(dataclasses.replace(mdev_type, available=0)
                          for mdev_type in types)
        elif [item.type_id for item in sample] == [
                item.type_id for item in types]:
            types = sample
        else:
            types = self._tree.available(function.address, types)
        return dataclasses.replace(function, mdev_types=types)

    def _renew(self, address: model.PciAddress, binding: object) -> None:
        """Forget what was read with another driver or number of VFs."""
        if self._binding.get(address) == binding:
            return
        self._binding[address] = binding
        self._tree.forget(address)
        for function in (address, *self._virtual.pop(address, ())):
            self._groups.pop(function, None)
            self._tree.forget_function(function)

    def _virtual_functions(self, address: model.PciAddress, numvfs: int
                           ) -> tuple[model.PciAddress, ...]:
        if address not in self._virtual:
            found = self._bus.virtual_functions(address, numvfs)
            if len(found) < numvfs:
                return found
            self._virtual[address] = found
        return self._virtual[address]

    def _bare_function(self, address: model.PciAddress, index: int
                       ) -> model.VirtualFunction:
        driver: str | None = None
        group: int | None = None
        noted = problems_module.Problems()
        with noted.noted('driver'):
            driver = self._bus.driver(address)
            if self._binding.get(address) != driver:
                self._binding[address] = driver
                self._groups.pop(address, None)
                self._tree.forget_function(address)
            group = self._group(address)
        return _with_problems(model.VirtualFunction(
            address=address, index=index, driver=driver, iommu_group=group),
            noted)

    def _group(self, address: model.PciAddress) -> int | None:
        if address not in self._groups:
            self._groups[address] = self._bus.iommu_group(address)
        return self._groups[address]


def _with_problems(function: model.VirtualFunction,
                   noted: problems_module.Problems) -> model.VirtualFunction:
    return dataclasses.replace(function, problem='; '.join(
        dict.fromkeys(filter(None, (function.problem, *noted.all())))))


def _framework(on_gpu: Collection[model.MdevType],
               vfs: Collection[model.VirtualFunction]) -> model.Framework:
    if on_gpu:
        return model.Framework.MDEV_PF
    if any(function.mdev_types for function in vfs):
        return model.Framework.MDEV_VF
    if any(function.current_vgpu_type is not None for function in vfs):
        return model.Framework.VENDOR_VFIO
    return model.Framework.NONE
