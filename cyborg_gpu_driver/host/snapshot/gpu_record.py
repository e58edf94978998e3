# SPDX-License-Identifier: Apache-2.0

"""The record of a GPU that NVML cannot be queried about.

A GPU in passthrough mode is bound to vfio-pci, where NVML does not see it. Its
record keeps what NVML reported before.
Only the code that binds the GPU writes the record, under the GPU's lock.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.resources
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.host.snapshot import model as host_model

_OF_MODEL = ('model', 'architecture', 'memory_mib', 'compute_capability')
"""Facts that every board with the same PCI ids has. NVIDIA gives boards
with another memory size or form factor other ids (the pci.ids list)."""
_OF_BOARD = ('uuid', 'serial')
"""Facts of one board. The PCI configuration space does not distinguish boards
of one model, so these facts hold until the machine starts again: a board
cannot be replaced by another of its model while the machine runs."""


@dataclasses.dataclass(frozen=True)
class Health:
    """The health of the GPU when NVML last answered."""

    state: str
    reasons: tuple[str, ...]
    time: float
    """Seconds of the epoch."""


@dataclasses.dataclass(frozen=True)
class Modes:
    """What a guest can change and no reset undoes."""

    ecc: bool | None = None
    """None on a board without ECC."""
    mig: bool = False
    confidential_computing: str | None = None
    """``off``, ``on`` or ``devtools``; None on a board without it."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One GPU as NVML last reported it, and what was done with it since."""

    ids: tuple[str | None, str | None, str | None, str | None]
    """PCI ids: vendor, device, subsystem vendor, subsystem device."""
    boot: str
    """Boot id of the machine at that time."""
    time: float
    """Seconds of the epoch at which NVML reported this."""
    model: str | None = None
    architecture: str | None = None
    uuid: str | None = None
    serial: str | None = None
    memory_mib: int | None = None
    compute_capability: str | None = None
    driver_version: str | None = None
    has_mig: bool = False
    nvlink_peers: tuple[host_model.PciAddress, ...] = ()
    module: int | None = None
    """NVML's module id on a baseboard; None on no baseboard."""
    on_switches: bool = False
    """Whether its NVLinks lead to NVSwitches."""
    bound_from: str | None = None
    """The driver that it had before this library bound it to vfio-pci;
    None if this library did not bind it."""
    persistence: bool = False
    """Whether persistence mode was on, which an unbind ends."""
    modes: Modes = Modes()
    """Its modes for the guest."""
    health: Health | None = None
    link_width: int | None = None
    """PCIe lanes while it was idle."""
    aer_fatal: int | None = None
    """Fatal PCIe errors (AER) counted until then."""


def of(gpu: host_model.Gpu, boot: str, time: float,
       driver_version: str | None = None, **more: Any) -> Record:
    """Create the record of a GPU that NVML has just been queried about."""
    return Record(
        ids=_ids(gpu), boot=boot, time=time, driver_version=driver_version,
        has_mig=gpu.mig is not None, nvlink_peers=gpu.nvlink_peers,
        **{name: getattr(gpu, name) for name in (*_OF_MODEL, *_OF_BOARD)},
        **more)


def holds(record: Record, gpu: host_model.Gpu, boot: str) -> bool:
    """Whether ``record`` is of this board and of the current boot."""
    return record.ids == _ids(gpu) and bool(boot) and record.boot == boot


def complete(gpu: host_model.Gpu, record: Record, boot: str) -> host_model.Gpu:
    """Return a GPU that NVML was not queried about, with its record's facts.
    """
    if record.ids != _ids(gpu):
        return gpu
    names: tuple[str, ...] = _OF_MODEL
    known: dict[str, Any] = {'recorded_at': record.time}
    if holds(record, gpu, boot):
        names += _OF_BOARD
        known.update(
            nvlink_peers=record.nvlink_peers, bound_from=record.bound_from)
    return dataclasses.replace(gpu, **known, **{
        name: getattr(record, name) for name in names})


def complete_board(gpu: host_model.Gpu) -> host_model.Gpu:
    """Return a GPU with the facts that its PCI ids tell and that are missing.

    A GPU that was bound to vfio-pci at boot was never visible to NVML.
    ``boards.csv`` has the facts of known boards and their sources.
    """
    known = _table().get((gpu.device_id, '*')) or _table().get(
        (gpu.device_id, gpu.subsystem_device_id))
    if known is None or gpu.model not in (None, known['model']):
        return gpu
    return dataclasses.replace(gpu, **{
        name: value for name, value in known.items()
        if getattr(gpu, name) is None})


@functools.cache
def _table() -> Mapping[tuple[str, str | None], Mapping[str, Any]]:
    """Facts by device and subsystem id."""
    text = importlib.resources.files(__package__).joinpath(
        'boards.csv').read_text(encoding='utf-8')
    found: dict[tuple[str, str | None], Mapping[str, Any]] = {}
    for row in csv.DictReader(line for line in text.splitlines()
                              if line and not line.startswith('#')):
        device, subsystems = row.pop('device'), row.pop('subsystems')
        facts = {**row, 'memory_mib': int(row['memory_mib'])}
        found.update(((device, subsystem), facts)
                     for subsystem in subsystems.split())
    return found


class Records:
    """The records of a machine that keeps no records."""

    def board(self, address: host_model.PciAddress) -> Record | None:
        """Return the record of a GPU; None if there is no usable record.

        Does not raise. An unusable record affects only this GPU and is
        logged once.
        """

    def keep_board(self, address: host_model.PciAddress, record: Record
                   ) -> None:
        """Replace the record of a GPU."""


def _ids(gpu: host_model.Gpu
         ) -> tuple[str | None, str | None, str | None, str | None]:
    return (gpu.vendor_id, gpu.device_id, gpu.subsystem_vendor_id,
            gpu.subsystem_device_id)
