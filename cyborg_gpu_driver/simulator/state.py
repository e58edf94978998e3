# SPDX-License-Identifier: Apache-2.0

"""The changeable state of a simulated machine, as plain values.

All values can be written as JSON and read back, so that several processes
can share one machine.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

import pynvml

from cyborg_gpu_driver.simulator import spec

FORMAT = 4
LANES = 16
"""PCIe lanes that each board has."""


@dataclasses.dataclass
class ComputeInstance:
    profile_id: int
    start: int
    size: int
    uuid: str
    serial: int


@dataclasses.dataclass
class Meters:
    """The values of a working GPU that monitoring reads."""

    gpu: int = 0
    """Percent of the time in which a kernel ran."""
    memory: int = 0
    """Percent of the time in which its memory was read or written."""
    links_down: list[int] = dataclasses.field(default_factory=list)
    """Numbers of NVLinks that are not active."""


@dataclasses.dataclass
class Scheduler:
    """The setting of how vGPUs share a GPU or a GPU instance."""

    policy: int = pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT
    arr: int = pynvml.NVML_VGPU_SCHEDULER_ARR_DEFAULT
    """Adaptive round robin (NVML_VGPU_SCHEDULER_ARR_*)."""
    time_slice: int = 0
    """In nanoseconds; 0 if it was not set."""


@dataclasses.dataclass
class Instance:
    """A GPU instance. ``serial`` differs between instances of the same id."""

    profile_id: int
    start: int
    size: int
    serial: int
    compute: dict[int, ComputeInstance] = dataclasses.field(
        default_factory=dict)
    scheduler: Scheduler = dataclasses.field(default_factory=Scheduler)
    """The scheduler of the vGPUs that share the GPU instance."""


@dataclasses.dataclass
class Vgpu:
    """A vGPU, created by an mdev or by a write to ``current_vgpu_type``."""

    vgpu_id: int
    """NVML's id of the vGPU instance."""
    type_id: int
    function: str
    """Address of the PF or VF that carries it."""
    uuid: str | None
    """The mdev's UUID; None with the vendor's VFIO driver."""
    instance: int | None
    """Id of the GPU instance behind it; None if time-sliced."""
    placement: int
    params: str = ''
    """The text written to its ``vgpu_params``."""
    guest: bool = False
    """Whether a virtual machine runs on it."""
    holders: list[int] = dataclasses.field(default_factory=list)
    """Processes that have its VFIO device open."""
    removing: bool = False
    """Whether the removal of its mdev waits for these processes."""
    vm: str = ''
    """UUID of the virtual machine that runs on it, or its number."""
    used_mib: int = 0
    """Framebuffer that the virtual machine uses."""
    percents: list[int] = dataclasses.field(
        default_factory=lambda: [0, 0, 0, 0])
    """How busy it keeps the GPU: SMs, memory, encoder, decoder."""


@dataclasses.dataclass
class Process:
    pid: int
    instance: int | None
    compute: int | None


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process or kernel module that has a device node open."""

    pid: int
    """0 for a kernel module, -1 for a process that cannot be seen."""
    name: str
    hidden: bool = False
    """Whether only the driver's usage count knows it: the GPU is attached to
    a descriptor of /dev/nvidiactl, or exported as a dma-buf."""


HOSTENGINE = Holder(913, 'nv-hostengine')
"""The process of DCGM."""


@dataclasses.dataclass(frozen=True)
class BlockedUnbind:
    """An unbind that had to wait for holders."""

    address: str
    driver: str
    holders: list[Holder]


@dataclasses.dataclass(frozen=True)
class Damage:
    """A mistake that would break something on a real machine."""

    address: str
    mistake: str


@dataclasses.dataclass
class Function:
    """The changeable state of a PCI function that is not one of our GPUs."""

    driver: str | None
    override: str | None = None


@dataclasses.dataclass
class Xid:
    """An error that the driver reported (nvmlEventTypeXidCriticalError)."""

    number: int
    """A number that increases with each event of the machine."""
    gpu: str
    xid: int | None
    """None for a double-bit error of the memory's ECC."""
    instance: int | None
    compute: int | None


