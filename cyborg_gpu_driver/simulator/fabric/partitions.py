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

"""The partitions that a baseboard has.

From "GPU Partitions" in the fabric manager's user guide, for one baseboard.
"""

from __future__ import annotations

import dataclasses

import pynvml

EIGHT = ((1, 2, 3, 4, 5, 6, 7, 8),)
_FOURS = ((1, 2, 3, 4), (5, 6, 7, 8))
_ONES = tuple((number,) for number in range(1, 9))
_NEIGHBOURS = ((1, 2), (3, 4), (5, 6), (7, 8))
_HOPPER_PAIRS = ((1, 3), (2, 4), (5, 7), (6, 8))
# Partitions of two baseboards are left out, and so are their ids.
_AMPERE_IDS = (1, 7, 8, *range(11, 15), *range(19, 27))
_LINE_RATES = {pynvml.NVML_DEVICE_ARCH_AMPERE: 25781}
_LATER_RATE = 26562
"""MB/s of an NVLink: 25.781 GB/s of the third generation, 26.562 of the
fourth, as "nvidia-smi nvlink -s" prints them."""


@dataclasses.dataclass(frozen=True)
class Partition:
    """A set of GPUs, given by their physical ids."""

    number: int
    gpus: tuple[int, ...]


def table(architecture: int) -> tuple[Partition, ...]:
    """The partitions of an architecture's baseboard.

    :param architecture: NVML_DEVICE_ARCH_*.
    """
    if architecture == pynvml.NVML_DEVICE_ARCH_AMPERE:
        numbers, pairs = _AMPERE_IDS, _NEIGHBOURS
    elif architecture == pynvml.NVML_DEVICE_ARCH_HOPPER:
        numbers, pairs = tuple(range(15)), _HOPPER_PAIRS
    else:
        numbers, pairs = tuple(range(1, 16)), _NEIGHBOURS
    return tuple(map(Partition, numbers, (*EIGHT, *_FOURS, *pairs, *_ONES)))


def line_rate(architecture: int) -> int:
    """MB/s of one NVLink."""
    return _LINE_RATES.get(architecture, _LATER_RATE)
