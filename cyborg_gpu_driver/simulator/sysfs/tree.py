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

"""The sysfs of a machine: its files and their content.

Each part of the tree is built once, when it is first used. Nodes that come
and go (virtual functions, mdevs, bindings) are read from the machine's state
each time.
"""

from __future__ import annotations

import errno
import functools

from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator.driver import reset
from cyborg_gpu_driver.simulator.driver import vgpu as rules
from cyborg_gpu_driver.simulator.sysfs import nodes
from cyborg_gpu_driver.simulator.sysfs import tree_pci
from cyborg_gpu_driver.simulator.sysfs import tree_vgpu

_FIRST_GROUP = 40
"""The first IOMMU group that is used if the machine's file names none."""


def build(machine) -> nodes.Directory:
    """Return the root of a machine's tree."""
    return _Builder(machine).root()


class _Builder:
    def __init__(self, machine):
        self.machine = machine
        self.host = machine.host
        self.drivers = machine.drivers
        self.gpus = () if machine.host.wsl else machine.gpus
        self.vgpu_files = {gpu.address: tree_vgpu.VgpuFiles(gpu)
                           for gpu in self.gpus}
        self.functions = {function.address: function
                          for function in machine.host.functions}
        self.owner = {}
        for gpu in self.gpus:
            self.owner[gpu.address] = gpu
            self.owner.update((vf, gpu) for vf in gpu.vf_addresses)
        self.groups = self._iommu_groups()
        self._devices = {}

    def _iommu_groups(self):
        groups = {}
        number = _FIRST_GROUP
        given = {item.address: item.iommu_group for item
                 in (*self.host.functions, *self.host.gpus)
                 if item.iommu_group is not None}
        boards = {address: gpu.address for gpu in self.gpus
                  for address in self.functions
                  if address[:-1] == gpu.address[:-1]}
        for address in (*self.functions, *self.owner):
            if address in given:
                groups[address] = given[address]
            elif address not in boards:
                while number in given.values():
                    number += 1
                groups[address] = number
                number += 1
        # The IOMMU does not distinguish functions of one board.
        for address, board in boards.items():
            groups.setdefault(address, groups[board])
        return groups

    def root(self):
        directory = nodes.Directory
        entries = {
            'bus': directory({
                'pci': directory({
                    'devices': nodes.Listing(
                        self.present, _link, has=self.is_present),
                    'drivers': nodes.Listing(
                        self.drivers.names, self._driver),
                    'drivers_probe': nodes.File(
                        write=self.drivers.probe)}),
                'mdev': directory({
                    'devices': nodes.Listing(
                        self.mdevs, lambda uuid: nodes.Link(
                            f'{_place(self._mdev_parent(uuid))}/{uuid}'))},
                    present=self._has_mdev_bus)}),
            'class': directory({
                'mdev_bus': nodes.Listing(
                    self._mdev_parents, _link, present=self._has_mdev_bus),
                'misc': directory({
                    # The paravirtual GPU of WSL 2.
                    'dxg': directory({'dev': nodes.File('10:124')},
                                     present=lambda: self.host.wsl)})}),
            'devices': directory({
                'pci0000:00': nodes.Listing(
                    self.present, self._device, has=self.is_present)}),
            'kernel': directory({
                'iommu_groups': nodes.Listing(
                    self._group_names, self._group)}),
            'module': directory({
                'nvidia_drm': directory(
                    {'parameters': directory({'modeset': nodes.File(
                        lambda: 'Y' if self.machine.state.drm_modeset
                        else 'N')})},
                    present=lambda: self.machine.state.drm_modeset
                    is not None),
                'nvidia': directory(
                    {'version': nodes.File(self.host.driver_version)},
                    present=lambda: any(gpu.bound
                                        for gpu in self.gpus))}),
        }
        return directory(entries)

    def present(self) -> list[str]:
        """The addresses of all PCI functions that exist now."""
        addresses = list(self.functions)
        for gpu in self.gpus:
            addresses.append(gpu.address)
            addresses.extend(gpu.vfs())
        return sorted(addresses)

    def is_present(self, address: str) -> bool:
        """Whether a PCI function exists now."""
        gpu = self.owner.get(address)
        if gpu is None:
            return address in self.functions
        return address == gpu.address or address in gpu.vfs()

    def _driver(self, name):
        return nodes.Listing(
            lambda: [address for address in self.present()
                     if self.drivers.of(address) == name],
            _link, {
                'bind': nodes.File(
                    write=lambda text: self.drivers.bind(name, text)),
                'unbind': nodes.File(
                    write=lambda text: self.drivers.unbind(name, text))})

    def mdevs(self) -> list[str]:
        return [vgpu.uuid for gpu in self.gpus for vgpu in gpu.state.vgpus
                if vgpu.uuid]

    def _mdev_parent(self, uuid):
        return next(vgpu.function for gpu in self.gpus
                    for vgpu in gpu.state.vgpus if vgpu.uuid == uuid)

    def _has_mdev_bus(self):
        return any(gpu.framework == spec.MDEV for gpu in self.gpus)

    def _mdev_parents(self):
        return [function for gpu in self.gpus
                if gpu.framework == spec.MDEV
                for function in gpu.vgpu_functions()]

    def _group_names(self):
        return [*(str(self.groups[address]) for address in self.present()),
                *self._mdev_groups()]

    def _mdev_groups(self):
        """The mdevs by the number of their IOMMU group."""
        return {str(rules.iommu_group(vgpu)): vgpu.uuid for gpu in self.gpus
                for vgpu in gpu.state.vgpus if vgpu.uuid}

    def _group(self, name):
        return nodes.Directory({'devices': nodes.Listing(
            lambda: [address for address in self.present()
                     if str(self.groups[address]) == name],
            _link, {uuid: nodes.Link(f'{_place(self._mdev_parent(uuid))}'
                                     f'/{uuid}')
                    for group, uuid in self._mdev_groups().items()
                    if group == name})})

    def _device(self, address):
        # There are hundreds of functions with thousands of files. Each is
        # created once, when it is first used.
        if address not in self._devices:
            self._devices[address] = self._make_device(address)
        return self._devices[address]

    def _make_device(self, address):
        gpu = self.owner.get(address)
        entries = {
            'driver': nodes.Link(
                lambda: f'bus/pci/drivers/{self.drivers.of(address)}',
                present=lambda: self.drivers.of(address) is not None),
            'driver_override': nodes.File(
                lambda: self.drivers.override(address),
                lambda text: self.drivers.set_override(address, text)),
            'iommu_group': nodes.Link(
                f'kernel/iommu_groups/{self.groups[address]}'),
        }
        if gpu is None:
            function = self.functions[address]
            entries.update(_identity(
                function.vendor, function.device, function.class_code,
                function.vendor, '0000', function.numa_node))
            return nodes.Directory(entries)
        model = gpu.model
        entries.update(_identity(
            model.vendor, model.device, model.class_code,
            model.subsystem_vendor, model.subsystem_device,
            gpu.spec.numa_node))
        if address == gpu.address:
            entries.update(self._physical(gpu))
        else:
            entries['physfn'] = nodes.Link(_place(gpu.address))
        files = self.vgpu_files[gpu.address]
        entries.update(files.entries(address))
        return nodes.Listing(
            lambda: files.mdevs(address),
            lambda uuid: files.mdev(address, uuid), entries)

    def _physical(self, gpu):
        entries = {
            'reset': nodes.File(write=lambda text: self._reset(gpu, text)),
            'reset_method': nodes.File(self._reset_methods(gpu)),
            'drm': nodes.Directory({}, present=lambda: gpu.bound and
                                   gpu.machine.state.drm_modeset
                                   is not None)}
        entries.update(tree_pci.entries(gpu))
        # An H200 in a virtual machine has no SR-IOV capability.
        if not gpu.model.totalvfs or gpu.machine.host.virtual:
            return entries
        entries['sriov_totalvfs'] = nodes.File(str(gpu.model.totalvfs))
        entries['sriov_numvfs'] = nodes.File(
            lambda: str(gpu.state.vfs), _refuse_numvfs)
        for index, vf in enumerate(gpu.vf_addresses):
            entries[f'virtfn{index}'] = nodes.Link(
                _place(vf), present=functools.partial(
                    _has_function, gpu, index))
        return entries

    def _reset_methods(self, gpu):
        """The methods by which Linux can reset a GPU.

        pci_parent_bus_reset refuses if the bus has another function.
        """
        bus = gpu.address[:-4]
        alone = not any(address.startswith(bus)
                        for address in self.functions)
        return 'flr bus' if alone else 'flr'

    def _reset(self, gpu, text):
        if text.strip() != '1':
            raise OSError(errno.EINVAL, '')
        reset.by_kernel(gpu)


@functools.cache
def _link(address):
    return nodes.Link(_place(address))


def _has_function(gpu, index):
    return index < gpu.state.vfs


def _place(address):
    return f'devices/pci0000:00/{address}'


def _identity(vendor, device, class_code, subsystem_vendor,
              subsystem_device, numa_node):
    return {
        'vendor': nodes.File(f'0x{vendor}'),
        'device': nodes.File(f'0x{device}'),
        'class': nodes.File(f'0x{class_code}'),
        'subsystem_vendor': nodes.File(f'0x{subsystem_vendor}'),
        'subsystem_device': nodes.File(f'0x{subsystem_device}'),
        'numa_node': nodes.File(str(numa_node)),
        'modalias': nodes.File('pci:' + ''.join(
            key + value.upper() for key, value in (
                ('v0000', vendor), ('d0000', device),
                ('sv0000', subsystem_vendor), ('sd0000', subsystem_device),
                ('bc', class_code[:2]), ('sc', class_code[2:4]),
                ('i', class_code[4:])))),
    }


def _refuse_numvfs(text):
    # NVIDIA's driver leaves this to its own sriov-manage. The kernel then
    # has no function to call and returns ENOENT.
    raise OSError(errno.ENOENT, '')
