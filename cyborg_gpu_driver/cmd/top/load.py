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


"""How busy a GPU and its parts are, out of one sample of it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from cyborg_gpu_driver.host.snapshot import telemetry

_MIB = 2 ** 20
_PERCENT = 100
Quantity = telemetry.Quantity


@dataclasses.dataclass(frozen=True)
class Load:
    """How busy a GPU or a part of it is; None where NVML does not say."""

    percent: int | None = None
    """Of the time in which it computed."""
    memory_used_mib: int | None = None
    memory_mib: int | None = None
    server: str | None = None
    """UUID of the virtual machine that runs on the vGPU."""


UNKNOWN = Load()


class Loads:
    """The loads in the values of one sample.

    :param values: of one GPU; empty where it was not sampled.
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
        """The whole GPU."""
        return Load(_percent(self._gpu.get(Quantity.UTILIZATION)),
                    _mib(self._gpu.get(Quantity.MEMORY_USED)),
                    _mib(self._gpu.get(Quantity.MEMORY)))

    def instance(self, instance_id: int) -> Load:
        """A GPU instance; a vGPU on it says more than the instance.

        Several vGPUs share the memory of their instance, and no one of them
        is that busy.
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
        """The vGPU that is an mdev."""
        return next((self._vgpu(labels) for labels in self._vgpus
                     if labels[2] == uuid), UNKNOWN)

    def server(self, uuid: str) -> Load:
        """The vGPU of a server, if NVML knows it and it has no other here."""
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
