# SPDX-License-Identifier: Apache-2.0

"""The users of a simulated machine's GPUs: processes and guests."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import uuid
import weakref
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as driver_gpu
from cyborg_gpu_driver.simulator.driver import vgpu as rules
from cyborg_gpu_driver.simulator.machine import part

_FIRST_PID = 100000


class Users(part.Part):
    """The part of a machine that simulates processes and guests."""

    def holders(self, address: str) -> tuple[tuple[int, str], ...]:
        """Return the holders of a GPU's device node (``/dev/nvidia0``).

        :returns: process id and name of each process that has the node open,
            real or simulated; id 0 is a kernel module.
        """
        with self.operation():
            return tuple((holder.pid, holder.name)
                         for holder in self.gpu(address).holders())

    def add_holder(self, address: str, pid: int, name: str,
                   hidden: bool = False) -> None:
        """Let a simulated process open a GPU's device node.

        NVML does not list the process, because it computes nothing. Examples
        are DCGM (nv-hostengine) and nvsm.

        :param hidden: attach the GPU to another descriptor of the process, of
            /dev/nvidiactl or of a dma-buf (NV_ESC_ATTACH_GPUS_TO_FD in
            kernel-open/nvidia/nv.c, nv-dmabuf.c). proc does not show it.
        :raises HostUnusable: if the GPU is not bound to NVIDIA's driver.
        :raises OSError: ENODEV while the driver refuses to open the GPU.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            if not gpu.bound:
                raise exception.HostUnusable(
                    f'simulated machine {self.host.name!r}: {address} '
                    "has no device node: it is not bound to NVIDIA's "
                    'driver')
            if gpu.refused:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            gpu.state.outsiders.append(
                state_module.Holder(pid, name, hidden))

    def remove_holder(self, pid: int) -> None:
        """Let a simulated process close all device nodes."""
        with self.operation(write=True):
            for gpu in self.gpus:
                gpu.state.outsiders = [
                    holder for holder in gpu.state.outsiders
                    if holder.pid != pid]

    def leak_use(self, address: str, count: int = 1) -> None:
        """Let the driver forget to end some uses of a GPU.

        Then no process has the GPU open, but an unbind waits until the
        machine starts again (NVIDIA/open-gpu-kernel-modules#1119, #1374).
        """
        with self.operation(write=True):
            self.gpu(address).state.leaked += count

    def start_persistenced(self) -> None:
        """Start nvidia-persistenced, which opens all GPUs by default."""
        with self.operation(write=True):
            self.state.persistenced = True
            for gpu in self.gpus:
                gpu.state.daemon = gpu.bound
                gpu.state.returned = False

    def stop_persistenced(self) -> None:
        """Stop nvidia-persistenced, which closes all GPUs."""
        with self.operation(write=True):
            self.state.persistenced = False
            for gpu in self.gpus:
                gpu.state.daemon = False

    def load_drm(self, modeset: bool = True) -> None:
        """Load the kernel module nvidia_drm.

        With ``modeset=1`` the module holds each GPU (nv_drm_dev_load of
        nvidia-drm allocates a device if DRIVER_MODESET is set, which opens
        the GPU). NVIDIA/mig-parted#181 shows a reset that fails because of
        this.
        """
        with self.operation(write=True):
            self.state.drm_modeset = modeset

    def unload_drm(self) -> None:
        """Remove the kernel module nvidia_drm."""
        with self.operation(write=True):
            self.state.drm_modeset = None

    def add_process(self, address: str, pid: int,
                    instance: int | None = None,
                    compute: int | None = None) -> None:
        """Let a process use a GPU, or one of its instances."""
        gpu = self.gpu(address)
        with self.operation(write=True):
            if instance is not None:
                found = gpu.state.instances.get(instance)
                if found is None or (compute is not None
                                     and compute not in found.compute):
                    raise exception.HostUnusable(
                        f'simulated machine {self.host.name!r}: '
                        f'{address} has no such instance ({instance}, '
                        f'{compute})')
            gpu.state.processes.append(state_module.Process(
                pid=pid, instance=instance, compute=compute))

    def remove_process(self, pid: int) -> None:
        """Let a process end, so that it uses no GPU any more."""
        with self.operation(write=True):
            for gpu in self.gpus:
                gpu.state.processes = [
                    process for process in gpu.state.processes
                    if process.pid != pid]

    def start_guest(self, vgpu: str, vm: str = '') -> int:
        """Start a virtual machine on a vGPU, which then cannot be removed.

        :param vgpu: an mdev's UUID, the address of a function that carries
            a vGPU, or the address of a GPU that carries none, which the
            guest gets as a whole (:meth:`attach_whole`).
        :param vm: UUID of the virtual machine, or its number on hosts that
            know no UUID; empty for any UUID.
        :returns: id of the virtual machine's process.
        :raises OSError: if the virtual machine does not boot because of the
            placement requested in ``vgpu_params``: EINVAL if the type cannot
            have the placement, EBUSY if another vGPU overlaps it.
        """
        if self._is_whole(vgpu):
            return self.attach_whole(vgpu)
        with self.operation(write=True):
            gpu, found = self._vgpu(vgpu)
            if not found.guest:
                number = self.state.number()
                rules.start_guest(gpu, found, _FIRST_PID + number)
                found.vm = vm or str(uuid.UUID(int=number, version=4))
            return found.holders[-1]

    def stop_guest(self, vgpu: str) -> None:
        """Stop the virtual machine that :meth:`start_guest` started."""
        if self._is_whole(vgpu):
            self.detach_whole(vgpu)
            return
        with self.operation(write=True):
            found = self._vgpu(vgpu)[1]
            if found.guest:
                found.guest = False
                found.vm = ''
                found.holders.pop()

    def kill_guest(self, vgpu: str) -> None:
        """Kill a virtual machine with SIGKILL in its first seconds.

        Its virtual function serves no guest any more. Nothing shows that:
        writes to current_vgpu_type succeed, there is no XID and no message on
        the host. sriov-manage cures it (kernel/hypeman#321, #462: L40S, driver
        580, Linux 6.8).
        """
        self.stop_guest(vgpu)
        with self.operation(write=True):
            gpu, found = self._vgpu(vgpu)
            if found.function not in gpu.state.wedged:
                gpu.state.wedged.append(found.function)

    def work(self, address: str, **meters: Any) -> None:
        """Set how busy a GPU is.

        :param meters: fields of :class:`.state.Meters`.
        """
        gpu = self.gpu(address)
        with self.operation(write=True):
            gpu.state.meters = dataclasses.replace(gpu.state.meters, **meters)

    def work_instance(self, address: str, number: int,
                      percents: tuple[int, int, int, int]) -> None:
        """Set how busy a GPU instance is.

        :param number: id of the instance.
        :param percents: as in :class:`.state.Instance`.
        """
        with self.operation(write=True):
            self.gpu(address).state.instances[number].percents = list(percents)

    def work_vgpu(self, vgpu: str, used_mib: int,
                  percents: tuple[int, int, int, int]) -> None:
        """Set how busy a virtual machine keeps its vGPU.

        :param vgpu: an mdev's UUID, or the address of its function.
        :param used_mib: framebuffer in use.
        :param percents: how busy SMs, memory, encoder and decoder are.
        """
        with self.operation(write=True):
            found = self._vgpu(vgpu)[1]
            found.used_mib, found.percents = used_mib, list(percents)

    def define_domain(self, uuid: str, xml: str) -> None:
        """Define or change a domain of libvirt.

        :param xml: the XML that libvirt shows.
        """
        with self.operation(write=True):
            self.state.domains[uuid] = xml

    def undefine_domain(self, uuid: str) -> None:
        """Remove a domain from libvirt."""
        with self.operation(write=True):
            self.state.domains.pop(uuid, None)

    def open_vfio(self, vgpu: str, pid: int) -> None:
        """Let a process open a VFIO device, without a guest yet.

        :param vgpu: as for :meth:`start_guest`; a whole GPU must be bound to
            vfio-pci.
        """
        with self.operation(write=True):
            self._vfio(vgpu).insert(0, pid)

    def close_vfio(self, vgpu: str, pid: int) -> None:
        """Let a process close a VFIO device."""
        with self.operation(write=True):
            self._vfio(vgpu).remove(pid)

    def vfio_holders(self, name: str) -> tuple[int, ...]:
        """The processes that have a VFIO device open.

        :param name: the address of a function, or the UUID of an mdev.
        """
        with self.operation():
            whole = [pid for gpu in self.gpus if gpu.address == str(name)
                     for pid in gpu.state.vfio]
            return (*whole, *(pid for gpu in self.gpus
                              for vgpu in gpu.state.vgpus
                              if str(name) == (vgpu.uuid or vgpu.function)
                              for pid in vgpu.holders))

    def _is_whole(self, name):
        """Whether a name is the address of a GPU that carries no vGPU."""
        with self.operation():
            return any(gpu.address == str(name)
                       and not gpu.vgpus_on(gpu.address)
                       for gpu in self.gpus)

    def _vfio(self, name):
        """The list of processes that have a VFIO device open, to change it.
        """
        if not self._is_whole(name):
            return self._vgpu(name)[1].holders
        state = self.gpu(name).state
        if not driver_gpu.is_vfio(state.driver):
            raise exception.HostUnusable(
                f'simulated machine {self.host.name!r}: vfio-pci does '
                f'not have {name}')
        return state.vfio

    def _vgpu(self, name):
        for gpu in self.gpus:
            for vgpu in gpu.state.vgpus:
                if str(name) in (vgpu.uuid, vgpu.function):
                    return gpu, vgpu
        raise exception.HostUnusable(
            f'simulated machine {self.host.name!r}: there is no vGPU '
            f'{name}')


