# SPDX-License-Identifier: Apache-2.0

"""Reads the metrics of a GPU for monitoring, through NVML.

Values that the GPU or its driver does not have, or that this user may not
read, are left out.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import model

_LEFT_OUT = gate.ABSENT | {'NO_PERMISSION', 'NO_DATA', 'NOT_FOUND',
                           'NOT_READY'}
"""nvml.h on nvmlDeviceGetMemoryInfo: in MIG mode it answers for the GPU "only
if the caller has appropriate privileges"."""
_MILLI = 1e-3
_PERCENT = 1e-2
_VGPU_PERCENTS = {'smUtil': 'vgpu_utilization_ratio',
                  'memUtil': 'vgpu_memory_utilization_ratio',
                  'encUtil': 'vgpu_encoder_utilization_ratio',
                  'decUtil': 'vgpu_decoder_utilization_ratio'}


@dataclasses.dataclass(frozen=True)
class Value:
    """One value, with labels for the part of the GPU that it concerns."""

    metric: str
    """Name of the metric, as :mod:`cyborg_gpu_driver.metrics.definitions` has
    it."""
    value: float
    labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Sample:
    """The metrics of one GPU, without those that it does not support."""

    uuid: str
    values: tuple[Value, ...] = ()


class TelemetryReader:
    """Reads the metrics of GPUs through one session."""

    def __init__(self, nvml: nvml_module.NvmlSession):
        self._nvml = nvml
        self._last: dict[model.PciAddress, int] = {}
        """The driver's timestamp of each GPU's last vGPU sample, in
        microseconds."""

    def read(self, address: model.PciAddress) -> Sample | None:
        """Read the metrics of a GPU; None if NVML cannot be opened."""
        with self._nvml.kept(0):
            if self._nvml.problem() is not None:
                return None
            try:
                return self._nvml.in_turn(address, self._read, address)
            except exception.NvmlError:
                # The handle may be invalid, for example after a reset.
                self._nvml.forget(address)
                raise

    def _read(self, address: model.PciAddress) -> Sample:
        device = self._nvml.device(address)
        return Sample(self._nvml.uuid(device), (
            *self._board(device), *self._instances(device),
            *self._vgpus(address, device)))

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return the answer of a call; None if there is none."""
        try:
            return self._nvml.call(name, *arguments)
        except exception.NvmlError as error:
            if error.symbol not in _LEFT_OUT:
                raise
            return None

    def _board(self, device: Any) -> Iterator[Value]:
        rates = self._ask('nvmlDeviceGetUtilizationRates', device)
        if rates is not None:
            yield Value('utilization_ratio', rates.gpu * _PERCENT)
            yield Value('memory_utilization_ratio', rates.memory * _PERCENT)
        memory = self._ask('nvmlDeviceGetMemoryInfo', device)
        if memory is not None:
            yield Value('memory_bytes', memory.total)
            yield Value('memory_used_bytes', memory.used)
        for metric, factor, name, *arguments in (
                ('temperature_celsius', 1, 'nvmlDeviceGetTemperature',
                 pynvml.NVML_TEMPERATURE_GPU),
                ('power_watts', _MILLI, 'nvmlDeviceGetPowerUsage'),
                ('power_limit_watts', _MILLI,
                 'nvmlDeviceGetEnforcedPowerLimit')):
            found = self._ask(name, device, *arguments)
            if found is not None:
                yield Value(metric, found * factor)

    def _instances(self, device: Any) -> Iterator[Value]:
        """Yield the memory of each GPU instance that has a MIG device.

        A MIG device is a compute instance; its memory is that of the GPU
        instance, which all its compute instances share (MIG user guide).
        """
        mode = self._nvml.optional('nvmlDeviceGetMigMode', device)
        seen = set()
        for index in range(self._nvml.call(
                'nvmlDeviceGetMaxMigDeviceCount', device)
                if mode and mode[0] else 0):
            try:
                mig = self._nvml.call('nvmlDeviceGetMigDeviceHandleByIndex',
                                      device, index)
                number = self._nvml.call('nvmlDeviceGetGpuInstanceId', mig)
                if number in seen:
                    continue
                seen.add(number)
                memory = self._nvml.call('nvmlDeviceGetMemoryInfo', mig)
            except exception.NvmlError as error:
                # INVALID_ARGUMENT: the device went away between two calls.
                if error.symbol in {*_LEFT_OUT, 'INVALID_ARGUMENT'}:
                    continue
                raise
            labels = (str(number),)
            yield Value('instance_memory_bytes', memory.total, labels)
            yield Value('instance_memory_used_bytes', memory.used, labels)

    def _vgpus(self, address: model.PciAddress, device: Any
               ) -> Iterator[Value]:
        """Yield the values of vGPUs that guests run. NVML knows no others."""
        vgpus = {vgpu: self._labels(vgpu) for vgpu in self._ask(
            'nvmlDeviceGetActiveVgpus', device) or ()}
        for vgpu, labels in vgpus.items():
            used = self._ask('nvmlVgpuInstanceGetFbUsage', vgpu)
            if used is not None:
                yield Value('vgpu_framebuffer_used_bytes', used, labels)
        if not vgpus:
            return
        last = self._last.get(address, 0)
        # The samples since the last call.
        for sample in self._ask('nvmlDeviceGetVgpuUtilization', device,
                                last) or ():
            last = max(last, sample.timeStamp)
            if sample.vgpuInstance not in vgpus:
                continue
            for member, metric in _VGPU_PERCENTS.items():
                yield Value(metric, getattr(sample, member).uiVal * _PERCENT,
                            vgpus[sample.vgpuInstance])
        self._last[address] = last

    def _labels(self, vgpu: int) -> tuple[str, ...]:
        """Return GPU instance, NVML's number, mdev and server of a vGPU."""
        instance = gate.known(self._ask(
            'nvmlVgpuInstanceGetGpuInstanceId', vgpu))
        return ('' if instance is None else str(instance), str(vgpu),
                _uuid(self._ask('nvmlVgpuInstanceGetMdevUUID', vgpu)),
                _server(self._ask('nvmlVgpuInstanceGetVmID', vgpu)))


def _server(answer: tuple[Any, int] | None) -> str:
    """Return the UUID of a virtual machine; empty if there is none.

    nvml.h, nvmlVgpuVmIdType_t: the id is a UUID or the hypervisor's number.
    """
    if answer is None or answer[1] != pynvml.NVML_VGPU_VM_ID_UUID:
        return ''
    return _uuid(answer[0])


def _uuid(value: str | bytes | None) -> str:
    """Return a UUID as OpenStack writes it; empty if the value is no UUID."""
    try:
        return str(uuid.UUID(gate.text(value or '')))
    except ValueError:
        return ''
