# SPDX-License-Identifier: Apache-2.0


"""Policies that place instances online, on a cluster of GPUs of one kind.

There are three policies. None refuses a request that fits on a GPU as it is:

* first-fit: the first GPU with room, the first free start.
* best-fit: the GPU that has the fewest memory units left, the first free
  start.
* capacity-loss: the GPU and start that lose least by the measure of
  :mod:`cyborg_gpu_driver.partition.geometry`, where the weight of a profile
  is the square root of how often it was requested recently. The root keeps a
  rare profile from being sold out: even a few requests for a large profile
  need whole GPUs that remain empty. The loss is the slope of the cluster's
  worth, which is the sum over the profiles of ``sqrt(demand) * ln(1/2 +
  room)``.

Among equally good choices a policy takes the fullest GPU, then the first.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry

MEMORY = 4096
"""Requests after which older demand counts half."""


class Policy(enum.Enum):
    """How a cluster chooses a place."""

    FIRST_FIT = 'first-fit'
    BEST_FIT = 'best-fit'
    CAPACITY_LOSS = 'capacity-loss'


@dataclasses.dataclass(frozen=True)
class Place:
    """A GPU and the placement of one actual or possible instance on it."""

    gpu: Hashable
    """The caller's name for the GPU."""
    profile_id: int
    placement: model.Placement


class Demand:
    """How often each profile is requested; recent requests count more.

    Every profile counts as requested once at the beginning.
    """

    def __init__(self, profile_ids: Iterable[int]):
        self._counts = dict.fromkeys(profile_ids, 1.0)
        self._total = len(self._counts)
        self._roots = self._weigh()

    @property
    def roots(self) -> tuple[float, ...]:
        """The square root of each profile's share, in profile order."""
        return self._roots

    def note(self, profile_id: int) -> None:
        """Count one more request, whether it can be met or not."""
        self._counts[profile_id] += 1
        self._total += 1
        if self._total >= 2 * MEMORY:
            for known in self._counts:
                self._counts[known] /= 2
            self._total = sum(self._counts.values())
        self._roots = self._weigh()

    def _weigh(self):
        return tuple(math.sqrt(count / self._total)
                     for count in self._counts.values())