# Device nodes that processes have open: ``/dev/nvidia0`` and so on.
#
# NVML opens the nodes of all GPUs when the first session of a process starts,
# that of a GPU again when a caller requests a handle of the GPU, and closes
# all when the last session ends: seen on an H100 and an H200, driver
# 580.159.04. The kernel counts these opens.
#
# A machine with a state file has a real file for each node, and a process that
# opens the node opens that file. So the real kernel counts the opens: a
# process that dies has nothing open, a forked child has open what its parent
# had, and an executed program does not (NVML sets O_CLOEXEC).

_EVERYBODY = 0o1777
_UNSEEN = state_module.Holder(-1, 'a process of another user')


class Opens:
    """The nodes that NVML in this process has open, and all holders.

    Use it only within an operation on the machine.

    :param state: the machine's state file; None if it has none.
    """

    def __init__(self, state: str | None):
        self._directory = f'{os.path.realpath(state)}.dev' if state else ''
        self._process = os.getpid()
        self._open: dict[str, tuple[int, int | None]] = {}
        """Number of each open node, and descriptor of its file."""
        self._inherited: dict[str, int] = {}
        if self._directory:
            # Root comes first and creates the directory. Any user may then
            # open a GPU, because the mode of /dev/nvidia0 is 0666.
            with contextlib.suppress(OSError):
                os.mkdir(self._directory)
                os.chmod(self._directory, _EVERYBODY)
        weakref.finalize(self, _close, self._process, self._open)

    def open(self, gpu: driver_gpu.Gpu) -> None:
        """Open the node of a GPU, unless this process has it open."""
        self._notice_fork()
        found = self._open.get(gpu.address)
        if found is not None and found[0] == gpu.state.node:
            return
        if found is not None:
            _close_file(found[1])
        self._open[gpu.address] = (gpu.state.node, self._open_file(gpu))

    def close(self) -> None:
        """Close all nodes that this process has opened.

        Nodes that a forked child has inherited stay open until the child
        ends.
        """
        self._notice_fork()
        _close(self._process, self._open)

    def held(self, gpu: driver_gpu.Gpu) -> bool:
        """Whether any process has the node of a GPU open."""
        if not self._directory:
            return self._holds(gpu)
        try:
            descriptor = os.open(self._path(gpu), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def holders(self, gpu: driver_gpu.Gpu) -> list[state_module.Holder]:
        """Return the processes that have the node of a GPU open."""
        if not self.held(gpu):
            return []
        if not self._directory:
            return [_holder(os.getpid())]
        path = self._path(gpu)
        return [_holder(pid) for pid in _processes()
                if path in _files(pid)] or [_UNSEEN]

    def _holds(self, gpu):
        self._notice_fork()
        found = self._open.get(gpu.address)
        return gpu.state.node in (found and found[0],
                                  self._inherited.get(gpu.address))

    def _notice_fork(self):
        if self._process == os.getpid():
            return
        self._inherited.update((address, node) for address, (node, _)
                               in self._open.items())
        self._process = os.getpid()
        self._open.clear()

    def _path(self, gpu):
        return os.path.join(
            self._directory, f'nvidia{gpu.spec.minor}.{gpu.state.node}')

    def _open_file(self, gpu):
        if not self._directory:
            return None
        try:
            descriptor = _open_or_make(self._path(gpu))
        except OSError as error:
            raise exception.HostUnusable(
                f'simulated machine {error.filename!r}: '
                f'{error.strerror}') from error
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def remove(self, gpu: driver_gpu.Gpu) -> None:
        """Remove the node of a GPU, as the driver does when it is unbound."""
        if self._directory:
            # The file does not exist if no process has opened the node.
            with contextlib.suppress(OSError):
                os.unlink(self._path(gpu))
        gpu.state.node += 1


def _open_or_make(path):
    # With O_CREAT, Linux does not open another user's file in a directory
    # with the sticky bit, not even for root (fs.protected_regular).
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)


def _close(process, opened):
    """Close the nodes that a process has opened, if this is the process."""
    if process == os.getpid():
        for _, descriptor in opened.values():
            _close_file(descriptor)
        opened.clear()


def _close_file(descriptor):
    if descriptor is not None:
        os.close(descriptor)


def _processes():
    return [int(name) for name in os.listdir('/proc') if name.isdigit()]


def _files(pid):
    """The files that a process has open; none if they cannot be seen."""
    place = f'/proc/{pid}/fd'
    found = set()
    # The process may end or close a file meanwhile, or be another user's.
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f'{place}/{name}'))
    return found


def _holder(pid):
    try:
        with open(f'/proc/{pid}/comm', encoding='utf-8') as file:
            name = file.read().strip()
    except OSError:
        name = 'unknown'
    return state_module.Holder(pid, name)
