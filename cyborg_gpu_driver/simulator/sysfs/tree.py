# SPDX-License-Identifier: Apache-2.0

"""The sysfs of a machine: its files and their content.

Each part of the tree is built once, when it is first used. Nodes that come
and go (virtual functions, mdevs, bindings) are read from the machine's state
each time.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import struct

from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.driver import vgpu as rules
from cyborg_gpu_driver.simulator.sysfs import sysfs

# Files of a GPU in sysfs that the PCI core creates with any driver.
#
# Formats: Documentation/ABI/testing/sysfs-bus-pci and
# sysfs-bus-pci-devices-aer of Linux.

_CONFIG_BYTES = 256
"""The part that root reads, without the extended capabilities."""
_UNKNOWN_WIDTH = 63
"""All ones in the six bits of the link status register."""
_ERRORS = ('Undefined', 'DLP', 'SDES', 'TLP', 'FCP', 'CmpltTO',
           'CmpltAbrt', 'UnxCmplt', 'RxOF', 'MalfTLP', 'ECRC',
           'UnsupReq', 'ACSViol', 'UncorrIntErr', 'BlockedTLP',
           'AtomicOpBlocked', 'TLPBlockedErr')


def pci_entries(gpu: gpu_module.Gpu) -> dict[str, sysfs.Node]:
    """Return the files of a GPU by name."""
    return {
        'config': sysfs.File(lambda: _config(gpu)),
        'current_link_width': sysfs.File(lambda: str(
            _UNKNOWN_WIDTH if gpu.state.lost else gpu.state.lanes)),
        'aer_dev_fatal': sysfs.File(lambda: _errors(gpu.state.aer)),
    }


def _config(gpu):
    """The configuration space, of which only the ids are simulated.

    It is all ones for a GPU that is off the bus.
    """
    if gpu.state.lost:
        return b'\xff' * _CONFIG_BYTES
    return struct.pack('<HH', int(spec.NVIDIA, 16), int(gpu.model.device, 16)
                       ).ljust(_CONFIG_BYTES, b'\0')


def _errors(count):
    """A file of error counters. All errors count under the second name."""
    lines = [f'{name} {count if name == _ERRORS[1] else 0}'
             for name in _ERRORS]
    return '\n'.join((*lines, f'TOTAL_ERR_FATAL {count}'))


# The files that NVIDIA's driver has below ``/proc/driver/nvidia/gpus``.
#
# They are those of kernel-open/nvidia/nv-procfs.c in NVIDIA's open kernel
# modules. A GPU has them while it is bound to the driver.

def build_proc(machine) -> sysfs.Directory:
    """Return the root of a machine's tree."""
    return sysfs.Directory({'driver': sysfs.Directory({
        'nvidia': sysfs.Directory({'gpus': sysfs.Directory({
            gpu.address: _gpu(gpu) for gpu in machine.gpus})},
            present=lambda: any(gpu.bound for gpu in machine.gpus))})})


def _gpu(gpu):
    return sysfs.Directory({
        'information': sysfs.File(
            f'Model: \t\t {gpu.model.product}\n'
            f'Bus Location: \t {gpu.address}\n'
            f'Device Minor: \t {gpu.spec.minor}'),
        'power': sysfs.File(lambda: _power(gpu)),
        # nv_procfs_add_gpu makes it only if os_is_vgx_hyper().
        'unbindLock': sysfs.File(
            lambda: str(int(gpu.state.locked)), lambda text: _lock(gpu, text),
            present=lambda: gpu.machine.host.vgpu_driver)},
        present=lambda: gpu.bound)


def _power(gpu: gpu_module.Gpu) -> str:
    """The first lines of rm_get_power_info.

    It has question marks unless RM has the GPU attached: from the first use
    to the end of the last one, and in persistence mode also after that
    (nv_start_device and nv_stop_device in kernel-open/nvidia/nv.c).
    """
    status, memory = (('Disabled by default', 'Active')
                      if gpu.held() or gpu.state.persistence else ('?', '?'))
    return (f'Runtime D3 status:          {status}\n'
            f'Video Memory:               {memory}')


def _lock(gpu: gpu_module.Gpu, text: str) -> None:
    """Do what nv_procfs_close_unbind_lock does when the file is closed.

    A lock that is not granted is no error: the file reads 0 then.
    """
    if text.strip() not in ('0', '1'):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if text.strip() == '0':
        gpu.state.locked = False
    elif not gpu.held():
        gpu.state.locked = True