@dataclasses.dataclass
class Gpu:
    driver: str | None
    mig: bool = False
    pending: bool = False
    vfs: int = 0
    lost: bool = False
    hung: bool = False
    """Whether NVML calls about the GPU do not return."""
    epoch: int = 0
    """Number of resets and unbinds. Handles of an earlier epoch are dead."""
    resets: int = 0
    override: str | None = None
    """The content of ``driver_override``."""
    removing: bool = False
    """Whether an unbind of the GPU's driver waits for holders."""
    vfio: list[int] = dataclasses.field(default_factory=list)
    """Processes that have the whole GPU's VFIO device open."""
    guest: bool = False
    """Whether a virtual machine has the whole GPU."""
    managed: bool = False
    """Whether libvirt returns the GPU to its driver after the guest ends."""
    dead: bool = False
    """Whether the GPU was reset without the knowledge of its driver."""
    node: int = 0
    """Number of the device node. An unbind removes the node; a bind creates
    another one."""
    outsiders: list[Holder] = dataclasses.field(default_factory=list)
    """Simulated processes that have the node open."""
    leaked: int = 0
    """Uses that no process can end any more."""
    locked: bool = False
    """Whether the driver refuses to open the GPU (unbindLock)."""
    daemon: bool = False
    """Whether nvidia-persistenced has the node open."""
    returned: bool = False
    """Whether the GPU was unbound since nvidia-persistenced started."""
    heterogeneous: bool = False
    scheduler: Scheduler = dataclasses.field(default_factory=Scheduler)
    remapped: list[int] = dataclasses.field(
        default_factory=lambda: [0, 0, 0, 0])
    """Correctable, uncorrectable, pending, failed row remappings."""
    ecc: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    """Corrected, uncorrected ECC errors since the driver was loaded."""
    ecc_modes: list[bool] = dataclasses.field(
        default_factory=lambda: [True, True])
    """Whether ECC is on now, and whether it is on after the next reset."""
    wedged: list[str] = dataclasses.field(default_factory=list)
    """Virtual functions on which no guest can use its vGPU any more."""
    stale: bool = False
    """Whether it keeps data of partitions of an earlier fabric manager."""
    confidential: bool = False
    """Whether a guest has turned confidential computing on in the board,
    which keeps it over resets and restarts."""
    migration: bool = True
    """Whether vGPUs can be live-migrated. No public source says which boards'
    firmware refuses it; RmEnableKvmVgpuMigration is on by default."""
    aer: int = 0
    """Fatal errors of its PCIe link (AER)."""
    lanes: int = LANES
    """PCIe lanes in use."""
    persistence: bool = False
    """Whether the driver keeps the GPU initialized while it is not open."""
    celsius: int = 31
    recovery: int | None = pynvml.NVML_GPU_RECOVERY_ACTION_NONE
    """The action that the driver recommends (NVML_GPU_RECOVERY_ACTION_*);
    None for a driver that is too old to report one."""
    instances: dict[int, Instance] = dataclasses.field(
        default_factory=dict)
    vgpus: list[Vgpu] = dataclasses.field(default_factory=list)
    processes: list[Process] = dataclasses.field(default_factory=list)
    meters: Meters = dataclasses.field(default_factory=Meters)

    def heal(self) -> None:
        """Set the state after a reset.

        Pending row remappings are done, counters are zero, and the pending
        ECC mode takes effect.
        """
        self.ecc_modes[0] = self.ecc_modes[1]
        self.remapped[2] = 0
        self.ecc = [0, 0]
        if self.recovery is not None:
            self.recovery = pynvml.NVML_GPU_RECOVERY_ACTION_NONE


