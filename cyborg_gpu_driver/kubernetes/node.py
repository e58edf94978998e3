# SPDX-License-Identifier: Apache-2.0

"""A Kubernetes node's GPUs and their current or wanted layout."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from collections.abc import Sequence

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import state as layout_state

_LABEL_LONGEST = 63
"""Maximum characters of a label's value (Kubernetes, labels and selectors)."""
_LABEL = re.compile(r'[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?', re.ASCII)


@dataclasses.dataclass(frozen=True)
class NodeGpu:
    """One GPU, partitioned as the layout says."""

    gpu: model.Gpu
    """The board. Its partitions do not matter here."""
    wanted: target.Wanted


@dataclasses.dataclass(frozen=True)
class Node:
    """The GPUs of one node, in NVML's order."""

    name: str
    """The layout's name, which must be valid as a label's value."""
    gpus: tuple[NodeGpu, ...]

    def __post_init__(self) -> None:
        if (len(self.name) > _LABEL_LONGEST
                or not _LABEL.fullmatch(self.name)):
            raise exception.InvalidValue(
                what='layout name', value=self.name,
                expected='a node label selects the layout, so the name has at '
                         f'most {_LABEL_LONGEST} letters, digits, dots, '
                         'hyphens and underscores, and begins and ends with a '
                         'letter or digit; rename the entry')

    @property
    def with_mig(self) -> tuple[NodeGpu, ...]:
        """The GPUs in MIG mode."""
        return tuple(item for item in self.gpus
                     if item.wanted.enabled)

    @property
    def whole(self) -> tuple[NodeGpu, ...]:
        """The GPUs that are not in MIG mode."""
        return tuple(item for item in self.gpus
                     if not item.wanted.enabled)

    @property
    def devices(self) -> tuple[target.WantedDevices, ...]:
        """The MIG devices of all GPUs, by GPU and size."""
        return tuple(devices for item in self.gpus
                     for devices in item.wanted.devices)

    def gpu_name(self, index: int) -> str:
        """Return the name of a GPU for error messages."""
        return f'GPU {index} ({self.gpus[index].gpu.address})'

    @property
    def has_mig(self) -> bool:
        """Whether any GPU of the node supports MIG."""
        return any(item.gpu.mig is not None for item in self.gpus)


def wanted_by(gpus: Sequence[model.Gpu], entry: layout_file.Entry | None,
              chosen: Collection[int]) -> tuple[NodeGpu, ...]:
    """Return how a layout partitions the GPUs of a node.

    :param gpus: all GPUs of the host, as they are now, with compute
        instances.
    :param entry: the layout; None for the current one. A GPU that the layout
        does not mention keeps its current one.
    :param chosen: indices of the node's GPUs.
    :raises DocumentError: if the layout does not suit the GPUs.
    """
    wanted = entry.for_chosen(gpus, [
        index for index in entry.chosen(gpus)
        if index in chosen]) if entry else {}
    return tuple(NodeGpu(gpus[index], wanted.get(index) or _now(gpus[index]))
                 for index in chosen)


def _now(gpu: model.Gpu) -> target.Wanted:
    return layout_state.export([gpu]).entry().for_chosen([gpu], [0])[0]


def mig_entry(node: Node) -> layout_file.Entry:
    """Return the node's layout for mig-parted."""
    return layout_file.Entry(
        'rendered layout', node.name, layout_file.sections({
            index: (item.wanted.enabled, tuple(item.wanted.counts.items()))
            for index, item in enumerate(node.gpus)}, len(node.gpus)))
