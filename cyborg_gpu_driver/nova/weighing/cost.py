# SPDX-License-Identifier: Apache-2.0

"""What a request would cost on each GPU. Pure.

The cost is the loss by the measure of
:mod:`cyborg_gpu_driver.partition.geometry`, by which the agent also chooses a
start. Room is how many more units of a resource class the whole cloud could
still allocate.

If the published figures determine the arrangement of a GPU
(:mod:`.grid`), the lost room is computed; if several arrangements fit
the figures, it is the mean over them. For any other GPU it is estimated: a
request that takes one of N available units takes one Nth of everything else
that the GPU offers. So a vGPU is placed where the other types are unavailable
already, and all whole GPUs cost the same.

A GPU that can still take several roles loses all the room of the roles that a
request does not use. So a request is placed where its role is in force
already, and idle GPUs remain available for every role.

If the loss is the same, the fullest GPU on the fullest host is cheapest. To
spread, the weigher looks for the emptiest GPU first, and at the loss last.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.nova.weighing import grid as weigher_grid
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.report.content import names

_TIE = 1e-9
"""The weight of emptiness relative to loss, or of loss relative to
emptiness: it only breaks ties."""
_HOST = 1e-3
"""The weight of the host's emptiness relative to the GPU's, to break ties:
the emptiness of a GPU comes in parts of a grid's units."""


@dataclasses.dataclass(frozen=True, order=True)
class Cost:
    """What an allocation candidate costs; the cheapest sorts first."""

    loss: float
    """Room lost, at its price; infinite if there is no room for the
    request."""
    gpu: float
    """How empty the GPUs of the candidate are, 0 to 1, their mean."""
    host: float
    """How empty the GPUs of the host are, 0 to 1, their mean."""

    @property
    def packing(self) -> float:
        """One number that sorts in the same order."""
        return self.loss + _TIE * (self.gpu + _HOST * self.host)

    @property
    def spreading(self) -> float:
        """One number: greater for emptier GPUs; a small loss breaks ties."""
        return self.gpu + _HOST * self.host - _TIE * self.loss


class Fleet:
    """All GPUs whose free capacity is known.

    :ivar number: increases with each reading.
    :ivar began: by the UUID of each host, when its reading began, in seconds
        of the reader's clock.
    :ivar has_isolated: whether some GPUs may have servers of one project
        only.
    """

    def __init__(self, gpus: Iterable[published.Gpu]):
        self.number = 0
        self.began: Mapping[str, float] = {}
        self.has_isolated = False
        self._places: dict[str, _Place] = {}
        self._rooms: collections.Counter[str] = collections.Counter()
        hosts = collections.defaultdict(list)
        for gpu in gpus:
            hosts[gpu.host].append(gpu.offers)
        for offers in hosts.values():
            for state in self._put(offers):
                for number, offer in enumerate(state.offers):
                    self._rooms[offer.resource_class] += state.room[number]
                    self.has_isolated |= names.ISOLATED in offer.traits
        self._losses: dict[tuple, float] = {}

    @classmethod
    def of(cls, parts: Iterable[Fleet], number: int = 0,
           began: Mapping[str, float] | None = None) -> Fleet:
        """Return a fleet of the GPUs of several fleets, such as one per host.

        This is much cheaper than a new fleet of the same GPUs, because it
        computes nothing about a GPU again.
        """
        fleet = cls(())
        fleet.number, fleet.began = number, began or {}
        for part in parts:
            fleet._places.update(part._places)
            fleet._rooms.update(part._rooms)
            fleet.has_isolated |= part.has_isolated
        return fleet

    def after(self, amounts: Mapping[str, int]) -> Fleet:
        """Return the same fleet after claims that it does not include yet.

        The prices do not change: a few units have little effect on them, and
        the losses that were computed already remain valid.

        :param amounts: units claimed, by provider.
        """
        fleet = Fleet(())
        fleet.number, fleet.began = self.number, self.began
        fleet.has_isolated = self.has_isolated
        fleet._places = dict(self._places)
        fleet._rooms, fleet._losses = self._rooms, self._losses
        fleet._prices = self._prices
        for host in {id(place.host): place.host for place in map(
                self._places.get, amounts) if place}.values():
            fleet._put([published.claimed(state.offers, amounts)
                        for state in host.states])
        return fleet

    def _put(self, gpus):
        """Add a host to the fleet."""
        host = _Host(tuple(map(_State, gpus)))
        for state in host.states:
            for number, offer in enumerate(state.offers):
                self._places[offer.provider] = _Place(state, number, host)
        return host.states

    @functools.cached_property
    def _prices(self):
        return dict(zip(self._rooms, geometry.prices(self._rooms.values()),
                        strict=True))

    def cost(self, allocations: Mapping[str, Any]) -> Cost | None:
        """Return what an allocation candidate costs.

        :param allocations: ``allocations`` of a candidate: by provider a
            ``resources`` of amounts by resource class. Providers that do not
            belong to a GPU of the fleet are ignored.
        :returns: None if no provider belongs to a GPU of the fleet.
        """
        wanted: dict[_State, list[int]] = {}
        places = []
        for provider, asked in sorted(allocations.items()):
            place = self._places.get(provider)
            if place is not None:
                places.append(place)
                wanted.setdefault(place.state, []).extend(
                    [place.number] * sum(asked['resources'].values()))
        if not places:
            return None
        return Cost(
            sum(self._loss(state, tuple(numbers))
                for state, numbers in wanted.items()),
            statistics.fmean(place.state.empty for place in places),
            statistics.fmean(place.host.empty for place in places))

    def taken(self, allocations: Mapping[str, Any]
              ) -> list[tuple[published.Offer, int]]:
        """Return the offers that a candidate takes, each with the amount."""
        places = ((self._places.get(provider), asked)
                  for provider, asked in allocations.items())
        return [(place.state.offers[place.number],
                 sum(asked['resources'].values()))
                for place, asked in places if place is not None]

    def offer(self, provider: str) -> published.Offer | None:
        """Return the offer of a provider; None if the fleet lacks it."""
        place = self._places.get(provider)
        return None if place is None else place.state.offers[place.number]

    def gpus(self, providers: Iterable[str]
             ) -> tuple[tuple[published.Offer, ...], ...]:
        """Return all offers of each GPU to which one of providers belongs."""
        states = {id(place.state): place.state for place
                  in map(self._places.get, providers) if place}
        return tuple(state.offers for state in states.values())

    def _loss(self, state, numbers):
        # GPUs with equal figures cost the same, and most have equals.
        key = state.key, numbers
        loss = self._losses.get(key)
        if loss is None:
            prices = tuple(self._prices[offer.resource_class]
                           for offer in state.offers)
            if any(numbers.count(number) > state.offers[number].free
                   for number in numbers):
                loss = math.inf
            else:
                loss = sum(part.loss(numbers, prices)
                           for part in state.parts)
            self._losses[key] = loss
        return loss


