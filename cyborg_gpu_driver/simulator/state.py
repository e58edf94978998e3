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

from cyborg_gpu_driver.simulator import spec

FORMAT = 1


@dataclasses.dataclass
class ComputeInstance:
    profile_id: int
    start: int
    size: int
    uuid: str
    serial: int


@dataclasses.dataclass
class Instance:
    """A GPU instance. ``serial`` tells it from others of the same id."""

    profile_id: int
    start: int
    size: int
    serial: int
    compute: dict[int, ComputeInstance] = dataclasses.field(
        default_factory=dict)


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
    guest: bool = False
    """Whether a virtual machine holds it."""


@dataclasses.dataclass
class Process:
    pid: int
    instance: int | None
    compute: int | None


@dataclasses.dataclass
class Gpu:
    driver: str | None
    mig: bool = False
    pending: bool = False
    vfs: int = 0
    lost: bool = False
    epoch: int = 0
    """Counts resets and unbinds: handles of an earlier one are dead."""
    heterogeneous: bool = False
    remapped: list[int] = dataclasses.field(
        default_factory=lambda: [0, 0, 0, 0])
    """Correctable, uncorrectable, pending, failed row remappings."""
    instances: dict[int, Instance] = dataclasses.field(
        default_factory=dict)
    vgpus: list[Vgpu] = dataclasses.field(default_factory=list)
    processes: list[Process] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class State:
    gpus: dict[str, Gpu]
    boot: int = 0
    """Counts starts of the driver: an NVML session lives in one of them."""
    nvml: int = 0
    """What nvmlInit answers: NVML_SUCCESS, or why there is no NVML."""
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
        for gpu in host.gpus})


def to_json(state: State) -> dict[str, Any]:
    return dataclasses.asdict(state)


def from_json(value: dict[str, Any]) -> State:
    """The state that :func:`to_json` wrote.

    :raises TypeError, KeyError, ValueError: if it was something else.
    """
    value = dict(value)
    gpus = {address: _gpu(gpu) for address, gpu in value.pop('gpus').items()}
    return State(gpus=gpus, **value)


def _gpu(value):
    value = dict(value)
    instances = {int(key): _instance(instance) for key, instance
                 in value.pop('instances').items()}
    vgpus = [Vgpu(**vgpu) for vgpu in value.pop('vgpus')]
    processes = [Process(**process) for process in value.pop('processes')]
    return Gpu(instances=instances, vgpus=vgpus, processes=processes,
               **value)


def _instance(value):
    value = dict(value)
    compute = {int(key): ComputeInstance(**item) for key, item
               in value.pop('compute').items()}
    return Instance(compute=compute, **value)
