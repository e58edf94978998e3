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

"""Traits that earlier releases wrote without recording them.

At an inspection those releases removed every trait of some forms, including
names that operators use (``CUSTOM_NVIDIA_A100``). This module attributes a
trait to them only if it follows from what that inspection recorded of the
boards, or if nothing else can have written it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.baremetal.inventory import names as node_names
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.report.content import names

_MIB_PER_GIB = 1024
_UNHEALTHY = re.compile(
    r'CUSTOM_GPU_SICK_(XID_\d{1,6}|'
    + '|'.join(sorted(map(re.escape, health.CODES))) + ')', re.ASCII)


def written(summary: Mapping[str, Any], current: Iterable[str],
            layouts: Iterable[str]) -> frozenset[str]:
    """Return those of a node's traits that an earlier release wrote.

    :param summary: what that release left in the node's property.
    :param current: the node's traits.
    :param layouts: names of the layouts that its GPUs are known to take.
    """
    current = frozenset(current)
    exact = {*_boards(summary), *map(node_names.layout_trait, layouts)}
    return current & exact | frozenset(filter(_UNHEALTHY.fullmatch, current))


def _boards(summary) -> Iterator[str]:
    count = summary.get('count')
    if type(count) is int:
        yield node_names.count_trait(count)
    boards = summary.get('boards')
    for board in boards if isinstance(boards, list) else ():
        if isinstance(board, dict):
            yield from _board(board)


def _board(board):
    """Yield the traits of one kind of board, as that release named them."""
    device, model, architecture, memory = (
        board.get(key) for key in ('device_id', 'model', 'architecture',
                                   'memory_mib'))
    if isinstance(device, str):
        yield names.custom(names.VENDOR, device)
    if isinstance(model, str):
        yield names.custom('GPU', 'MODEL',
                           names.without_vendor(model))
    if isinstance(architecture, str):
        yield names.custom('GPU', 'ARCH', architecture)
    if type(memory) is int:
        yield names.custom('GPU', 'MEMORY', (
            f'{memory}MB' if memory < _MIB_PER_GIB else
            f'{(memory + _MIB_PER_GIB // 2) // _MIB_PER_GIB}GB'))
