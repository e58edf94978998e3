# SPDX-License-Identifier: Apache-2.0

"""NVIDIA's display functions on the PCI bus, from sysfs."""

from __future__ import annotations

import dataclasses
import errno as errno_codes
import fnmatch
import functools
import os
import re
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole

# Files of sysfs, read and written one system call at a time.
#
# The only module that opens a file below ``/sys``. A simulated machine
# replaces the kernel through ``root`` and ``os_module``: it passes an object
# with the few functions of :mod:`os` that are used here.

_ABSENT = frozenset({errno_codes.ENOENT, errno_codes.ENOTDIR,
                     errno_codes.ENODEV, errno_codes.ENXIO})
_READ_LIMIT = 1 << 20


class Sysfs:
    """sysfs below ``root``.

    Callers pass paths as components, and only this class joins them. It
    refuses a component that could leave the tree before it builds a path.

    :param os_module: has the functions ``open``, ``read``, ``write``,
        ``close``, ``listdir``, ``readlink`` and ``stat``.
    """

    def __init__(self, root: str = '/sys', os_module: Any = os) -> None:
        self.root = root
        self._os = os_module

    def read(self, *parts: str) -> str:
        """Return the text of a file without surrounding white space."""
        return self.read_bytes(*parts).decode('utf-8', 'replace').strip()

    def read_bytes(self, *parts: str) -> bytes:
        """Return the content of a file."""
        path = self._path(parts)
        try:
            descriptor = self._os.open(path, os.O_RDONLY)
            try:
                return self._os.read(descriptor, _READ_LIMIT)
            finally:
                self._os.close(descriptor)
        except OSError as error:
            raise _sysfs_error('read', path, error) from error

    def read_optional(self, *parts: str) -> str | None:
        """Like :meth:`read`; None if there is no such file."""
        try:
            return self.read(*parts)
        except exception.SysfsError as error:
            if error.errno in _ABSENT:
                return None
            raise

    def write(self, value: str, *parts: str) -> None:
        """Write a control file with exactly one write.

        A buffered file object would repeat a refused write when it is
        closed, and a control file would act twice.
        """
        path = self._path(parts)
        try:
            descriptor = self._os.open(path, os.O_WRONLY)
            try:
                self._os.write(descriptor, value.encode('ascii'))
            finally:
                self._os.close(descriptor)
        except OSError as error:
            raise _sysfs_error('write', path, error) from error

    def apart(self, seconds: float, act: Callable[..., str | None],
              *arguments: str) -> str:
        """Call a method of this object that may never return.

        A call that hangs in the kernel cannot be interrupted, and keeps its
        process from ending. So a child process makes the call. A simulated
        kernel may be in this process's memory and is called in a thread.

        :raises TimeoutError: if the call did not return; it may still do so.
        """
        call = (deadline.call_apart if self._os is os
                else deadline.call_in_thread)
        return call(seconds, functools.partial(act, *arguments))

    def listdir(self, *parts: str) -> list[str]:
        """Return the sorted names in a directory; empty if it is missing."""
        path = self._path(parts)
        try:
            return sorted(self._os.listdir(path))
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise _sysfs_error('list', path, error) from error

    def link_name(self, *parts: str) -> str | None:
        """Last component of a symbolic link's target, None without one."""
        target = self.link_parts(*parts)
        return target[-1] if target else None

    def link_parts(self, *parts: str) -> tuple[str, ...]:
        """Components of a symbolic link's target, empty without one."""
        path = self._path(parts)
        try:
            return tuple(self._os.readlink(path).split('/'))
        except OSError as error:
            if error.errno in _ABSENT or error.errno == errno_codes.EINVAL:
                return ()
            raise _sysfs_error('follow', path, error) from error

    def exists(self, *parts: str) -> bool:
        """Whether there is such a file, directory or link target."""
        try:
            self._os.stat(self._path(parts))
        except OSError:
            return False
        return True

    def _path(self, parts: tuple[str, ...]) -> str:
        for part in parts:
            if (not part or part in ('.', '..') or '/' in part
                    or '\0' in part):
                raise exception.InvalidValue(
                    what='sysfs path component', value=part,
                    expected='expected a plain file name')
        return '/'.join((self.root, *parts))


def _sysfs_error(action: str, path: str, error: OSError
                 ) -> exception.SysfsError:
    return exception.SysfsError(action=action, path=path, errno=error.errno,
                                reason=os.strerror(error.errno or 0))


