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

"""Faults of a node's GPUs between two tenants."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.baremetal.inventory import modes
from cyborg_gpu_driver.baremetal.inventory import node as node_module
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.change import target


def had_gpus(properties: Mapping[str, Any]) -> bool:
    """Whether the last inspection found GPUs.

    Also true if the record cannot be read; the code that uses it reports that.

    :param properties: the node's.
    """
    inspected = properties.get(node_module.PROPERTY)
    if isinstance(inspected, Mapping) and isinstance(
            inspected.get('boards'), list):
        return bool(inspected['boards'])
    return inspected is not None


def recorded_modes(properties: Mapping[str, Any]) -> modes.Modes:
    """Return the modes that the last inspection recorded.

    :param properties: the node's.
    """
    return modes.recorded(properties.get(node_module.PROPERTY))


def boards(gpus: Sequence[model.Gpu], properties: Mapping[str, Any]) -> str:
    """Describe how the GPUs differ from the last inspection's; or ``''``.

    :param properties: the node's. Without the property that an inspection
        writes, nothing is known and nothing differs.
    """
    inspected = properties.get(node_module.PROPERTY)
    if inspected is None:
        return ''
    try:
        expected: collections.Counter[str] = collections.Counter()
        for board in inspected['boards']:
            expected[str(board['device_id'])] += int(board['count'])
    except (KeyError, TypeError, ValueError):
        return (f"the node's property {node_module.PROPERTY} was not written "
                'by an inspection; inspect the node again')
    found = collections.Counter(gpu.device_id for gpu in gpus)
    if found == expected:
        return ''
    names = {gpu.device_id: gpu.model for gpu in gpus if gpu.model}
    names.update((board['device_id'], board['model'])
                 for board in inspected['boards'] if board.get('model'))
    missing = sorted({*recorded_modes(properties).addresses}.difference(
        gpu.address for gpu in gpus))
    return (f'{_listed(found, names)} where the last inspection found '
            f'{_listed(expected, names)}; '
            + (f'missing: {", ".join(map(str, missing))}; ' if missing
               else '')
            + 'find the missing GPUs, or inspect the node again')


def of_gpu(gpu: model.Gpu, conditions: Iterable[health.Condition],
           wanted: modes.Modes | None, ecc: bool | None
           ) -> tuple[str, ...]:
    """Return what is wrong with a GPU that NVML should see, for people.

    :param conditions: those that its own answers show.
    :param wanted: the modes that it must have; None if a tenant sets them.
    :param ecc: its pending ECC mode; None if it has none.
    """
    if not gpu.visible_to_nvml:
        return (*gpu.problems, 'NVML does not list it; its kernel driver is '
                f'{gpu.driver or "none"}')
    return (*gpu.problems, *health.judge(conditions).reasons,
            *_left(gpu), *(modes.wrong(wanted, gpu, ecc)
                           if wanted is not None else ()))


def _left(gpu) -> Iterator[str]:
    """Yield what a tenant has left that partitions the GPU."""
    for vgpu in gpu.vgpus:
        yield f'vGPU {vgpu.name} is left on {vgpu.function}'
    if gpu.sriov_numvfs:
        yield f'{gpu.sriov_numvfs} virtual functions are left'
    if gpu.mig is None:
        return
    for instance in gpu.mig.instances:
        name = spec.profile_name(gpu.mig, instance.profile_id)
        yield f'GPU instance {name} is left at {instance.placement}'


def _listed(counts, names):
    return target.listed({
        names.get(board) or f'NVIDIA {board}': count
        for board, count in sorted(counts.items())}) or 'no GPU'