class Cluster:
    """The GPUs of one kind and the instances on them.

    A decision looks at each different occupancy only once, so its cost hardly
    grows with the number of GPUs.

    :param table: the kind of GPU. Clusters may share a table.
    :param gpus: the occupancy of each GPU, in the order of first-fit.
    :param starts: for some profile ids, the order in which first-fit and
        best-fit try the starts. The order is ascending for other profiles.
    """

    def __init__(self, table: geometry.Table,
                 gpus: Mapping[Hashable, geometry.Occupancy],
                 policy: Policy = Policy.CAPACITY_LOSS,
                 starts: Mapping[int, Sequence[int]] | None = None):
        self.table = table
        self.policy = policy
        self._starts = starts or {}
        self._firsts = {}
        self.demand = Demand(
            profile.profile_id for profile in table.profiles)
        self._rows = {gpu: table.row(occupancy)
                      for gpu, occupancy in gpus.items()}
        self._order = {gpu: number for number, gpu in enumerate(self._rows)}
        self._alike = collections.defaultdict(set)
        # For each profile, the rows of the cluster on which it fits.
        self._open = tuple({} for _profile in table.profiles)
        self._room = [0.0] * len(table.profiles)
        for gpu, row in self._rows.items():
            self._enter(gpu, row)
        self._choosers = {
            Policy.FIRST_FIT: self._first_fit,
            Policy.BEST_FIT: self._best_fit,
            Policy.CAPACITY_LOSS: self._capacity_loss,
        }

    def occupancy(self, gpu: Hashable) -> geometry.Occupancy:
        """Return the occupancy of a GPU.

        :raises InvalidValue: if the cluster has no such GPU.
        """
        return self._row(gpu).occupancy

    @property
    def room(self) -> dict[int, float]:
        """By profile id, how many more instances of it alone would fit.

        Instances that may end soon count in part; see
        :data:`~cyborg_gpu_driver.partition.geometry.ENDING`.
        """
        return {profile.profile_id: room for profile, room in
                zip(self.table.profiles, self._room, strict=True)}

    def choose(self, profile_id: int) -> Place | None:
        """Return a place for one more instance, without taking it.

        :returns: None if no GPU has room for it as it is.
        :raises InvalidValue: if the table has no such profile.
        """
        chosen = self._choosers[self.policy](self._index(profile_id))
        if chosen is None:
            return None
        gpu, placement, _after = chosen
        return Place(gpu, profile_id, placement)

    def request(self, profile_id: int) -> Place | None:
        """Choose a place and take it, and count the request as demand.

        :returns: None if no GPU has room for it as it is.
        :raises InvalidValue: if the table has no such profile.
        """
        number = self._index(profile_id)
        self.demand.note(profile_id)
        chosen = self._choosers[self.policy](number)
        if chosen is None:
            return None
        gpu, placement, after = chosen
        self._move(gpu, after)
        return Place(gpu, profile_id, placement)

    def add(self, place: Place) -> None:
        """Add an instance, at a place that the caller has chosen.

        :raises InvalidValue: if the GPU has no room for it there.
        """
        row = self._row(place.gpu)
        profile = self.table.profiles[self._index(place.profile_id)]
        if place.placement not in self.table.grid.free_placements(
                row.occupancy, profile):
            raise exception.InvalidValue(
                what='place', value=f'{profile.name}@{place.placement}',
                expected=f'GPU {place.gpu} has no room for it there')
        self._move(place.gpu, self.table.row(
            row.occupancy.add(profile, place.placement)))

    def remove(self, place: Place) -> None:
        """Remove an instance.

        :raises InvalidValue: if there is none at the place.
        """
        left = list(self._row(place.gpu).occupancy.taken)
        item = place.profile_id, place.placement
        if item not in left:
            raise exception.InvalidValue(
                what='instance', value=f'{place.profile_id}@{place.placement}',
                expected='expected one of those on the GPU')
        left.remove(item)
        self._move(place.gpu, self.table.row(
            geometry.Occupancy(tuple(left))))

    def _index(self, profile_id):
        """Return the index of a profile in the table."""
        numbers = [profile.profile_id for profile in self.table.profiles]
        if profile_id not in numbers:
            raise exception.InvalidValue(
                what='profile id', value=profile_id,
                expected=f'expected one of {sorted(numbers)}')
        return numbers.index(profile_id)

    def _row(self, gpu):
        try:
            return self._rows[gpu]
        except KeyError:
            raise exception.InvalidValue(
                what='GPU', value=gpu,
                expected='expected one of the cluster') from None

    def _move(self, gpu, row):
        old = self._rows[gpu]
        alike = self._alike[old]
        alike.remove(gpu)
        if not alike:
            del self._alike[old]
            for number, options in enumerate(old.options):
                if options:
                    del self._open[number][old]
        for number, room in enumerate(old.room):
            self._room[number] -= room
        self._rows[gpu] = row
        self._enter(gpu, row)

    def _enter(self, gpu, row):
        alike = self._alike[row]
        if not alike:
            for number, options in enumerate(row.options):
                if options:
                    self._open[number][row] = options
        alike.add(gpu)
        for number, room in enumerate(row.room):
            self._room[number] += room

    def _first(self, row):
        return min(self._alike[row], key=self._order.__getitem__)

    def _first_fit(self, number):
        if not self._open[number]:
            return None
        return next((gpu, *first) for gpu, row in self._rows.items()
                    if (first := self._first_start(row, number)))

    def _best_fit(self, number):
        best = max((row.taken for row in self._open[number]), default=None)
        gpus = [self._first(row) for row in self._open[number]
                if row.taken == best]
        if not gpus:
            return None
        gpu = min(gpus, key=self._order.__getitem__)
        return gpu, *self._first_start(self._rows[gpu], number)

    def _capacity_loss(self, number):
        prices = geometry.prices(self._room, self.demand.roots)
        least, best, chosen = math.inf, None, None
        for row, options in self._open[number].items():
            for option in options:
                loss = geometry.loss(option.lost, prices)
                if loss < least or (loss == least
                                    and rank(row) < rank(best)):
                    least, best, chosen = loss, row, option
        return chosen and (
            self._first(best), chosen.placement, chosen.after)

    def _first_start(self, row, number):
        """Return the first free placement of a profile and the row after it.
        """
        key = row, number
        if key not in self._firsts:
            profile = self.table.profiles[number]
            order = self._starts.get(profile.profile_id)
            free = self.table.grid.free_placements(row.occupancy, profile)
            first = min(free, default=None, key=lambda placement: (
                order.index(placement.start) if order else placement.start))
            self._firsts[key] = first and (first, self.table.row(
                row.occupancy.add(profile, first)))
        return self._firsts[key]


def rank(row: geometry.Row) -> tuple:
    """Return a sort key for equally good rows: the fullest comes first."""
    return -row.taken, row.occupancy.taken
