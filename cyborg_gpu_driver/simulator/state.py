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

"""What changes on a simulated machine, as plain values.

Everything here can be written as JSON and read back, so that several
processes share one machine.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pynvml

from cyborg_gpu_driver.simulator import spec

FORMAT = 3
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
    """What changes of a GPU while it works, as monitoring reads it."""

    gpu: int = 0
    """Percent of the time in which a kernel ran."""
    memory: int = 0
    """Percent of the time in which its memory was read or written."""
    millijoules: int = 0
    """Since the driver was loaded."""
    sent: int = 0
    received: int = 0
    """Bytes through PCIe."""
    replays: int = 0
    """PCIe packets that were sent again."""
    link_errors: int = 0
    """Recoveries of NVLinks, all of them on the first link."""
    links_down: list[int] = dataclasses.field(default_factory=list)
    """Numbers of NVLinks that are not active."""


@dataclasses.dataclass
class Scheduler:
    """How vGPUs share a GPU or a GPU instance, as it was set.

    0 stands for what was left open.
    """

    policy: int = pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT
    arr: int = pynvml.NVML_VGPU_SCHEDULER_ARR_DEFAULT
    """Adaptive round robin (NVML_VGPU_SCHEDULER_ARR_*)."""
    average: int = 0
    frequency: int = 0
    time_slice: int = 0
    """In nanoseconds."""


@dataclasses.dataclass
class Instance:
    """A GPU instance. ``serial`` tells it from others of the same id."""

    profile_id: int
    start: int
    size: int
    serial: int
    compute: dict[int, ComputeInstance] = dataclasses.field(
        default_factory=dict)
    scheduler: Scheduler = dataclasses.field(default_factory=Scheduler)
    """Of the vGPUs that share it."""


@dataclasses.dataclass
class Vgpu:
    """A vGPU, made by an mdev or by a write to ``current_vgpu_type``."""

    vgpu_id: int
    """NVML's vGPU instance."""
    type_id: int
    function: str
    """Address of the PF or VF that carries it."""
    uuid: str | None
    """The mdev's UUID; None with the vendor's VFIO driver."""
    instance: int | None
    """Id of the GPU instance behind it; None if time-sliced."""
    placement: int
    params: str = ''
    """What was written to its ``vgpu_params``."""
    guest: bool = False
    """Whether a virtual machine runs on it."""
    holders: list[int] = dataclasses.field(default_factory=list)
    """Processes that have its VFIO device open."""
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
    """Who has a device node open."""

    pid: int
    """0 for a kernel module, -1 for a process that cannot be seen."""
    name: str


@dataclasses.dataclass(frozen=True)
class BlockedUnbind:
    """An unbind that had to wait for holders."""

    address: str
    driver: str
    holders: list[Holder]


@dataclasses.dataclass(frozen=True)
class Damage:
    """A mistake that has broken something on a real machine."""

    address: str
    mistake: str


@dataclasses.dataclass
class Function:
    """What changes of a PCI function that is not one of our GPUs."""

    driver: str | None
    override: str | None = None


@dataclasses.dataclass
class Xid:
    """An error that the driver has told (nvmlEventTypeXidCriticalError)."""

    number: int
    """Grows with each event of the machine."""
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
    """Whether no call about it returns."""
    epoch: int = 0
    """Counts resets and unbinds: handles of an earlier one are dead."""
    resets: int = 0
    override: str | None = None
    """What is written to ``driver_override``."""
    removing: bool = False
    """Whether its driver waits for holders before it leaves."""
    vfio: list[int] = dataclasses.field(default_factory=list)
    """Processes that have the whole GPU's VFIO device open."""
    guest: bool = False
    """Whether a virtual machine has the whole GPU."""
    managed: bool = False
    """Whether libvirt gives it back to its driver after the guest."""
    dead: bool = False
    """Whether it was reset under a driver that did not know."""
    node: int = 0
    """Counts device nodes: an unbind removes one, a bind makes another."""
    outsiders: list[Holder] = dataclasses.field(default_factory=list)
    """Simulated processes that have the node open."""
    heterogeneous: bool = False
    scheduler: Scheduler = dataclasses.field(default_factory=Scheduler)
    remapped: list[int] = dataclasses.field(
        default_factory=lambda: [0, 0, 0, 0])
    """Correctable, uncorrectable, pending, failed row remappings."""
    ecc: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    """Corrected, uncorrected ECC errors since the driver was loaded."""
    ecc_modes: list[bool] = dataclasses.field(
        default_factory=lambda: [True, True])
    """Whether ECC is on, and will be after the next reset."""
    migration: bool = True
    """Whether vGPUs can be live-migrated. No public source tells which
    boards' firmware says no; RmEnableKvmVgpuMigration is on by default."""
    aer: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0])
    """Correctable, nonfatal, fatal errors of its PCIe link (AER)."""
    lanes: int = LANES
    """PCIe lanes in use."""
    persistence: bool = True
    """Whether the driver keeps it initialized while nobody has it open."""
    celsius: int = 31
    recovery: int | None = pynvml.NVML_GPU_RECOVERY_ACTION_NONE
    """What the driver asks for (NVML_GPU_RECOVERY_ACTION_*); None for one
    that is too old to say it."""
    instances: dict[int, Instance] = dataclasses.field(
        default_factory=dict)
    vgpus: list[Vgpu] = dataclasses.field(default_factory=list)
    processes: list[Process] = dataclasses.field(default_factory=list)
    meters: Meters = dataclasses.field(default_factory=Meters)

    def heal(self) -> None:
        """Be as a reset leaves it.

        Rows are remapped, counters at zero, and the pending ECC mode is in
        effect.
        """
        self.ecc_modes[0] = self.ecc_modes[1]
        self.remapped[2] = 0
        self.ecc = [0, 0]
        if self.recovery is not None:
            self.recovery = pynvml.NVML_GPU_RECOVERY_ACTION_NONE


