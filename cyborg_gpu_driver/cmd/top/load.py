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


"""The load of a GPU and its parts, from one sample of the GPU. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from cyborg_gpu_driver.host.snapshot import telemetry

_MIB = 2 ** 20
_PERCENT = 100
Quantity = telemetry.Quantity


@dataclasses.dataclass(frozen=True)
class Load:
    """The load of a GPU or of a part; None if NVML does not report it."""

    percent: int | None = None
    """Percentage of time in which the GPU or the part computed."""
    memory_used_mib: int | None = None
    memory_mib: int | None = None
    server: str | None = None
    """UUID of the virtual machine that runs on the vGPU."""


UNKNOWN = Load()


class Loads:
    """The loads in the values of one sample.

    :param values: the values of one GPU; empty if it was not sampled.
    """

    def __init__(self, values: Iterable[telemetry.Value]):
        self._gpu: dict[Quantity, float] = {}
        self._instances: dict[tuple[Quantity, str], float] = {}
        self._vgpus: dict[tuple[str, ...], dict[Quantity, float]] = {}
        for item in values:
            if not item.labels:
                self._gpu[item.quantity] = item.value
            elif item.quantity.name.startswith('INSTANCE_'):
                self._instances[item.quantity, item.labels[0]] = item.value
            elif item.quantity.name.startswith('VGPU_'):
                # The driver keeps several samples; the last is the newest.
                self._vgpus.setdefault(item.labels, {})[
                    item.quantity] = item.value

    def gpu(self) -> Load:
        """Return the load of the whole GPU."""
        return Load(_percent(self._gpu.get(Quantity.UTILIZATION)),
                    _mib(self._gpu.get(Quantity.MEMORY_USED)),
                    _mib(self._gpu.get(Quantity.MEMORY)))

    def instance(self, instance_id: int) -> Load:
        """Return the load of a GPU instance.

        If there is one vGPU on the instance, use the vGPU's values, which
        have more detail. With several vGPUs, the values of one vGPU are not
        those of the instance, because the vGPUs share its memory.
        """
        number = str(instance_id)
        found = [labels for labels in self._vgpus if labels[0] == number]
        load = self._vgpu(found[0]) if len(found) == 1 else UNKNOWN
        used, total = (_mib(self._instances.get((quantity, number)))
                       for quantity in (Quantity.INSTANCE_MEMORY_USED,
                                        Quantity.INSTANCE_MEMORY))
        if load.memory_used_mib is None:
            load = dataclasses.replace(load, memory_used_mib=used)
        return dataclasses.replace(load, memory_mib=total)

    def mdev(self, uuid: str) -> Load:
        """Return the load of the vGPU that is an mdev."""
        return next((self._vgpu(labels) for labels in self._vgpus
                     if labels[2] == uuid), UNKNOWN)

    def server(self, uuid: str) -> Load:
        """Return the load of a server's vGPU.

        Unknown unless NVML knows exactly one vGPU of the server on this GPU.
        """
        found = [labels for labels in self._vgpus if labels[3] == uuid]
        return self._vgpu(found[0]) if len(found) == 1 else UNKNOWN

    def _vgpu(self, labels: tuple[str, ...]) -> Load:
        values = self._vgpus[labels]
        return Load(_percent(values.get(Quantity.VGPU_UTILIZATION)),
                    _mib(values.get(Quantity.VGPU_FRAMEBUFFER_USED)),
                    server=labels[3] or None)


def _percent(fraction: float | None) -> int | None:
    return None if fraction is None else round(fraction * _PERCENT)


def _mib(size: float | None) -> int | None:
    return None if size is None else round(size / _MIB)