DEVICES = ('bus', 'pci', 'devices')
_NVIDIA = '10de'
_DISPLAY = ('0300', '0302')
"""VGA compatible and 3D controller (PCI Code and ID Assignment)."""
_UNREADABLE = '0000'
_VIRTUAL = re.compile(r'virtfn([0-9]{1,5})', re.ASCII)
_ROOT = re.compile(r'pci([0-9a-f]{4,8}:[0-9a-f]{2})', re.ASCII)
_BRIDGE = '0680'
"""Other bridge device: the class of NVSwitches."""
_VFIO_ALIAS = re.compile(r'^alias vfio_(pci:\S+) (\S+)$', re.ASCII | re.M)
HOPPER_NVSWITCHES = frozenset(f'22a{digit:x}' for digit in range(8))
"""Device ids of the NVSwitches of Hopper (nvswitch_ls10_device_ids in
src/common/nvswitch/kernel/nvswitch.c of NVIDIA's open kernel modules). Later
NVSwitches are not PCI functions of the host."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """The properties of a PCI function while it is on the bus."""

    address: model.PciAddress
    vendor_id: str
    device_id: str
    class_code: str
    subsystem_vendor_id: str | None
    subsystem_device_id: str | None
    numa_node: int | None
    pcie_root: str | None
    physfn: model.PciAddress | None
    """The physical function of a virtual function (``physfn``)."""
    physfn_known: bool
    """False if ``physfn`` was not read: it may be a virtual function."""
    sriov_totalvfs: int
    problems: tuple[str, ...] = ()


def module_aliases() -> str:
    """Return the text of modules.alias of the running kernel; '' without it.
    """
    try:
        with open(f'/lib/modules/{os.uname().release}/modules.alias',
                  encoding='utf-8', errors='replace') as stream:
            return stream.read()
    except OSError:
        return ''


def physical_function(sysfs: Sysfs, name: str
                      ) -> model.PciAddress | None:
    """Return the physical function of a virtual one; None for others."""
    link = sysfs.link_name(*DEVICES, name, 'physfn')
    return model.PciAddress.parse(link) if link else None


class PciBus:
    """Lists the NVIDIA GPUs on the PCI bus, and caches their identities.

    A function's identity is read once and kept while the function stays
    on the bus.
    """

    def __init__(self, sysfs: Sysfs):
        self._sysfs = sysfs
        self._known: dict[str, Identity | None] = {}
        self.has_nvswitches = False
        """Whether :meth:`functions` has found an NVSwitch."""

    def functions(self, problems: problems_module.Problems
                  ) -> tuple[Identity, ...]:
        """NVIDIA's functions of class 0300 and 0302, also virtual functions.

        :param problems: receives why functions may be missing. If the bus
            itself cannot be listed, the functions seen last are returned.
        """
        try:
            names = self._sysfs.listdir(*DEVICES)
        except exception.SysfsError as error:
            problems.add(f'PCI functions: {error}')
        else:
            self._identify_all(names, problems)
        return tuple(sorted(
            (identity for identity in self._known.values() if identity),
            key=lambda identity: identity.address))

    def _identify_all(self, names: Iterable[str],
                      problems: problems_module.Problems) -> None:
        known: dict[str, Identity | None] = {}
        for name in names:
            identity = self._known.get(name)
            # An identity that was read only in part is read again.
            if name in self._known and not (identity and identity.problems):
                known[name] = identity
                continue
            try:
                known[name] = self._identify(name)
            except exception.GpuDriverError as error:
                problems.add(f'PCI function {name}: {error}')
        self._known = known

    def _identify(self, name: str) -> Identity | None:
        """Return the identity of an NVIDIA GPU; None for other functions."""
        if self._hex(name, 'vendor') != _NVIDIA:
            return None
        class_code = self._hex(name, 'class')[:4]
        self.has_nvswitches |= class_code == _BRIDGE
        if class_code not in _DISPLAY:
            return None
        found = problems_module.Problems()
        device_id, subsystem_vendor, subsystem_device = (
            self._optional_hex(name, file, found)
            for file in ('device', 'subsystem_vendor', 'subsystem_device'))
        numa_node = root = totalvfs = physfn = None
        with found.noted('numa_node'):
            numa_node = self._number(name, 'numa_node')
        with found.noted('path in sysfs'):
            root = self._root(name)
        with found.noted('sriov_totalvfs'):
            totalvfs = self._number(name, 'sriov_totalvfs')
        physfn_known = False
        with found.noted('physfn'):
            physfn = physical_function(self._sysfs, name)
            physfn_known = True
        return Identity(
            address=model.PciAddress.parse(name), vendor_id=_NVIDIA,
            device_id=device_id or _UNREADABLE, class_code=class_code,
            subsystem_vendor_id=subsystem_vendor,
            subsystem_device_id=subsystem_device,
            numa_node=None if numa_node == -1 else numa_node,
            pcie_root=root, physfn=physfn, physfn_known=physfn_known,
            sriov_totalvfs=totalvfs or 0,
            problems=found.all())

    def _root(self, name: str) -> str | None:
        """Return domain and bus of a function's root complex.

        The link of a function leads to
        ``devices/pci0000:16/0000:16:01.0/...``.
        """
        found = map(_ROOT.fullmatch, self._sysfs.link_parts(*DEVICES, name))
        return next((match[1] for match in found if match), None)

    def _hex(self, name: str, file: str) -> str:
        return self._sysfs.read(*DEVICES, name, file).removeprefix('0x')

    def _optional_hex(self, name: str, file: str,
                      found: problems_module.Problems) -> str | None:
        with found.noted(file):
            return self._hex(name, file)
        return None

    def _number(self, name: str, file: str) -> int | None:
        return number(self._sysfs.read_optional(*DEVICES, name, file), file)

    def driver(self, address: model.PciAddress) -> str | None:
        """The kernel driver that a function is bound to."""
        return self._sysfs.link_name(*DEVICES, str(address), 'driver')

    def vfio_driver(self, address: model.PciAddress, aliases: str) -> str:
        """The driver that gives a function to guests.

        Single boards have one of their own: the memory of a Grace board is
        not behind its BARs (nvgrace_gpu_vfio_pci in drivers/vfio/pci of
        Linux). Such a driver has an alias with the ids of its functions, and
        vfio-pci one for all functions. The alias with the fewest wildcards
        counts, as in libvirt (virPCIDeviceFindBestVFIOVariant).
        """
        name = self._sysfs.read_optional(*DEVICES, str(address), 'modalias')
        found = [(pattern.count('*'), module) for pattern, module in
                 _VFIO_ALIAS.findall(aliases)
                 if fnmatch.fnmatchcase(name or '', pattern)]
        module = min(found)[1] if found else ''
        return whole.VFIO_PCI if module in ('', 'vfio_pci') else module

    def nvswitches(self) -> frozenset[str]:
        """Device ids of the NVSwitches of this machine."""
        return frozenset(
            self._hex(name, 'device') for name in self._sysfs.listdir(*DEVICES)
            if self._hex(name, 'vendor') == _NVIDIA
            and self._hex(name, 'class')[:4] == _BRIDGE)

    def iommu_group(self, address: model.PciAddress) -> int | None:
        """A function's IOMMU group."""
        return number(self._sysfs.link_name(
            *DEVICES, str(address), 'iommu_group'), 'iommu_group')

    def neighbours(self, address: model.PciAddress, group: int | None
                   ) -> tuple[whole.Neighbour, ...]:
        """Return the other functions in the IOMMU group of a function."""
        if group is None:
            return ()
        return tuple(
            whole.Neighbour(name, self._hex(name, 'class')[:4],
                            self._sysfs.link_name(*DEVICES, name, 'driver'))
            for name in self._sysfs.listdir('kernel', 'iommu_groups',
                                            str(group), 'devices')
            if name != str(address))

    def numvfs(self, address: model.PciAddress) -> int:
        """Return how many virtual functions are enabled.

        Counts their links ``virtfn<n>``. A read of ``sriov_numvfs`` waits for
        the lock of the device (sriov_numvfs_show in drivers/pci/iov.c, since
        commit 35ff867b7657 in Linux 5.5). The kernel holds this lock while a
        driver is unbound or bound, which may never end, and a process that
        waits for it cannot be killed.
        """
        found = map(_VIRTUAL.fullmatch,
                    self._sysfs.listdir(*DEVICES, str(address)))
        return max((int(match[1]) + 1 for match in found if match), default=0)

    def virtual_functions(self, address: model.PciAddress, numvfs: int
                          ) -> tuple[model.PciAddress, ...]:
        """Return the addresses of virtual functions, in order of their index.

        There are fewer than ``numvfs`` while they are being removed.
        """
        found = []
        for index in range(numvfs):
            name = self._sysfs.link_name(
                *DEVICES, str(address), f'virtfn{index}')
            if name is None:
                break
            found.append(model.PciAddress.parse(name))
        return tuple(found)


def number(text: str | None, what: str) -> int | None:
    """Return the number in a file of sysfs; None if there was no file."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise exception.InvalidValue(
            what=what, value=text, expected='expected a number') from None
