# SPDX-License-Identifier: Apache-2.0

"""The fewest moves of servers that make room for one more."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import statistics
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry

# GPUs with their instances and holders, as the planner of moves sees them.
#
# A GPU has a grid (:mod:`cyborg_gpu_driver.partition.geometry`) and one or
# more occupancies. It has several if the exact placements are unknown and
# several arrangements match the known facts. A whole GPU is a grid of one
# unit.

WHOLE = 'passthrough'
"""The profile of a whole GPU."""

Rows = tuple[geometry.Row, ...]
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
    gpu = only_free((WHOLE,), name)
    return gpu if holder is None else Gpu(
        name, (gpu.rows[0].options[0][0].after,), (holder,))


def only_free(profiles: Iterable[str], name: Hashable = None) -> Gpu:
    """Return a GPU of which only the profiles with free room are known.

    One instance is assumed to use up the whole GPU, which is safe for a
    plan.

    :param profiles: those of which one more instance can be created.
    """
    table = _one_of_each(tuple(profiles))
    return Gpu(name, (table.row(geometry.EMPTY),))


@functools.lru_cache(maxsize=256)
def _one_of_each(profiles: tuple[str, ...]) -> geometry.Table:
    return geometry.Table(geometry.Geometry(
        model.GpuInstanceProfile(
            profile_id=number, name=name, slices=1, memory_mib=0,
            max_instances=1, placements=(model.Placement(0, 1),))
        for number, name in enumerate(profiles)))


@functools.lru_cache(maxsize=256)
def numbers(table: geometry.Table) -> Mapping[str, int]:
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


def _without(row: geometry.Row, number: int, holder: Holder
             ) -> Iterator[geometry.Row]:
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
    (:attr:`cyborg_gpu_driver.partition.geometry.Row.best`).

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


# Find the fewest moves of servers that make room for one more.
#
# A move takes a server off its GPU and starts it again, on another GPU or on
# the same GPU, where the agent then chooses a better placement. Idle instances
# are destroyed first and do not count as moves. Moves happen one after the
# other: at each move the server must fit next to everything that exists then.
#
# The search goes backwards from the server that needs room. It looks at each
# GPU that suits the server, and at each smallest set of holders that would
# make room there. Each of these holders gets another place: a free one, or
# while moves are left, one that becomes free in the same way. The search looks
# for plans with no moves, then with one, and so on. Among plans with the same
# number of moves it takes the one that destroys the fewest idle instances,
# then the one that loses the least room, as measured by
# :mod:`cyborg_gpu_driver.partition.geometry`, then the first in the order of
# the GPUs.
#
# Identical GPUs are interchangeable in a plan. A plan for N moves concerns at
# most N + 1 of them, so the search ignores the others, and its work grows with
# the number of different GPUs. The search still has a limit.

LIMIT = 200_000
"""The most placements that a search tries: some seconds of work."""


@dataclasses.dataclass(frozen=True)
class Move:
    """A server leaves a GPU and gets a place on the same or another GPU."""

    server: str
    profile: str
    origin: Hashable
    destination: Hashable


@dataclasses.dataclass(frozen=True)
class Plan:
    """The steps that make room, in the order in which they must be done.

    :ivar gpu: the GPU that has room in the end.
    :ivar idle: names of the idle instances, on this and other GPUs, that are
        destroyed first.
    :ivar certain: whether the plan works in every arrangement that a GPU may
        have; otherwise it works in at least one.
    """

    gpu: Hashable
    idle: tuple[str, ...]
    moves: tuple[Move, ...]
    certain: bool


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of a search.

    :ivar plan: None if the search found no plan.
    :ivar complete: whether the search covered everything that it had to. If
        it is false, the search ended at its limit.
    """

    plan: Plan | None
    complete: bool


def find(gpus: Iterable[Gpu], wanted: Want, moves: int = 2,
         limit: int = LIMIT) -> Answer:
    """Find the plan with the fewest moves that makes room for one more server.

    A plan that works in every arrangement that a GPU may have comes before
    a plan with fewer moves that may not work.

    :param gpus: in an order that breaks ties.
    :param moves: the most moves of a plan.
    """
    gpus = tuple(gpus)
    unknown = any(len(gpu.rows) > 1 or holder.placement is None
                  for gpu in gpus for holder in gpu.holders)
    search = _Search(gpus, wanted, moves, limit)
    try:
        for certain in (True, False):
            found = search.plan(certain)
            if found is not None or not unknown:
                return Answer(found, True)
    except _LimitReached:
        return Answer(None, False)
    return Answer(None, True)


class _LimitReached(Exception):
    """The search has reached its limit."""


@dataclasses.dataclass(frozen=True)
class _Spot:
    """A GPU in a plan that is being made.

    :ivar rows: without the holders that leave the GPU.
    :ivar staying: holders that the plan does not move away.
    :ivar arrivals: numbers of the profiles that come, in their order.
    """

    gpu: Gpu
    rows: Rows
    staying: tuple[Holder, ...]
    arrivals: tuple[int, ...] = ()


