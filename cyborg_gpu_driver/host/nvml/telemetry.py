# SPDX-License-Identifier: Apache-2.0

"""Reads the metrics of a GPU for monitoring, through NVML.

Values that one call can return are read with one call: most of them are fields
of nvmlDeviceGetFieldValues. Values that the GPU or its driver does not have,
or that this user may not read, are left out.
"""

from __future__ import annotations

import collections
import dataclasses
import uuid
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.snapshot import model

_LEFT_OUT = gate.ABSENT | {'NO_PERMISSION'}
"""nvml.h on nvmlDeviceGetMemoryInfo: in MIG mode it answers for the GPU "only
if the caller has appropriate privileges"."""
_NOW_AND_THEN = frozenset({'NO_DATA', 'NOT_FOUND', 'NOT_READY'})
_EACH = frozenset({'nvmlDeviceGetClockInfo', 'nvmlDeviceGetNvLinkState'})
"""Calls that may be supported for one number and not for another."""
_MILLI = 1e-3
_MEGA = 1e6
_PERCENT = 1e-2

FIELDS = {
    pynvml.NVML_FI_DEV_MEMORY_TEMP: ('memory_temperature_celsius', 1, ()),
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        ('energy_joules', _MILLI, ()),
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
        ('ecc_errors', 1, ('corrected',)),
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
        ('ecc_errors', 1, ('uncorrected',)),
    pynvml.NVML_FI_DEV_REMAPPED_COR:
        ('remapped_rows', 1, ('correctable',)),
    pynvml.NVML_FI_DEV_REMAPPED_UNC:
        ('remapped_rows', 1, ('uncorrectable',)),
    pynvml.NVML_FI_DEV_REMAPPED_PENDING: ('row_remap_pending', 1, ()),
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE: ('row_remap_failed', 1, ()),
    pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: ('pcie_replays', 1, ()),
    pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: ('pcie_transmitted_bytes', 1, ()),
    pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: ('pcie_received_bytes', 1, ()),
}
"""Metric, factor and labels by field (nvml.h, "Field Identifiers"). The
default metrics of dcgm-exporter come from the same fields
(etc/default-counters.csv of NVIDIA/dcgm-exporter)."""
LINK_SUMS = {
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: 'crc_flit',
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: 'crc_data',
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: 'replay',
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: 'recovery',
}
"""Kind of error by field. Each field counts the errors of all links."""
_LINK_STATE = pynvml.NVML_FI_DEV_NVLINK_GET_STATE
_PER_LINK = {
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: 'replay',
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: 'recovery',
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: 'crc',
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS: 'recovery',
}
"""Kind of error by field. Each field counts the errors of one link, whose
number is the field's ``scopeId``. Blackwell has the last field in place of the
others (nvml.h)."""
_VALUES = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: 'dVal',
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: 'uiVal',
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: 'ulVal',
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: 'ullVal',
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: 'sllVal',
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: 'siVal',
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: 'usVal',
}
"""Member of nvmlValue_t by nvmlValueType_t."""
_GPM = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: 'instance_utilization_ratio',
    pynvml.NVML_GPM_METRIC_SM_UTIL: 'instance_sm_utilization_ratio',
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL:
        'instance_tensor_utilization_ratio',
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL:
        'instance_memory_bandwidth_ratio',
}
"""Our metric by that of NVML, in percent (nvml.h, nvmlGpmMetricId_t)."""
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