@dataclasses.dataclass
class Fabric:
    """What changes of the fabric manager and of the NVSwitches."""

    mode: int = 0
    """FABRIC_MODE as the fabric manager was started with it."""
    configured: int = 0
    """FABRIC_MODE in its configuration."""
    socket: str = ''
    """FM_CMD_UNIX_SOCKET_PATH."""
    version: str = ''
    """Of the fabric manager; empty if it is the driver's."""
    waiting: bool = False
    """Whether it waits for the list of active partitions."""
    starts: int = 0
    """Counts its starts: a connection lives in one of them."""
    active: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Virtual functions of each active partition, by its id."""
    excluded: list[str] = dataclasses.field(default_factory=list)
    """GPUs that it could not use at its start."""


@dataclasses.dataclass
class State:
    gpus: dict[str, Gpu]
    functions: dict[str, Function] = dataclasses.field(
        default_factory=dict)
    """Other PCI functions, by address."""
    blocked: list[BlockedUnbind] = dataclasses.field(default_factory=list)
    damage: list[Damage] = dataclasses.field(default_factory=list)
    boot: int = 0
    """Counts starts of the driver: an NVML session lives in one of them."""
    nvml: int = 0
    """What nvmlInit answers: NVML_SUCCESS, or why there is no NVML."""
    defined: list[str] = dataclasses.field(default_factory=list)
    """UUIDs of the mdevs that mdevctl has on file."""
    domains: dict[str, str] = dataclasses.field(default_factory=dict)
    """XML of libvirt's domains, by UUID."""
    starts: int = 0
    """Counts starts of the machine."""
    fabric_manager: bool | None = None
    """Whether the fabric manager runs; None if it is not installed."""
    fabric: Fabric = dataclasses.field(default_factory=Fabric)
    drm_modeset: bool | None = None
    """The parameter of the module nvidia_drm; None if it is not loaded."""
    confidential_computing: str = ''
    """Mode of all GPUs: on, devtools, or empty for off."""
    xids: list[Xid] = dataclasses.field(default_factory=list)
    """What has happened, oldest first; the last hundred."""
    counter: int = 0
    """Source of numbers that are never used twice."""

    def number(self) -> int:
        self.counter += 1
        return self.counter


def first(host: spec.Host) -> State:
    """The state in which a machine starts."""
    return State(gpus={
        gpu.address: Gpu(driver=gpu.driver, mig=gpu.mig, pending=gpu.mig,
                         vfs=gpu.vfs)
        for gpu in host.gpus}, functions={
            function.address: Function(function.driver)
            for function in host.functions},
        fabric_manager=host.has_switches or None,
        fabric=Fabric(mode=host.fabric_mode, configured=host.fabric_mode))


def to_json(state: State) -> dict[str, Any]:
    return dataclasses.asdict(state)


def from_json(value: dict[str, Any]) -> State:
    """The state that :func:`to_json` wrote.

    :raises TypeError, KeyError, ValueError: if it was something else.
    """
    value = dict(value)
    gpus = {address: _gpu(gpu) for address, gpu in value.pop('gpus').items()}
    xids = [Xid(**xid) for xid in value.pop('xids')]
    functions = {address: Function(**function) for address, function
                 in value.pop('functions').items()}
    damage = [Damage(**item) for item in value.pop('damage')]
    blocked = [BlockedUnbind(
        item['address'], item['driver'], _holders(item['holders']))
        for item in value.pop('blocked')]
    fabric = Fabric(**value.pop('fabric', {}))
    return State(gpus=gpus, functions=functions, xids=xids, damage=damage,
                 blocked=blocked, fabric=fabric, **value)


def _holders(value):
    return [Holder(**holder) for holder in value]


def _gpu(value):
    value = dict(value)
    instances = {int(key): _instance(instance) for key, instance
                 in value.pop('instances').items()}
    vgpus = [Vgpu(**vgpu) for vgpu in value.pop('vgpus')]
    processes = [Process(**process) for process in value.pop('processes')]
    scheduler = Scheduler(**value.pop('scheduler'))
    outsiders = _holders(value.pop('outsiders'))
    meters = Meters(**value.pop('meters', {}))
    return Gpu(instances=instances, vgpus=vgpus, processes=processes,
               scheduler=scheduler, outsiders=outsiders, meters=meters,
               **value)


def _instance(value):
    value = dict(value)
    compute = {int(key): ComputeInstance(**item) for key, item
               in value.pop('compute').items()}
    scheduler = Scheduler(**value.pop('scheduler'))
    return Instance(compute=compute, scheduler=scheduler, **value)
