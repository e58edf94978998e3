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

"""The machine underneath: the real one, or a simulated one in its place."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from stevedore import driver

from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import domains
from cyborg_gpu_driver.host.fabric import config as fabric_config
from cyborg_gpu_driver.host.fabric import session as fabric_session
from cyborg_gpu_driver.host.health import reader as health
from cyborg_gpu_driver.host.nvml import access
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.host.sysfs import files as sysfs
from cyborg_gpu_driver.record import boards

NAMESPACE = 'cyborg_gpu_driver.platform'
_SRIOV_MANAGE = '/usr/lib/nvidia/sriov-manage'
_MDEVCTL = 'mdevctl'
_NVIDIA_SMI = 'nvidia-smi'
_NV_FABRICMANAGER = 'nv-fabricmanager'
_DRIVER_TIMEOUT = 60.0


@dataclasses.dataclass(frozen=True)
class Platform:
    """The two ways into a machine's GPUs."""

    sysfs: sysfs.Sysfs
    nvml: nvml.NvmlSession
    simulated: bool = False
    sriov_manage: str | Callable[[str, bool], str] = _SRIOV_MANAGE
    """Path of NVIDIA's script. A simulated machine has a callable in its
    place: of the GPU's address and whether virtual functions are to be made
    (True) or removed; it returns or raises (ProcessExecutionError of
    oslo.concurrency) what running the script would."""
    mdevctl: str | Callable[..., str] = _MDEVCTL
    """Name or path of mdevctl, or a callable of its arguments, as above."""
    vfio_holders: Callable[[str], tuple[int, ...]] | None = None
    """A simulated machine's answer to who has the VFIO device of a function
    (by address) open: process ids. None looks through ``/proc``."""
    nvidia_smi: str | Callable[..., str] = _NVIDIA_SMI
    """Name or path of nvidia-smi, or a callable of its arguments, as above;
    it raises FileNotFoundError where nvidia-smi is not installed."""
    gpu_holders: Callable[[str], tuple[tuple[int, str], ...]] | None = None
    """A simulated machine's answer to who has the device node of a GPU (by
    address) open: process ids and names. None looks through ``/proc``."""
    fabric_manager: Callable[[], bool] | None = None
    """A simulated machine's answer to whether NVIDIA's fabric manager runs.
    None looks through ``/proc``."""
    fabric_config: str | Callable[[], str] = fabric_config.PATH
    """Path of the fabric manager's configuration. A simulated machine has a
    callable that returns its text or raises OSError."""
    load_fabric: Callable[[str], Any] = ctypes.CDLL
    """Loads libnvfm, by its name."""
    nv_fabricmanager: str | Callable[..., str] = _NV_FABRICMANAGER
    """Name or path of the fabric manager, or a callable of its arguments; it
    raises FileNotFoundError where the fabric manager is not installed."""
    driver_timeout: float = _DRIVER_TIMEOUT
    """Seconds that a kernel driver may take to let go of a GPU, or to take
    one."""
    libvirt: Callable[[], Any] = domains.connect
    """Opens a connection of libvirt's Python module for reading. A simulated
    machine has what it needs of one."""
    boot_id: Callable[[], str] = health.boot_id
    """Tells one start of the machine from another."""
    is_root: Callable[[], bool] = lambda: os.geteuid() == 0
    """Whether this process may change the machine itself."""
    records: gpu_record.Records = gpu_record.Records()
    """What is kept of GPUs that NVML cannot be asked about."""

    @functools.cached_property
    def fabric(self) -> fabric_session.FabricSession:
        """The connection to NVIDIA's fabric manager."""
        return fabric_session.FabricSession(
            lambda: fabric_config.read(self.fabric_config), self.load_fabric)


def real(sysfs_root: str = '/sys', sriov_manage: str = _SRIOV_MANAGE,
         mdevctl: str = _MDEVCTL, nvidia_smi: str = _NVIDIA_SMI,
         fabric: str = fabric_config.PATH) -> Platform:
    """This machine. Opens nothing yet."""
    return Platform(sysfs=sysfs.Sysfs(sysfs_root), nvml=nvml.NvmlSession(),
                    sriov_manage=sriov_manage, mdevctl=mdevctl,
                    nvidia_smi=nvidia_smi, fabric_config=fabric)


def simulated(machine: str, state: str | None = None) -> Platform:
    """A simulated machine under the real pynvml.

    Loaded as a plug-in, so that nothing of the simulator is imported where
    real GPUs are driven.

    :param machine: the name of a host shipped with the library, or a file.
    :param state: file that keeps the machine between processes; None keeps
        it in this process's memory.
    :raises SimulationError: if there is no such machine.
    """
    plugin = driver.DriverManager(NAMESPACE, 'simulated').driver
    return plugin(machine, state)


def from_conf(conf: cfg.ConfigOpts) -> Platform:
    """The machine that ``[gpu]`` names, real or simulated.

    :raises SimulationError: if ``[gpu] simulate`` names none.
    """
    if conf.gpu.simulate:
        machine = simulated(conf.gpu.simulate, conf.gpu.simulate_state)
    else:
        machine = real(conf.gpu.sysfs_root, conf.gpu.sriov_manage,
                       conf.gpu.mdevctl, conf.gpu.nvidia_smi,
                       conf.gpu.fabric_manager_config)
    machine.nvml.timeout = conf.gpu.nvml_timeout
    # A simulated host in memory is this process's alone, and so are its locks.
    in_memory = conf.gpu.simulate and not conf.gpu.simulate_state
    machine.nvml.gate.access = access.Access(
        None if in_memory else gpu_conf.state_path(conf),
        conf.gpu.access_timeout)
    return dataclasses.replace(
        machine, driver_timeout=float(conf.gpu.driver_timeout),
        records=boards.Boards(gpu_conf.state_path(conf)))
