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

"""What a request would cost on each GPU. Pure.

The cost is the loss by the measure of
:mod:`cyborg_gpu_driver.partition.mig.score`, by which the agent also chooses a
start. Room is how many more of a resource class could be had in the whole
cloud.

Of a GPU whose arrangement can be told from what is published
(:mod:`.weigher_grid`) the room that is lost is computed; if several
arrangements look alike, it is the mean over them. Of any other GPU it is
estimated: who takes one of N that could be had takes one Nth of everything
else that the GPU offers. So a vGPU goes where the other types are out of
reach already, and of whole GPUs all cost the same.

A GPU that can still take several roles loses all that it could be had for in
the roles that a request does not ask for. So a request goes where its role is
in force already, and idle GPUs stay free for every role.

Where the loss is the same, the fullest GPU on the fullest host is cheapest.
Who wants to spread looks for the emptiest GPU, and at the loss last.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.nova.weighing import grid as weigher_grid
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.partition.mig import score
from cyborg_gpu_driver.report.content import traits

_TIE = 1e-9
"""What emptiness weighs beside loss, or loss beside emptiness: it only
decides between equals."""
_HOST = 1e-3
"""What the host's emptiness weighs beside the GPU's, likewise: that comes
in parts of a grid's units."""


@dataclasses.dataclass(frozen=True, order=True)
class Cost:
    """What a request costs somewhere; the lesser comes first."""

    loss: float
    """Room lost, at its price; infinite if there is no room for it."""
    gpu: float
    """How empty the GPUs are that it would take, 0 to 1, their mean."""
    host: float
    """How empty the GPUs of the host are, likewise."""

    @property
    def packing(self) -> float:
        """One number in the same order."""
        return self.loss + _TIE * (self.gpu + _HOST * self.host)

    @property
    def spreading(self) -> float:
        """One number: the emptier, the greater; last, the less is lost."""
        return self.gpu + _HOST * self.host - _TIE * self.loss


class Fleet:
    """All GPUs of which we know what they have left.

    :ivar number: the later of two that were read has the greater one.
    :ivar has_isolated: whether some may have servers of one project only.
    """

    def __init__(self, gpus: Iterable[published.Gpu]):
        self.number = 0
        self.has_isolated = False
        self._places: dict[str, _Place] = {}
        self._rooms: collections.Counter[str] = collections.Counter()
        for members in published.by_host(gpus).values():
            for state in self._put([gpu.offers for gpu in members]):
                for number, offer in enumerate(state.offers):
                    self._rooms[offer.resource_class] += state.room[number]
                    self.has_isolated |= traits.ISOLATED in offer.traits
        self._losses: dict[tuple, float] = {}

    @classmethod
    def of(cls, parts: Iterable[Fleet], number: int = 0) -> Fleet:
        """The GPUs of several fleets, such as one for each host.

        It costs much less than a fleet of the same GPUs, because it computes
        nothing about a GPU again.
        """
        fleet = cls(())
        fleet.number = number
        for part in parts:
            fleet._places.update(part._places)
            fleet._rooms.update(part._rooms)
            fleet.has_isolated |= part.has_isolated
        return fleet

    def after(self, amounts: Mapping[str, int]) -> Fleet:
        """The same after claims that it does not have yet.

        Prices stay as they are: a few units do not change them by much, and
        the losses that are known already hold.

        :param amounts: units claimed, by provider.
        """
        fleet = Fleet(())
        fleet.number, fleet.has_isolated = self.number, self.has_isolated
        fleet._places = dict(self._places)
        fleet._rooms, fleet._losses = self._rooms, self._losses
        fleet._prices = self._prices
        for host in {id(place.host): place.host for place in map(
                self._places.get, amounts) if place}.values():
            fleet._put([published.claimed(state.offers, amounts)
                        for state in host.states])
        return fleet

    def _put(self, gpus):
        """Put a host in.

        :param gpus: what each GPU of the host offers.
        """
        host = _Host(tuple(map(_State, gpus)))
        for state in host.states:
            for number, offer in enumerate(state.offers):
                self._places[offer.provider] = _Place(state, number, host)
        return host.states

    @functools.cached_property
    def _prices(self):
        return dict(zip(self._rooms, score.prices(self._rooms.values()),
                        strict=True))

    def cost(self, allocations: Mapping[str, Any]) -> Cost | None:
        """What an allocation candidate costs.

        :param allocations: ``allocations`` of a candidate: by provider a
            ``resources`` of amounts by resource class. Providers that are
            not of our GPUs count for nothing.
        :returns: None if none of them is of a GPU that we know.
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
        """What an allocation candidate takes, and how much of each."""
        places = ((self._places.get(provider), asked)
                  for provider, asked in allocations.items())
        return [(place.state.offers[place.number],
                 sum(asked['resources'].values()))
                for place, asked in places if place is not None]

    def offer(self, provider: str) -> published.Offer | None:
        """What a provider has; None if we do not know it."""
        place = self._places.get(provider)
        return None if place is None else place.state.offers[place.number]

    def gpus(self, providers: Iterable[str]
             ) -> tuple[tuple[published.Offer, ...], ...]:
        """All that the GPUs offer that these providers are on."""
        states = {id(place.state): place.state for place
                  in map(self._places.get, providers) if place}
        return tuple(state.offers for state in states.values())

    def _loss(self, state, numbers):
        # GPUs that look alike cost the same, and most do.
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
    """A GPU and what is to be known of it."""

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
    """Of the offers among those of the GPU."""
    rows: tuple[score.Row, ...]
    """Partitions that it may have."""
    room: tuple[float, ...]
    empty: float
    """From 0 to 1."""

    def loss(self, numbers, prices):
        """The loss by a request for some of the GPU's offers."""
        own = tuple(prices[number] for number in self.numbers)
        asked = tuple(self.numbers.index(number) for number in numbers
                      if number in self.numbers)
        if not asked:
            return score.loss(self.room, own)
        if self.rows:
            return _computed(self.rows, asked, own)
        return _estimated(self.room, asked, own)


@functools.lru_cache(maxsize=4096)
def _parts(profiles, used, free):
    """The parts of a GPU, one for each role."""
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
    """Where a provider stands."""

    state: _State
    number: int
    """Among the offers of the GPU."""
    host: _Host


def _computed(rows, numbers, prices):
    return statistics.fmean(_of_row(row, numbers, prices) for row in rows)


def _of_row(row, numbers, prices):
    """The loss if each instance goes where it costs least."""
    total = 0.0
    for number in numbers:
        losses = [(score.loss(option.lost, prices), position)
                  for position, option in enumerate(row.options[number])]
        if not losses:
            return math.inf
        loss, position = min(losses)
        total += loss
        row = row.options[number][position].after
    return total


def _estimated(room, numbers, prices):
    # What the first one takes of the room for the second makes no odds: as
    # many parts of what is left are the same.
    return sum(score.loss(room, prices) / room[number]
               for number in numbers)