@dataclasses.dataclass
class _Known:
    """Facts that hold until the session or the MIG mode changes."""

    nvml: nvml_module.NvmlSession
    valid: tuple[int, bool]
    """Generation of the session, and whether MIG mode is on."""
    uuid: str = ''
    links: int = 0
    """Number of NVLinks of the GPU."""
    mig_devices: int = 0
    """Maximum number of MIG devices."""
    absent: set[str] = dataclasses.field(default_factory=set)
    """Calls that this GPU does not support, some with their number."""
    last: int = 0
    """The driver's timestamp of the last vGPU sample, in microseconds."""
    samples: dict[int, list[Any]] = dataclasses.field(default_factory=dict)
    """By id of a GPU instance: its last one or two GPM samples, the newest
    last. They are not freed when the session ends: nvml.h does not say
    whether a later session may do that."""

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the answer of a call; None if there is none."""
        key = f'{name} {arguments[1]}' if name in _EACH else name
        if key in self.absent:
            return None
        try:
            return self.nvml.call(name, *arguments)
        except exception.NvmlError as error:
            if error.symbol in _LEFT_OUT:
                self.absent.add(key)
            elif error.symbol not in _NOW_AND_THEN:
                raise
            return None


class TelemetryReader:
    """Reads the metrics of GPUs through one session."""

    def __init__(self, nvml: nvml_module.NvmlSession):
        self._nvml = nvml
        self._known: dict[model.PciAddress, _Known] = {}

    def read(self, address: model.PciAddress) -> Sample | None:
        """Read the metrics of a GPU; None if NVML cannot be opened."""
        with self._nvml.kept(0), self._nvml.about(address):
            if self._nvml.problem() is not None:
                return None
            try:
                return self._read(address)
            except exception.NvmlError:
                # The handle may be invalid, for example after a reset.
                self._nvml.forget(address)
                self._known.pop(address, None)
                raise

    def _read(self, address: model.PciAddress) -> Sample:
        device = self._nvml.device(address)
        mode = self._nvml.optional('nvmlDeviceGetMigMode', device)
        valid = (self._nvml.generation, bool(mode and mode[0]))
        known = self._known.get(address)
        if known is None or known.valid != valid:
            known = self._first(device, valid)
            self._known[address] = known
        vgpus = _vgpus(known, device)
        board = (*_board(known, device), *_fields(known, device))
        instances = tuple(_instances(known, device))
        numbers = {int(labels[0]) for labels in (
            *vgpus.values(), *(value.labels for value in instances))
            if labels[0]}
        return Sample(known.uuid, (
            *board, *instances,
            *_instance_utilization(known, device, sorted(numbers)),
            *_vgpu_values(known, device, vgpus)))

    def _first(self, device: Any, valid: tuple[int, bool]) -> _Known:
        field = pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT
        links = _answered(self._nvml.optional(
            'nvmlDeviceGetFieldValues', device, [field]) or ())
        count = self._nvml.optional('nvmlDeviceGetMaxMigDeviceCount', device)
        return _Known(
            self._nvml, valid, self._nvml.uuid(device),
            int(links.get((field, 0), 0)), (count or 0) if valid[1] else 0)


def _board(known: _Known, device: Any) -> Iterator[Value]:
    """Yield the values that have a call of their own."""
    rates = known.ask('nvmlDeviceGetUtilizationRates', device)
    if rates is not None:
        yield Value('utilization_ratio', rates.gpu * _PERCENT)
        yield Value('memory_utilization_ratio', rates.memory * _PERCENT)
    memory = known.ask('nvmlDeviceGetMemoryInfo', device)
    if memory is not None:
        yield Value('memory_bytes', memory.total)
        yield Value('memory_used_bytes', memory.used)
    for metric, factor, labels, name, *arguments in (
            ('temperature_celsius', 1, (), 'nvmlDeviceGetTemperature',
             pynvml.NVML_TEMPERATURE_GPU),
            ('power_watts', _MILLI, (), 'nvmlDeviceGetPowerUsage'),
            ('power_limit_watts', _MILLI, (),
             'nvmlDeviceGetEnforcedPowerLimit'),
            ('clock_hertz', _MEGA, ('sm',), 'nvmlDeviceGetClockInfo',
             pynvml.NVML_CLOCK_SM),
            ('clock_hertz', _MEGA, ('memory',), 'nvmlDeviceGetClockInfo',
             pynvml.NVML_CLOCK_MEM)):
        found = known.ask(name, device, *arguments)
        if found is not None:
            yield Value(metric, found * factor, labels)


def _fields(known: _Known, device: Any) -> Iterator[Value]:
    """Yield the values of nvmlDeviceGetFieldValues, and of NVLinks."""
    links = range(known.links)
    wanted = [*FIELDS]
    if links:
        wanted += LINK_SUMS
        wanted += ((field, link) for link in links
                   for field in (_LINK_STATE, *_PER_LINK))
    found = _answered(
        known.ask('nvmlDeviceGetFieldValues', device, wanted) or ())
    for field, (metric, factor, labels) in FIELDS.items():
        if (field, 0) in found:
            yield Value(metric, found[field, 0] * factor, labels)
    for kind, count in _link_errors(found).items():
        yield Value('nvlink_errors', count, (kind,))
    for link in links:
        state = found.get((_LINK_STATE, link))
        if state is None:
            state = known.ask('nvmlDeviceGetNvLinkState', device, link)
        if state is not None:
            # Neither inactive nor asleep (NVML_NVLINK_STATE_SLEEP).
            yield Value('nvlink_up', float(state == 1), (str(link),))


def _link_errors(found: Mapping[tuple[int, int], float]) -> dict[str, float]:
    """Sum the errors of all links by kind, however the GPU counts them."""
    sums = {kind: found[field, 0] for field, kind in LINK_SUMS.items()
            if (field, 0) in found}
    if sums:
        return sums
    errors: dict[str, float] = collections.defaultdict(float)
    for (field, _), count in found.items():
        if field in _PER_LINK:
            errors[_PER_LINK[field]] += count
    return errors


def _answered(fields: Iterable[Any]) -> dict[tuple[int, int], float]:
    """Return the values of the answered fields, by field and scope."""
    return {(field.fieldId, field.scopeId):
            getattr(field.value, _VALUES[field.valueType])
            for field in fields if field.nvmlReturn == pynvml.NVML_SUCCESS
            and field.valueType in _VALUES}


def _instances(known: _Known, device: Any) -> Iterator[Value]:
    """Yield the memory of each GPU instance that has a MIG device.

    A MIG device is a compute instance; its memory is that of the GPU
    instance, which all its compute instances share (MIG user guide).
    """
    seen = set()
    for index in range(known.mig_devices):
        # Failures are not remembered, because MIG devices come and go.
        try:
            mig = known.nvml.call('nvmlDeviceGetMigDeviceHandleByIndex',
                                  device, index)
            number = known.nvml.call('nvmlDeviceGetGpuInstanceId', mig)
            if number in seen:
                continue
            seen.add(number)
            memory = known.nvml.call('nvmlDeviceGetMemoryInfo', mig)
        except exception.NvmlError as error:
            # INVALID_ARGUMENT: the device went away between two calls.
            if error.symbol in {*_LEFT_OUT, *_NOW_AND_THEN,
                                'INVALID_ARGUMENT'}:
                continue
            raise
        labels = (str(number),)
        yield Value('instance_memory_bytes', memory.total, labels)
        yield Value('instance_memory_used_bytes', memory.used, labels)


def _instance_utilization(known: _Known, device: Any, numbers: Collection[int]
                          ) -> Iterator[Value]:
    """Yield how busy GPU instances were since the previous reading.

    NVML has this per GPU instance "for Hopper or newer", and calculates it
    from two samples (nvml.h on nvmlGpmMigSampleGet and nvmlGpmMetricsGet).
    The older one is from the previous reading, so the first reading of an
    instance has no values.
    """
    samples = known.samples
    for number in {*samples} - {*numbers}:
        _free(known, samples.pop(number))
    for number in numbers:
        pair = samples.setdefault(number, [])
        try:
            if _takes_sample(known, device, number, pair):
                if len(pair) == 2:
                    yield from _busy(known, number, pair)
                continue
        except exception.NvmlError as error:
            # The instance went away meanwhile.
            if error.symbol != 'INVALID_ARGUMENT':
                raise
        _free(known, samples.pop(number))


def _takes_sample(known: _Known, device: Any, number: int,
                  pair: list[Any]) -> bool:
    """Put a new sample of an instance at the end of its samples."""
    if 'nvmlGpmMigSampleGet' in known.absent:
        return False
    if len(pair) == 2:
        pair.reverse()
    else:
        new = known.ask('nvmlGpmSampleAlloc')
        if new is None:
            return False
        pair.append(new)
    return known.ask('nvmlGpmMigSampleGet', device, number,
                     pair[-1]) is not None


def _busy(known: _Known, number: int, pair: list[Any]
          ) -> Iterator[Value]:
    wanted = pynvml.c_nvmlGpmMetricsGet_t()
    wanted.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    wanted.sample1, wanted.sample2 = pair
    wanted.numMetrics = len(_GPM)
    for item, metric in zip(wanted.metrics, _GPM, strict=False):
        item.metricId = metric
    if known.ask('nvmlGpmMetricsGet', wanted) is None:
        return
    for item in wanted.metrics[:len(_GPM)]:
        if item.nvmlReturn == pynvml.NVML_SUCCESS and item.value >= 0:
            yield Value(_GPM[item.metricId], item.value * _PERCENT,
                        (str(number),))


def _free(known: _Known, samples: Iterable[Any]) -> None:
    for sample in samples:
        known.ask('nvmlGpmSampleFree', sample)


def _vgpus(known: _Known, device: Any
           ) -> dict[int, tuple[str, ...]]:
    """Return the vGPUs that guests run. NVML knows no others.

    :returns: by NVML's number: GPU instance, the number, mdev and server.
    """
    found: dict[int, tuple[str, ...]] = {}
    for vgpu in known.ask('nvmlDeviceGetActiveVgpus', device) or ():
        instance = gate.known(known.ask(
            'nvmlVgpuInstanceGetGpuInstanceId', vgpu))
        found[vgpu] = (
            '' if instance is None else str(instance), str(vgpu),
            _uuid(known.ask('nvmlVgpuInstanceGetMdevUUID', vgpu)),
            _server(known.ask('nvmlVgpuInstanceGetVmID', vgpu)))
    return found


def _vgpu_values(known: _Known, device: Any,
                 vgpus: Mapping[int, tuple[str, ...]]) -> Iterator[Value]:
    if not vgpus:
        return
    for vgpu, labels in vgpus.items():
        used = known.ask('nvmlVgpuInstanceGetFbUsage', vgpu)
        if used is not None:
            yield Value('vgpu_framebuffer_used_bytes', used, labels)
    # The samples since the last call.
    for sample in known.ask('nvmlDeviceGetVgpuUtilization', device,
                            known.last) or ():
        known.last = max(known.last, sample.timeStamp)
        if sample.vgpuInstance not in vgpus:
            continue
        for member, metric in _VGPU_PERCENTS.items():
            yield Value(metric, getattr(sample, member).uiVal * _PERCENT,
                        vgpus[sample.vgpuInstance])


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