_Spots = dict[Hashable, _Spot]
_Left = tuple[Holder, Gpu]
"""A holder that needs another place, and the GPU that it leaves."""
_Moved = tuple[Holder, Gpu, Gpu]
"""A holder, the GPU that it leaves, and the GPU that it comes to."""
_Settled = tuple[_Spots, tuple[str, ...], tuple[_Moved, ...]]
"""The GPUs of a plan, its idle instances, and its moves in their order."""


class _Search:
    """One search; see :func:`find`."""

    def __init__(self, gpus: Sequence[Gpu], wanted: Want,
                 moves: int, limit: int):
        self._wanted = wanted
        self._moves = moves
        self._left = limit
        self._prices = _prices(gpus)
        self._gpus = tuple(_different(gpus, wanted, moves + 1))
        self._places: dict[tuple[Want, bool],
                           list[tuple[float, Gpu]]] = {}
        self._certain = True

    def plan(self, certain: bool) -> Plan | None:
        """Return the best plan.

        :raises _LimitReached: if the search takes too long.
        """
        self._certain = certain
        for moves in range(self._moves + 1):
            found = [made for gpu in self._gpus if self._wanted.suits(gpu)
                     for made in self._plans(gpu, moves)]
            if found:
                return min(found, key=lambda made: (
                    len(made[0].idle), made[1]))[0]
        return None

    def _plans(self, gpu: Gpu, moves: int
               ) -> Iterator[tuple[Plan, float]]:
        """Yield plans that make room on a GPU, each with the room it loses."""
        start = _Spot(gpu, gpu.rows, gpu.holders)
        for spot, leaving in self._vacated(start, self._wanted, moves):
            movers = _movers(leaving)
            found = self._settle(
                {gpu.name: spot}, tuple((one, gpu) for one in movers),
                moves - len(movers), _idle(leaving), ())
            if found is not None:
                spots, idle, made = found
                yield Plan(gpu.name, idle, tuple(
                    Move(one.name, one.want.profile, left.name, to.name)
                    for one, left, to in made), self._certain), sum(
                        map(self._loss, spots.values()))

    def _settle(self, spots: _Spots, pending: tuple[_Left, ...],
                budget: int, idle: tuple[str, ...],
                made: tuple[_Moved, ...]) -> _Settled | None:
        """Find places for holders.

        :param spots: the GPUs that the plan concerns so far.
        :param made: the moves so far, the last one first.
        :returns: spots, idle instances and moves of the plan; None if there
            is no plan.
        """
        if not pending:
            moves = tuple(reversed(made))
            return (spots, idle, moves) if self._works(
                spots, idle, moves) else None
        (holder, origin), *rest = pending
        for gpu in self._free(holder.want, spots):
            found = self._settle(
                {**spots, gpu.name: _with(_spot(spots, gpu), holder.want)},
                tuple(rest), budget, idle, (*made, (holder, origin, gpu)))
            if found is not None:
                return found
        for gpu in self._gpus if budget else ():
            if not holder.want.suits(gpu):
                continue
            for spot, leaving in self._vacated(
                    _spot(spots, gpu), holder.want, budget):
                if not leaving:
                    continue
                movers = _movers(leaving)
                found = self._settle(
                    {**spots, gpu.name: spot},
                    (*rest, *((one, gpu) for one in movers)),
                    budget - len(movers), (*idle, *_idle(leaving)),
                    (*made, (holder, origin, gpu)))
                if found is not None:
                    return found
        return None

    def _vacated(self, spot: _Spot, want: Want, budget: int
                 ) -> Iterator[tuple[_Spot, tuple[Holder, ...]]]:
        """Yield a GPU with room, per minimal set of holders to leave."""
        enough: list[set[int]] = []
        seen = set()
        for numbers in _choices(spot.staying, budget):
            if any(fewer <= set(numbers) for fewer in enough):
                continue
            leaving = tuple(spot.staying[number] for number in numbers)
            traits = frozenset(
                collections.Counter(map(_traits, leaving)).items())
            if traits in seen:
                continue
            seen.add(traits)
            rows = spot.rows
            for holder in leaving:
                rows = without(rows, holder)
            if not rows:
                continue
            after = _with(_Spot(spot.gpu, rows, tuple(
                holder for number, holder in enumerate(spot.staying)
                if number not in numbers), spot.arrivals), want)
            if self._arrived(after) is not None:
                enough.append(set(numbers))
                yield after, leaving

    def _free(self, want: Want, spots: _Spots
              ) -> Iterator[Gpu]:
        """Yield the GPUs that have room now, those that lose least first."""
        known = self._places.get((want, self._certain))
        if known is None:
            known = self._places[want, self._certain] = self._priced(
                want, [_Spot(gpu, gpu.rows, gpu.holders)
                       for gpu in self._gpus])
        changed = self._priced(want, spots.values())
        for _loss, gpu in sorted(
                [*changed, *(item for item in known
                             if item[1].name not in spots)],
                key=lambda item: item[0]):
            yield gpu

    def _priced(self, want: Want, spots: Iterable[_Spot]
                ) -> list[tuple[float, Gpu]]:
        found = []
        for spot in spots:
            if want.suits(spot.gpu):
                after = _with(spot, want)
                if self._arrived(after) is not None:
                    found.append((self._loss(after) - self._loss(spot),
                                  spot.gpu))
        return sorted(found, key=lambda item: item[0])

    def _works(self, spots: _Spots, idle: tuple[str, ...],
               moves: tuple[_Moved, ...]) -> bool:
        """Whether each move and then the wanted server find room in turn."""
        rows = {name: spot.gpu.rows for name, spot in spots.items()}
        for spot in spots.values():
            for holder in spot.gpu.holders:
                if (holder.mobility is Mobility.IDLE
                        and holder.name in idle):
                    rows[spot.gpu.name] = without(
                        rows[spot.gpu.name], holder)
        for holder, origin, gpu in moves:
            rows[origin.name] = without(rows[origin.name], holder)
            after = arrived(
                rows[gpu.name], (gpu.numbers[holder.want.profile],),
                self._certain)
            if after is None:
                return False
            rows[gpu.name] = after
        target = next(iter(spots.values())).gpu
        return arrived(
            rows[target.name], (target.numbers[self._wanted.profile],),
            self._certain) is not None

    def _arrived(self, spot: _Spot) -> Rows | None:
        self._left -= 1
        if self._left < 0:
            raise _LimitReached
        return arrived(spot.rows, spot.arrivals, self._certain)

    def _loss(self, spot: _Spot) -> float:
        """Return the room that a GPU loses by a plan."""
        after = arrived(spot.rows, spot.arrivals, self._certain)
        table = spot.gpu.rows[0].table
        return geometry.loss(
            map(float.__sub__, _room(spot.gpu.rows), _room(after or ())),
            [self._prices[profile.name] for profile in table.profiles])