class _State:
    """A GPU and what is computed from its offers."""

    def __init__(self, offers):
        self.offers = offers
        profiles, classes, used, free = zip(*(
            (offer.profile, offer.resource_class, offer.used, offer.free)
            for offer in offers), strict=True)
        self.key = classes, profiles, used, free
        self.parts = _parts(profiles, used, free)
        self.empty = max(part.empty for part in self.parts)
        room = {number: left for part in self.parts
                for number, left in zip(part.numbers, part.room,
                                        strict=True)}
        self.room = tuple(room[number] for number in range(len(profiles)))


@dataclasses.dataclass(frozen=True)
class _Part:
    """What a GPU offers in one role, which excludes the others."""

    numbers: tuple[int, ...]
    """Positions of the role's offers among those of the GPU."""
    rows: tuple[geometry.Row, ...]
    """Partitionings that the GPU may have now; empty if unknown."""
    room: tuple[float, ...]
    empty: float
    """From 0 to 1."""

    def loss(self, numbers, prices):
        """Return the loss by a request for some of the GPU's offers."""
        own = tuple(prices[number] for number in self.numbers)
        asked = tuple(self.numbers.index(number) for number in numbers
                      if number in self.numbers)
        if not asked:
            return geometry.loss(self.room, own)
        if self.rows:
            return _computed(self.rows, asked, own)
        return _estimated(self.room, asked, own)


@functools.lru_cache(maxsize=4096)
def _parts(profiles, used, free):
    """Return the parts of a GPU, one for each role."""
    members = collections.defaultdict(list)
    for number, profile in enumerate(profiles):
        members[published.role_of(profile)].append(number)
    return tuple(_part(tuple(numbers), *(
        tuple(figures[number] for number in numbers)
        for figures in (profiles, used, free)))
        for numbers in members.values())


def _part(numbers, profiles, used, free):
    rows = weigher_grid.rows(profiles, used, free)
    if not rows:
        return _Part(numbers, rows, tuple(map(float, free)), max(
            left / (left + taken) if left else 0.0
            for left, taken in zip(free, used, strict=True)))
    room = zip(*(row.room for row in rows), strict=True)
    return _Part(numbers, rows, tuple(map(statistics.fmean, room)),
                 1 - statistics.fmean(
                     row.taken / row.table.grid.units for row in rows))


class _Host:
    """The GPUs of a host, and how empty they are from 0 to 1, their mean."""

    def __init__(self, states):
        self.states = states
        self.empty = statistics.fmean(state.empty for state in states)


@dataclasses.dataclass(frozen=True)
class _Place:
    """The GPU and the host to which a provider belongs."""

    state: _State
    number: int
    """Position among the offers of the GPU."""
    host: _Host


def _computed(rows, numbers, prices):
    return statistics.fmean(_of_row(row, numbers, prices) for row in rows)


def _of_row(row, numbers, prices):
    """Return the loss if each instance is created where it costs least."""
    total = 0.0
    for number in numbers:
        losses = [(geometry.loss(option.lost, prices), position)
                  for position, option in enumerate(row.options[number])]
        if not losses:
            return math.inf
        loss, position = min(losses)
        total += loss
        row = row.options[number][position].after
    return total


def _estimated(room, numbers, prices):
    # The room that the first unit takes from the second makes no
    # difference: the remaining room shrinks in the same proportion.
    return sum(geometry.loss(room, prices) / room[number]
               for number in numbers)


# Weights of hosts by how bad their GPUs are. Pure.

IMPOSSIBLE = -10.0
"""The weight of a host that cannot take the request."""


def weights(figures: Sequence[float | None]) -> list[float]:
    """Return the weights of hosts: 0 to 1, and :data:`IMPOSSIBLE`.

    :param figures: how bad each host's best GPU is; infinite if it is
        impossible. An unknown one counts as the mean of the others.
    """
    known = [figure for figure in figures
             if figure is not None and math.isfinite(figure)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    mean = statistics.fmean(known) if known else 0.0
    span = high - low or 1.0
    return [IMPOSSIBLE if figure == math.inf
            else (high - (mean if figure is None else figure)) / span
            for figure in figures]
