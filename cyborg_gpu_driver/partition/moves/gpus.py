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

"""GPUs with their instances and holders, as the planner of moves sees them.

A GPU has a grid (:mod:`cyborg_gpu_driver.partition.mig.geometry`) and one or
more occupancies. It has several if the exact placements are unknown and
several arrangements match the known facts. A whole GPU is a grid of one unit.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.mig import geometry
from cyborg_gpu_driver.partition.mig import score

WHOLE = 'passthrough'
"""The profile of a whole GPU."""

Rows = tuple[score.Row, ...]
"""The occupancies that a GPU may have; all are rows of one table."""


class Mobility(enum.Enum):
    """Whether an instance can be moved or destroyed."""

    FIXED = 'fixed'
    MOVABLE = 'movable'
    """The server that holds it may be moved."""
    IDLE = 'idle'
    """No server runs on it: it can be destroyed and needs no other place."""


@dataclasses.dataclass(frozen=True)
class Want:
    """What a server needs: one instance of a profile.

    :ivar gpus: names of the only GPUs that suit the server; None if every
        GPU that offers the profile does.
    """

    profile: str
    gpus: frozenset[Hashable] | None = None

    def suits(self, gpu: Gpu) -> bool:
        """Whether a GPU could have such an instance if the GPU were empty."""
        return self.profile in gpu.numbers and (
            self.gpus is None or gpu.name in self.gpus)


@dataclasses.dataclass(frozen=True)
class Holder:
    """A server or an idle instance that occupies a place on a GPU.

    :ivar name: the server's name, or the idle instance's.
    :ivar placement: None if it is unknown which instance of its profile the
        holder has.
    """

    name: str
    want: Want
    mobility: Mobility = Mobility.MOVABLE
    placement: model.Placement | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Gpu:
    """A GPU that takes part in a plan.

    :ivar rows: all occupancies that the GPU may have now, at least one.
    :ivar holders: the known holders; an instance without a holder is fixed.
    """

    name: Hashable
    rows: Rows
    holders: tuple[Holder, ...] = ()

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of each profile in the table, by its name."""
        return numbers(self.rows[0].table)


def whole(holder: Holder | None = None, name: Hashable = None) -> Gpu:
    """Return a GPU assigned as a whole, with the server that has it."""
    row = _whole_table().row(geometry.EMPTY)
    if holder is None:
        return Gpu(name, (row,))
    return Gpu(name, (row.options[0][0].after,), (holder,))


def only_free(profiles: Iterable[str], name: Hashable = None) -> Gpu:
    """Return a GPU of which only the profiles with free room are known.

    One instance is assumed to use up the whole GPU, which is safe for a
    plan.

    :param profiles: those of which one more instance can be created.
    """
    table = _one_of_each(tuple(profiles))
    return Gpu(name, (table.row(geometry.EMPTY),))


@functools.lru_cache(maxsize=256)
def _one_of_each(profiles: tuple[str, ...]) -> score.Table:
    return score.Table(geometry.Geometry(
        model.GpuInstanceProfile(
            profile_id=number, name=name, slices=1, memory_mib=0,
            max_instances=1, placements=(model.Placement(0, 1),))
        for number, name in enumerate(profiles)))


def _whole_table() -> score.Table:
    return _one_of_each((WHOLE,))


@functools.lru_cache(maxsize=256)
def numbers(table: score.Table) -> Mapping[str, int]:
    """The number of each profile in a table, by its name."""
    return {profile.name: number
            for number, profile in enumerate(table.profiles)}


def without(rows: Rows, holder: Holder) -> Rows:
    """Return all rows that a GPU may have once a holder has left it.

    :returns: empty if no row has an instance of the holder's profile.
    """
    number = numbers(rows[0].table)[holder.want.profile]
    return tuple(dict.fromkeys(
        left for row in rows for left in _without(row, number, holder)))


def _without(row: score.Row, number: int, holder: Holder
             ) -> Iterator[score.Row]:
    taken = row.occupancy.taken
    profile_id = row.table.profiles[number].profile_id
    for index, item in enumerate(taken):
        if item[0] == profile_id and holder.placement in (None, item[1]):
            yield row.table.row(geometry.Occupancy(
                taken[:index] + taken[index + 1:]))


@functools.lru_cache(maxsize=1 << 18)
def arrived(rows: Rows, arrivals: tuple[int, ...], certain: bool
            ) -> Rows | None:
    """Return all rows that a GPU may have once instances are created on it.

    The agent chooses each placement as it does at a bind
    (:attr:`cyborg_gpu_driver.partition.mig.score.Row.best`).

    :param arrivals: numbers of profiles, the first to be created first.
    :param certain: whether each of the rows must have room.
    :returns: None if there is no room.
    """
    for number in arrivals:
        after = [best.after for row in rows
                 if (best := row.best[number]) is not None]
        if not after or certain and len(after) < len(rows):
            return None
        rows = tuple(dict.fromkeys(after))
    return rows