def _spot(spots: _Spots, gpu: Gpu) -> _Spot:
    return spots.get(gpu.name) or _Spot(gpu, gpu.rows, gpu.holders)


def _with(spot: _Spot, want: Want) -> _Spot:
    """Return a spot with one more arrival, before the existing ones."""
    return dataclasses.replace(spot, arrivals=(
        spot.gpu.numbers[want.profile], *spot.arrivals))


def _choices(staying: Sequence[Holder], budget: int
             ) -> Iterator[tuple[int, ...]]:
    """Yield sets of holders that may leave, by number, cheapest first."""
    idle = [number for number, holder in enumerate(staying)
            if holder.mobility is Mobility.IDLE]
    movable = [number for number, holder in enumerate(staying)
               if holder.mobility is Mobility.MOVABLE]
    for moved in range(budget + 1):
        for gone in range(len(idle) + 1):
            for one in itertools.combinations(movable, moved):
                for other in itertools.combinations(idle, gone):
                    yield *one, *other


def _movers(leaving: Iterable[Holder]) -> list[Holder]:
    return [holder for holder in leaving
            if holder.mobility is Mobility.MOVABLE]


def _idle(leaving: Iterable[Holder]) -> tuple[str, ...]:
    return tuple(holder.name for holder in leaving
                 if holder.mobility is Mobility.IDLE)


def _traits(holder: Holder) -> tuple[object, ...]:
    """Return the properties that make holders interchangeable in a plan."""
    return holder.want, holder.mobility, holder.placement


def _room(rows: Rows) -> tuple[float, ...]:
    """Return the mean room on a GPU for each profile of its table."""
    if len(rows) == 1:
        return rows[0].room
    return tuple(map(statistics.fmean, zip(
        *(row.room for row in rows), strict=True)))


def _prices(gpus: Iterable[Gpu]) -> dict[str, float]:
    rooms: collections.Counter[str] = collections.Counter()
    for gpu in gpus:
        rooms.update(dict(zip(gpu.numbers, _room(gpu.rows), strict=True)))
    return dict(zip(rooms, geometry.prices(rooms.values()), strict=True))


def _different(gpus: Sequence[Gpu], wanted: Want, most: int
               ) -> Iterator[Gpu]:
    """Yield the GPUs, at most ``most`` of each group of identical ones."""
    groups = {want.gpus for want in itertools.chain(
        [wanted], (holder.want for gpu in gpus for holder in gpu.holders))
        if want.gpus is not None}
    counts: collections.Counter[object] = collections.Counter()
    for gpu in gpus:
        key = (gpu.rows, tuple(map(_traits, gpu.holders)),
               tuple(gpu.name in group for group in groups))
        counts[key] += 1
        if counts[key] <= most:
            yield gpu