# The files that create vGPUs: mdev types and the vendor's VFIO files.

_UUID = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', re.I)


class VgpuFiles:
    """The files for vGPUs in the directories of one GPU's functions."""

    def __init__(self, gpu: gpu_module.Gpu):
        self.gpu = gpu
        self._kinds = {_type_id(kind): kind for kind in gpu.model.vgpu_types}

    def entries(self, address: str) -> dict[str, sysfs.Node]:
        """Return the entries for the directory of a PF or a VF."""
        gpu = self.gpu
        if gpu.vgpu_on_pf != (address == gpu.address):
            return {}
        if gpu.spec.framework == spec.MDEV:
            return {'mdev_supported_types': sysfs.Listing(
                self._kinds.keys,
                lambda name: self._type(address, self._kinds[name]),
                present=lambda: gpu.framework == spec.MDEV)}
        if gpu.spec.framework == spec.VENDOR_VFIO:
            return {
                'nvidia': sysfs.Directory(
                    self._vendor(address),
                    present=lambda: gpu.framework == spec.VENDOR_VFIO),
                'vfio-dev': sysfs.Directory(
                    {self._vfio_name(address): sysfs.Directory({})},
                    present=lambda: bool(gpu.vgpus_on(address)))}
        return {}

    def _vfio_name(self, address):
        """A name that no other function of the machine has."""
        functions = [vf for gpu in self.gpu.machine.gpus
                     for vf in gpu.vf_addresses]
        return f'vfio{functions.index(address)}'

    def mdevs(self, address: str) -> list[str]:
        return [vgpu.uuid for vgpu in self.gpu.vgpus_on(address)
                if vgpu.uuid]

    def mdev(self, address: str, uuid: str) -> sysfs.Node:
        kind = self.gpu.model.vgpu_type(self._vgpu(uuid).type_id)
        place = f'devices/pci0000:00/{address}'
        return sysfs.Directory({
            'mdev_type': sysfs.Link(
                f'{place}/mdev_supported_types/{_type_id(kind)}'),
            'iommu_group': sysfs.Link(
                f'kernel/iommu_groups/{rules.iommu_group(self._vgpu(uuid))}'),
            'remove': sysfs.File(
                write=lambda text: self._remove(uuid, text)),
            'nvidia': sysfs.Directory({
                'vgpu_params': sysfs.File(
                    lambda: self._vgpu(uuid).params,
                    lambda text: rules.set_params(
                        self.gpu, self._vgpu(uuid), text))}),
        })

    def _vgpu(self, uuid):
        return next(vgpu for vgpu in self.gpu.state.vgpus
                    if vgpu.uuid == uuid)

    def _type(self, address, kind):
        return sysfs.Directory({
            'name': sysfs.File(f'NVIDIA {kind.name}'),
            'description': sysfs.File(_description(kind)),
            'available_instances': sysfs.File(
                lambda: str(rules.available(self.gpu, kind, address))),
            'create': sysfs.File(
                write=lambda text: self._create(address, kind, text)),
            'devices': sysfs.Listing(
                lambda: [vgpu.uuid for vgpu in self.gpu.vgpus_on(address)
                         if vgpu.type_id == kind.type_id and vgpu.uuid],
                lambda uuid: sysfs.Link(
                    f'devices/pci0000:00/{address}/{uuid}')),
        })

    def _create(self, address, kind, text):
        # The kernel accepts only a UUID with or without a newline.
        uuid = text[:-1] if text.endswith('\n') else text
        if _UUID.fullmatch(uuid) is None:
            raise OSError(errno.EINVAL, '')
        uuid = uuid.lower()
        if any(vgpu.uuid == uuid for gpu in self.gpu.machine.gpus
               for vgpu in gpu.state.vgpus):
            raise OSError(errno.EEXIST, '')
        try:
            rules.create(self.gpu, kind, address, uuid)
        except faults.Unavailable:
            raise OSError(errno.ENOSPC, '') from None

    def _remove(self, uuid, text):
        if text.strip() not in ('0', '1'):
            raise OSError(errno.EINVAL, '')
        if text.strip() == '0':
            return
        rules.remove_mdev(self.gpu, self._vgpu(uuid))

    def _forget(self, vgpu):
        if vgpu.holders:
            raise OSError(errno.EBUSY, '')
        self.gpu.state.vgpus.remove(vgpu)

    def _vendor(self, address):
        return {
            'creatable_vgpu_types': sysfs.File(
                lambda: self._creatable(address)),
            'current_vgpu_type': sysfs.File(
                lambda: str(self._current(address)),
                lambda text: self._set_current(address, text)),
            'gpu_instance_id': sysfs.File(
                lambda: self._output(address, 'instance')),
            'placement_id': sysfs.File(
                lambda: self._output(address, 'placement')),
            'vgpu_params': sysfs.File(
                lambda: self._params(address),
                lambda text: self._set_params(address, text)),
        }

    def _creatable(self, address):
        lines = ['ID    : vGPU Name']
        lines += [f'{kind.type_id:<6}: NVIDIA {kind.name}'
                  for kind in self.gpu.model.vgpu_types
                  if rules.available(self.gpu, kind, address)]
        return '\n'.join(lines)

    def _current(self, address):
        vgpus = self.gpu.vgpus_on(address)
        return vgpus[0].type_id if vgpus else 0

    def _set_current(self, address, text):
        value = text.strip()
        if re.fullmatch('[0-9]+', value) is None:
            raise OSError(errno.EINVAL, '')
        vgpus = self.gpu.vgpus_on(address)
        if int(value) == 0:
            for vgpu in vgpus:
                self._forget(vgpu)
            return
        kind = self.gpu.model.vgpu_type(int(value))
        if kind is None:
            raise OSError(errno.EINVAL, '')
        if vgpus:
            raise OSError(errno.EBUSY, '')
        try:
            rules.create(self.gpu, kind, address, None)
        except faults.Unavailable:
            # The driver logs "Failed to add vgpu create request".
            raise OSError(errno.EIO, '') from None

    def _params(self, address):
        vgpus = self.gpu.vgpus_on(address)
        return vgpus[0].params if vgpus else ''

    def _set_params(self, address, text):
        vgpus = self.gpu.vgpus_on(address)
        if not vgpus:
            raise OSError(errno.ENXIO, '')
        rules.set_params(self.gpu, vgpus[0], text)

    def _output(self, address, name):
        """A value that the driver shows for a vGPU.

        :raises OSError: ENXIO while there is no vGPU or no such value.
        """
        vgpus = self.gpu.vgpus_on(address)
        if not vgpus or getattr(vgpus[0], name) is None:
            raise OSError(errno.ENXIO, '')
        return str(getattr(vgpus[0], name))


