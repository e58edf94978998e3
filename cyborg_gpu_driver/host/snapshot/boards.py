# SPDX-License-Identifier: Apache-2.0

"""Facts of known boards by their PCI ids, while NVML has not told them.

A GPU that was bound to vfio-pci at boot was never visible to NVML.
``boards.csv`` has its facts and their sources. NVML's own answers, also
earlier ones, come first.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.resources
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.host.snapshot import model as host_model

_ANY = '*'


def complete(gpu: host_model.Gpu) -> host_model.Gpu:
    """Return the GPU with the facts that are missing and that are known."""
    known = _table().get((gpu.device_id, _ANY)) or _table().get(
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
