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

"""How a GPU is cut, as the journal and the checkpoint keep it.

Ids and UUIDs are left out: the driver gives out new ones each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import fields
from cyborg_gpu_driver.host import model


@dataclasses.dataclass(frozen=True, order=True)
class Cut:
    """A GPU instance with its compute instances."""

    placement: model.Placement
    profile_id: int
    compute: tuple[tuple[int, int], ...] = ()
    """(start, size) of each in compute slices, sorted."""

    @property
    def place(self) -> tuple[int, model.Placement]:
        """What it is and where, whatever it is cut into."""
        return self.profile_id, self.placement


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """MIG mode and GPU instances of one GPU."""

    enabled: bool
    """Current MIG mode."""
    pending: bool
    """MIG mode after the next reset."""
    cuts: tuple[Cut, ...] = ()
    """By placement."""

    def places(self) -> frozenset[tuple[int, model.Placement]]:
        """Each cut's :attr:`Cut.place`."""
        return frozenset(cut.place for cut in self.cuts)


def of(gpu: model.Gpu) -> Arrangement:
    """How a GPU is cut; ``gpu`` has its compute instances read."""
    if gpu.mig is None:
        return Arrangement(False, False)
    return Arrangement(gpu.mig.enabled, gpu.mig.pending, tuple(sorted(
        cut(instance) for instance in gpu.mig.instances)))


def cut(instance: model.GpuInstance) -> Cut:
    """What is to be remembered of a live instance."""
    return Cut(instance.placement, instance.profile_id, tuple(sorted(
        (part.start, part.size) for part in instance.compute)))


def to_record(arranged: Arrangement) -> dict[str, Any]:
    """For JSON."""
    return {
        'enabled': arranged.enabled, 'pending': arranged.pending,
        'instances': [
            {'profile_id': cut.profile_id, 'start': cut.placement.start,
             'size': cut.placement.size,
             'compute': [list(part) for part in cut.compute]}
            for cut in arranged.cuts]}


def from_record(record: Mapping[str, Any]) -> Arrangement:
    """What :func:`to_record` wrote.

    :raises KeyError, TypeError, ValueError: if it was something else.
    """
    return Arrangement(
        fields.truth(record['enabled']), fields.truth(record['pending']),
        tuple(sorted(Cut(
            model.Placement(fields.number(item['start']),
                            fields.number(item['size'])),
            fields.number(item['profile_id']),
            tuple(sorted((fields.number(start), fields.number(size))
                         for start, size in item['compute'])))
            for item in record['instances'])))