@dataclasses.dataclass
class Fabric:
    """The changeable state of the fabric manager and of the NVSwitches."""

    mode: int = 0
    """FABRIC_MODE with which the fabric manager was started."""
    configured: int = 0
    """FABRIC_MODE in its configuration."""
    socket: str = ''
    """FM_CMD_UNIX_SOCKET_PATH."""
    version: str = ''
    """Version of the fabric manager; empty if it is the driver's."""
    restarted: bool = False
    """Whether it was started with ``--restart``."""
    waiting: bool = False
    """Whether it waits for the list of active partitions."""
    starts: int = 0
    """Number of its starts. A connection is valid until the next one."""
    active: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Virtual functions of each active partition, by its id."""
    excluded: list[str] = dataclasses.field(default_factory=list)
    """GPUs that the fabric manager could not use when it started."""


@dataclasses.dataclass
class State:
    gpus: dict[str, Gpu]
    functions: dict[str, Function] = dataclasses.field(
        default_factory=dict)
    """Other PCI functions, by address."""
    blocked: list[BlockedUnbind] = dataclasses.field(default_factory=list)
    damage: list[Damage] = dataclasses.field(default_factory=list)
    boot: int = 0
    """Starts of the driver. An NVML session is valid until the next one."""
    nvml: int = 0
    """The result of nvmlInit: NVML_SUCCESS, or why there is no NVML."""
    defined: list[str] = dataclasses.field(default_factory=list)
    """UUIDs of the mdevs that are defined in mdevctl's files."""
    domains: dict[str, str] = dataclasses.field(default_factory=dict)
    """XML of libvirt's domains, by UUID."""
    starts: int = 0
    """Number of starts of the machine."""
    fabric_manager: bool | None = None
    """Whether the fabric manager runs; None if it is not installed."""
    fabric: Fabric = dataclasses.field(default_factory=Fabric)
    drm_modeset: bool | None = None
    """The parameter of the module nvidia_drm; None if it is not loaded."""
    persistenced: bool = False
    """Whether nvidia-persistenced runs."""
    confidential_computing: str = ''
    """Mode of all GPUs: on, devtools, or empty for off."""
    xids: list[Xid] = dataclasses.field(default_factory=list)
    """The last hundred events, oldest first."""
    counter: int = 0
    """The last number that :meth:`number` returned. None is used twice."""

    def number(self) -> int:
        self.counter += 1
        return self.counter


def first(host: spec.Host) -> State:
    """Return the state in which a machine starts."""
    # nvidia-persistenced(1): by default, it turns persistence mode on for all
    # devices when it starts.
    return State(gpus={
        gpu.address: Gpu(driver=gpu.driver, mig=gpu.mig, pending=gpu.mig,
                         vfs=gpu.vfs,
                         daemon=gpu.driver == 'nvidia',
                         outsiders=openers(host, gpu))
        for gpu in host.gpus}, persistenced=True, functions={
            function.address: Function(function.driver)
            for function in host.functions},
        fabric_manager=host.has_switches or None,
        # nv_drm_modeset_module_param in nvidia-drm-os-interface.c of NVIDIA's
        # open kernel modules is true from 595.44 on. vGPU software for hosts
        # comes without nvidia_drm.
        drm_modeset=(None if host.vgpu_driver
                     else host.driver_since(595, 44)),
        fabric=Fabric(mode=host.fabric_mode, configured=host.fabric_mode))


def openers(host: spec.Host, gpu: spec.Gpu) -> list[Holder]:
    """Return the processes that open a GPU when the machine starts."""
    return ([HOSTENGINE] if host.dcgm and gpu.driver == 'nvidia' else [])


def to_json(state: State) -> dict[str, Any]:
    return dataclasses.asdict(state)


def from_json(value: dict[str, Any]) -> State:
    """Return the state from a value that :func:`to_json` wrote.

    :raises TypeError, KeyError, ValueError: if the value is something else.
    """
    return _decoded(State, value)


def _decoded(kind: Any, value: Any) -> Any:
    if kind in _VALUES:
        return kind(**value | {
            name: _decoded(hint, value[name])
            for name, hint in _nested(kind).items() if name in value})
    *keys, items = typing.get_args(kind)
    if keys:
        return {int(key) if keys == [int] else key: _decoded(items, item)
                for key, item in value.items()}
    return [_decoded(items, item) for item in value]


_VALUES = frozenset({
    BlockedUnbind, ComputeInstance, Damage, Fabric, Function, Gpu, Holder,
    Instance, Meters, Process, Scheduler, State, Vgpu, Xid})


@functools.cache
def _nested(kind: Any) -> dict[str, Any]:
    """The types of the fields that JSON does not keep, by name."""
    return {name: hint for name, hint in typing.get_type_hints(kind).items()
            if _VALUES & {hint, *typing.get_args(hint)}}
