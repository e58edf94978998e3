# SPDX-License-Identifier: Apache-2.0

"""The machine that the library works on: the real or a simulated one."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import time
from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from stevedore import driver

from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import domains
from cyborg_gpu_driver.host import services as services_module
from cyborg_gpu_driver.host.fabric import config as fabric_config
from cyborg_gpu_driver.host.fabric import session as fabric_session
from cyborg_gpu_driver.host.nvml import access
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.record import store

NAMESPACE = 'cyborg_gpu_driver.platform'
SRIOV_MANAGE = '/usr/lib/nvidia/sriov-manage'
MDEVCTL = 'mdevctl'
_Files = pci.Sysfs
_BOOT_ID = '/proc/sys/kernel/random/boot_id'


def boot_id() -> str:
    """Return the kernel's id of this boot.

    Empty if the kernel has none, for example outside of Linux.
    """
    try:
        with open(_BOOT_ID, encoding='ascii') as stream:
            return stream.read().strip()
    except OSError:
        return ''


@dataclasses.dataclass(frozen=True)
class Platform:
    """The two ways into a machine's GPUs."""

    sysfs: pci.Sysfs
    nvml: nvml.NvmlSession
    simulated: bool = False
    proc: _Files = dataclasses.field(default_factory=lambda: _Files('/proc'))
    """The files of NVIDIA's driver in proc."""
    sriov_manage: str | Callable[[str, bool], str] = SRIOV_MANAGE
    """Path of NVIDIA's script. A simulated machine has a callable instead. It
    takes the GPU's address and whether to create (True) or remove virtual
    functions. It returns or raises (ProcessExecutionError of
    oslo.concurrency) what the script would."""
    mdevctl: str | Callable[..., str] = MDEVCTL
    """Name of mdevctl, or a callable with its arguments, as above."""
    vfio_holders: Callable[[str], tuple[int, ...]] | None = None
    """On a simulated machine, returns the ids of the processes that have the
    VFIO device of a function (by address) or mdev (by UUID) open. None
    searches ``/proc``."""
    nvidia_smi: str | Callable[..., str] = 'nvidia-smi'
    """Name of nvidia-smi, or a callable with its arguments, as above,
    which raises FileNotFoundError if nvidia-smi is not installed."""
    gpu_holders: Callable[[str], tuple[tuple[int, str], ...]] | None = None
    """On a simulated machine, returns the ids and names of the processes that
    have the device node of a GPU (by address) open. None searches ``/proc``.
    """
    fabric_manager: Callable[[], bool] | None = None
    """On a simulated machine, returns whether NVIDIA's fabric manager runs.
    None searches ``/proc``."""
    fabric_config: str | Callable[[], str] = fabric_config.PATH
    """Path of the fabric manager's configuration. A simulated machine has a
    callable that returns its text or raises OSError."""
    load_fabric: Callable[[str], Any] = ctypes.CDLL
    """Loads libnvfm, by its name."""
    nv_fabricmanager: str | Callable[..., str] = 'nv-fabricmanager'
    """Name or path of the fabric manager, or a callable with its arguments,
    which raises FileNotFoundError if the fabric manager is not installed."""
    sleep: Callable[[float], object] = time.sleep
    """Called between two attempts at something that may pass."""
    driver_timeout: float = 60.0
    """Seconds that a kernel driver may take to unbind or to bind a GPU."""
    libvirt: Callable[[], Any] = domains.connect
    """Opens a read-only connection with libvirt's Python module. A simulated
    machine has the parts of a connection that are used here."""
    module_aliases: Callable[[], str] = pci.module_aliases
    """Returns which functions the kernel's modules are for (modules.alias)."""
    boot_id: Callable[[], str] = boot_id
    """Returns an id that differs for each boot of the machine."""
    is_root: Callable[[], bool] = lambda: os.geteuid() == 0
    """Whether this process may change the machine itself."""
    services: Callable[[], services_module.Running | None] = (
        services_module.running)
    """Returns the services that run on the machine; None if unknown."""
    records: gpu_record.Records = gpu_record.Records()
    """The records of GPUs that NVML cannot be queried about."""

    @functools.cached_property
    def fabric(self) -> fabric_session.FabricSession:
        """The connection to NVIDIA's fabric manager."""
        return fabric_session.FabricSession(
            lambda: fabric_config.read(self.fabric_config), self.load_fabric)


def simulated(machine: str, state: str | None = None) -> Platform:
    """Return a simulated machine under the real pynvml.

    It is loaded as a plug-in, so that a host with real GPUs imports nothing
    of the simulator.

    :param state: file that keeps the machine between processes; None keeps
        the machine in the memory of this process.
    """
    plugin = driver.DriverManager(NAMESPACE, 'simulated').driver
    return plugin(machine, state)


def from_conf(conf: cfg.ConfigOpts) -> Platform:
    """Return the machine that ``[gpu]`` names, real or simulated."""
    if conf.gpu.simulate:
        machine = simulated(conf.gpu.simulate, conf.gpu.simulate_state)
    else:
        machine = Platform(
            pci.Sysfs(conf.gpu.sysfs_root), nvml.NvmlSession())
    machine.nvml.timeout = conf.gpu.nvml_timeout
    # A simulated host in memory and its locks are for this process alone.
    in_memory = conf.gpu.simulate and not conf.gpu.simulate_state
    machine.nvml.access = access.Access(
        None if in_memory else gpu_conf.state_path(conf),
        gpu_conf.ACCESS_SECONDS)
    return dataclasses.replace(
        machine, records=store.of(gpu_conf.state_path(conf)))