def _type_id(kind):
    return f'nvidia-{kind.type_id}'


def _description(kind):
    heads = 1 if kind.vgpu_class == 'Compute' else 4
    return (f'num_heads={heads}, frl_config=60, '
            f'framebuffer={kind.framebuffer_mib}M, '
            f'max_resolution=4096x2160, '
            f'max_instance={kind.max_instances}')


_FIRST_GROUP = 40
"""The first IOMMU group that is used if the machine's file names none."""


def build(machine) -> sysfs.Directory:
    """Return the root of a machine's tree."""
    return _Builder(machine).root()


class _Builder:
    def __init__(self, machine):
        self.machine = machine
        self.host = machine.host
        self.drivers = machine.drivers
        self.gpus = machine.gpus
        self.vgpu_files = {gpu.address: VgpuFiles(gpu)
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
        directory = sysfs.Directory
        entries = {
            'bus': directory({
                'pci': directory({
                    'devices': sysfs.Listing(
                        self.present, _link, has=self.is_present),
                    'drivers': sysfs.Listing(
                        self.drivers.names, self._driver),
                    'drivers_probe': sysfs.File(
                        write=self.drivers.probe)}),
                'mdev': directory({
                    'devices': sysfs.Listing(
                        self.mdevs, lambda uuid: sysfs.Link(
                            f'{_place(self._mdev_parent(uuid))}/{uuid}'))},
                    present=self._has_mdev_bus)}),
            'class': directory({
                'mdev_bus': sysfs.Listing(
                    self._mdev_parents, _link, present=self._has_mdev_bus)}),
            'devices': directory({
                'pci0000:00': sysfs.Listing(
                    self.present, self._device, has=self.is_present)}),
            'kernel': directory({
                'iommu_groups': sysfs.Listing(
                    self._group_names, self._group)}),
            'module': directory({
                'nvidia_drm': directory(
                    {'parameters': directory({'modeset': sysfs.File(
                        lambda: 'Y' if self.machine.state.drm_modeset
                        else 'N')})},
                    present=lambda: self.machine.state.drm_modeset
                    is not None),
                'nvidia': directory(
                    {'version': sysfs.File(self.host.driver_version)},
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
        return sysfs.Listing(
            lambda: [address for address in self.present()
                     if self.drivers.of(address) == name],
            _link, {
                'bind': sysfs.File(
                    write=lambda text: self.drivers.bind(name, text)),
                'unbind': sysfs.File(
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
        return sysfs.Directory({'devices': sysfs.Listing(
            lambda: [address for address in self.present()
                     if str(self.groups[address]) == name],
            _link, {uuid: sysfs.Link(f'{_place(self._mdev_parent(uuid))}'
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
            'driver': sysfs.Link(
                lambda: f'bus/pci/drivers/{self.drivers.of(address)}',
                present=lambda: self.drivers.of(address) is not None),
            'driver_override': sysfs.File(
                lambda: self.drivers.override(address),
                lambda text: self.drivers.set_override(address, text)),
            'iommu_group': sysfs.Link(
                f'kernel/iommu_groups/{self.groups[address]}'),
        }
        if gpu is None:
            function = self.functions[address]
            entries.update(_identity(
                function.vendor, function.device, function.class_code,
                '0000', function.numa_node))
            return sysfs.Directory(entries)
        model = gpu.model
        entries.update(_identity(
            spec.NVIDIA, model.device, spec.GPU_CLASS,
            model.subsystem_device, gpu.spec.numa_node))
        if address == gpu.address:
            entries.update(self._physical(gpu))
        else:
            entries['physfn'] = sysfs.Link(_place(gpu.address))
        files = self.vgpu_files[gpu.address]
        entries.update(files.entries(address))
        return sysfs.Listing(
            lambda: files.mdevs(address),
            lambda uuid: files.mdev(address, uuid), entries)

    def _physical(self, gpu):
        entries = {
            'reset': sysfs.File(write=lambda text: self._reset(gpu, text)),
            'reset_method': sysfs.File(self._reset_methods(gpu)),
            'drm': sysfs.Directory({}, present=lambda: gpu.bound and
                                   gpu.machine.state.drm_modeset
                                   is not None)}
        entries.update(pci_entries(gpu))
        # An H200 in a virtual machine has no SR-IOV capability.
        if not gpu.model.totalvfs or gpu.machine.host.virtual:
            return entries
        entries['sriov_totalvfs'] = sysfs.File(str(gpu.model.totalvfs))
        entries['sriov_numvfs'] = sysfs.File(
            lambda: str(gpu.state.vfs), _refuse_numvfs)
        for index, vf in enumerate(gpu.vf_addresses):
            entries[f'virtfn{index}'] = sysfs.Link(
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
        gpu_module.by_kernel(gpu)


@functools.cache
def _link(address):
    return sysfs.Link(_place(address))


def _has_function(gpu, index):
    return index < gpu.state.vfs


def _place(address):
    return f'devices/pci0000:00/{address}'


def _identity(vendor, device, class_code, subsystem_device, numa_node):
    return {
        'vendor': sysfs.File(f'0x{vendor}'),
        'device': sysfs.File(f'0x{device}'),
        'class': sysfs.File(f'0x{class_code}'),
        'subsystem_vendor': sysfs.File(f'0x{vendor}'),
        'subsystem_device': sysfs.File(f'0x{subsystem_device}'),
        'numa_node': sysfs.File(str(numa_node)),
        'modalias': sysfs.File('pci:' + ''.join(
            key + value.upper() for key, value in (
                ('v0000', vendor), ('d0000', device),
                ('sv0000', vendor), ('sd0000', subsystem_device),
                ('bc', class_code[:2]), ('sc', class_code[2:4]),
                ('i', class_code[4:])))),
    }


def _refuse_numvfs(text):
    # NVIDIA's driver leaves this to its own sriov-manage. The kernel then
    # has no function to call and returns ENOENT.
    raise OSError(errno.ENOENT, '')
