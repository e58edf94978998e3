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


"""Compares a recorded board with the simulator's model of the board."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.support.hardware import board
from cyborg_gpu_driver.support.hardware import document
from cyborg_gpu_driver.support.hardware import nvml_facts

_FREE = ('vGPU type', 'mode ')
"""Facts that are compared only if both sides have one of them. Only the vGPU
host driver has vGPU types, and the records of earlier releases lack some
calls."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One fact that differs between board and model."""

    gpu: str
    """The GPU's name in the record, such as ``gpu:0``."""
    fact: str
    recorded: Any
    simulated: Any


def compare(path: str, model: str) -> tuple[list[str], list[Difference]]:
    """Compare the boards of a file with a model of the simulator.

    Only boards with the model's PCI device id are compared, or all boards if
    none has this id.

    :param path: a file that hardware-check wrote.
    :param model: a model's name, such as ``h200-141``.
    :returns: the names of the compared boards, and the differences.
    :raises InvalidValue: if hardware-check did not write the file, or the
        file has no board.
    :raises SimulationError: if the model does not exist.
    """
    records = document.load(path)['nvml']
    recorded = board.boards(records)
    if not recorded:
        raise exception.InvalidValue(
            what='--compare', value=path,
            expected='expected a file with a GPU that NVML could open')
    models = _simulate(model, {item.mig for item in recorded})
    device_id = next(iter(models.values())).device_id
    chosen = [item for item in recorded
              if item.device_id == device_id] or recorded
    return [item.name for item in chosen], [
        difference for item in chosen
        for difference in differences(item, models[item.mig])]


def differences(one: board.Board, other: board.Board) -> list[Difference]:
    """Return the differences between a recorded and a simulated board."""
    recorded, simulated = one.facts(), other.facts()
    return [
        Difference(one.name, fact, recorded.get(fact), simulated.get(fact))
        for fact in dict.fromkeys([*recorded, *simulated])
        if recorded.get(fact) != simulated.get(fact)
        and not _is_free(fact, recorded, simulated)]


def _is_free(fact, *sides):
    return any(
        fact.startswith(prefix) and not all(
            any(name.startswith(prefix) for name in side) for side in sides)
        for prefix in _FREE)


def _simulate(model, modes):
    """Return the model as NVML shows it, for each given MIG mode."""
    return {mig: _board(model, mig) for mig in modes}


def _board(model, mig):
    host = {'driver_version': '550.0', 'gpus': [
        {'model': model, 'address': '0000:01:00.0', 'mig': mig}]}
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, 'one-board.yaml')
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump(host, stream)
        session = platform.simulated(path).nvml
        try:
            return board.boards(nvml_facts.collect(session))[0]
        finally:
            session.reset()
