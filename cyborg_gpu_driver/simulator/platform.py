# SPDX-License-Identifier: Apache-2.0

"""A simulated machine as the platform on which the library works."""

from __future__ import annotations

import weakref

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import open_files
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.nvml import access
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.simulator import tools
from cyborg_gpu_driver.simulator.driver import gpu
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.simulator.sysfs import sysfs as simulated

_ACCESS: weakref.WeakKeyDictionary[
    machine_module.Machine, access.Access] = weakref.WeakKeyDictionary()
"""The NVML access that the sessions of this process share, by machine."""


def open_platform(machine: str | machine_module.Machine,
                  state: str | None = None) -> platform.Platform:
    """Return the platform of a simulated machine.

    From now on, pynvml in this process uses the simulated machine.

    :param machine: a name, a file, or a machine that is already loaded.
    :param state: file that keeps the machine's state between processes.
    :raises HostUnusable: if the machine cannot be loaded.
    """
    if isinstance(machine, str):
        machine = machine_module.Machine.load(machine, state)
    machine.install()
    return platform.Platform(
        sysfs=pci.Sysfs(simulated.ROOT, os_module=machine.os),
        nvml=nvml.NvmlSession(
            shared=_ACCESS.setdefault(machine, access.Access())),
        proc=pci.Sysfs('/proc', os_module=machine.proc),
        sleep=lambda seconds: None,
        simulated=True, sriov_manage=tools.sriov_manage(machine),
        mdevctl=tools.mdevctl(machine),
        vfio_holders=lambda name: _vfio_holders(machine, name),
        nvidia_smi=tools.nvidia_smi(machine),
        gpu_holders=lambda address: _gpu_holders(machine, address),
        fabric_manager=lambda: (machine.fabric_manager_runs
                                or machine.host.container),
        fabric_config=machine.fabric_config,
        load_fabric=machine.load_fabric_library,
        nv_fabricmanager=tools.fabric_manager(machine),
        module_aliases=lambda: gpu.ALIASES,
        libvirt=lambda: tools.Connection(machine),
        boot_id=lambda: machine.boot_id,
        is_root=lambda: machine.privileged,
        services=lambda: services.Running(frozenset(
            {services.NOVA_COMPUTE} if machine.host.unpatched_nova else ())))


def _gpu_holders(machine, address):
    """Find processes as host.device_node does in proc."""
    if machine.host.container:
        raise _others_hidden(f'GPU {address}')
    return tuple((pid, name) for pid, name in machine.holders(address) if pid)


def _vfio_holders(machine, name):
    """Find processes as host.usage does, which asks the kernel in a container.
    """
    found = machine.vfio_holders(name)
    if found and machine.host.container:
        raise _others_hidden(name)
    return found


def _others_hidden(what):
    return exception.UsageUnknown(
        what=what, reason=f'/proc: {open_files.OTHERS_HIDDEN}')
