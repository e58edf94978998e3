# SPDX-License-Identifier: Apache-2.0


"""A cluster that moves instances when it would have to refuse a request.

The planner is that of ``openstack gpu defragment``
(:mod:`cyborg_gpu_driver.partition.moves`), and every instance may be
moved. A moved instance gets the start that the agent would choose.
"""

from __future__ import annotations

from collections.abc import Iterable

import online

from cyborg_gpu_driver.partition import moves


class Relocating:
    """A cluster that makes room for a request that would be refused.

    :param cluster: chooses the place of a request while there is room.
    :param gpus: the GPUs of the cluster.
    :param most: the maximum number of moves for one refused request.
    """

    def __init__(self, cluster: online.Cluster, gpus: Iterable[int],
                 most: int):
        self._cluster = cluster
        self._most = most
        self._names = [profile.name for profile in cluster.table.profiles]
        self._wants = [moves.Want(name) for name in self._names]
        self._holders: dict[int, dict[str, moves.Holder]] = {
            gpu: {} for gpu in gpus}
        self._seen = {gpu: self._look(gpu) for gpu in self._holders}
        self._at: dict[str, int] = {}
        self._number = 0
        self.moves = 0

    def request(self, profile: int) -> str | None:
        """Place one more instance of a profile, given by its index.

        :returns: the argument for :meth:`remove`, None if refused.
        """
        place = self._cluster.request(profile)
        if place is None:
            plan = moves.find(
                self._seen.values(), self._wants[profile], self._most).plan
            if plan is None:
                return None
            for move in plan.moves:
                self._move(move)
            place = self._cluster.choose(profile)
            self._cluster.add(place)
        self._number += 1
        name = str(self._number)
        self._enter(name, place)
        return name

    def gpu(self, name: str) -> int:
        """Return the GPU on which an instance is now."""
        return self._at[name]

    def remove(self, name: str) -> None:
        """Remove an instance."""
        gpu = self._at.pop(name)
        holder = self._holders[gpu].pop(name)
        self._cluster.remove(online.Place(
            gpu, self._names.index(holder.want.profile), holder.placement))
        self._seen[gpu] = self._look(gpu)

    def _enter(self, name: str, place: online.Place) -> None:
        self._at[name] = place.gpu
        self._holders[place.gpu][name] = moves.Holder(
            name, self._wants[place.profile_id], placement=place.placement)
        self._seen[place.gpu] = self._look(place.gpu)

    def _move(self, move: moves.Move) -> None:
        profile = self._names.index(move.profile)
        self.remove(move.server)
        before = self._cluster.occupancy(move.destination)
        after, = moves.arrived(
            (self._cluster.table.row(before),), (profile,), True)
        item, = set(after.occupancy.taken) - set(before.taken)
        place = online.Place(move.destination, *item)
        self._cluster.add(place)
        self._enter(move.server, place)
        self.moves += 1

    def _look(self, gpu: int) -> moves.Gpu:
        row = self._cluster.table.row(self._cluster.occupancy(gpu))
        return moves.Gpu(gpu, (row,), tuple(self._holders[gpu].values()))
