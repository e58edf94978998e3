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

"""Carry out a plan of moves, one server after the other.

The GPU that a server leaves is cordoned until the server runs elsewhere, so
that neither this server nor a new one takes the room. Before each move, the
code reads the cloud again and plans again, with only the servers of the plan.
If moving these no longer makes enough room, no further server is moved.
Whatever ends a move, even Ctrl-C, the GPU is uncordoned and the server is
started again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import cordons
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import servers
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.moves import fleet
from cyborg_gpu_driver.cloud.moves import read
from cyborg_gpu_driver.cloud.moves import shelving
from cyborg_gpu_driver.cloud.profiles import resources
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition.moves import gpus as moving
from cyborg_gpu_driver.partition.moves import planner

_ROUND = 3.0
"""Seconds between two reads of the cloud."""


class Applying:
    """Carries out a plan.

    :param asked: the resources for which the plan makes room.
    :param look: reads the cloud as it was read for the plan.
    :param new: the cordon for each GPU that a server leaves.
    :param seconds: how long to wait for each report and for each move.
    :param say: called with a line for each action.
    """

    def __init__(self, cloud: connection.Cloud, asked: resources.Group,
                 look: Callable[[], read.Snapshot], new: cordon.Cordon,
                 seconds: float,
                 say: Callable[[str], None] = lambda text: None,
                 clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep):
        self._cloud = cloud
        self._asked = asked
        self._look = look
        self._new = new
        self._seconds = seconds
        self._say = say
        self._clock = clock
        self._sleep = sleep

    def run(self, plan: planner.Plan) -> planner.Plan:
        """Carry out a plan.

        :returns: what was done. It can differ from the plan, because the
            cloud changes meanwhile.
        :raises CloudError: if a step fails, takes too long, or does not have
            the planned result. The error says what has been done.
        """
        done: list[str] = []
        moves: list[planner.Move] = []
        try:
            for server in plan.idle:
                self._offload(server)
                done.append(f'offloaded server {server}')
            left = {move.server for move in plan.moves}
            while True:
                now = self._expect(left)
                if not now.moves:
                    return dataclasses.replace(now, idle=plan.idle,
                                               moves=tuple(moves))
                moves.append(self._move(now.moves[0]))
                done.append(f'moved server {now.moves[0].server}')
                left.remove(now.moves[0].server)
        except exception.CloudError as error:
            raise self._cloud.error(
                f'{responses.reason(error)} (done before that: '
                f'{", ".join(done) or "nothing"})'
            ) from error

    def _expect(self, left: Collection[str]) -> planner.Plan:
        """Wait until moving some servers is enough.

        The agents report with a delay what has become free.
        """
        end = self._clock() + self._seconds
        while True:
            found = self._look()
            wanted = found.fleet.want(self._asked)
            plan = wanted and planner.find(
                _fixed(found.fleet.gpus, left), wanted, len(left)).plan
            if plan:
                return plan
            rest = end - self._clock()
            if rest <= 0:
                raise self._cloud.error(
                    'the plan no longer makes room; make a new plan')
            self._sleep(min(_ROUND, rest))

    def _offload(self, server: str) -> None:
        """Offload a server that is shelved.

        :raises CloudError: if its owner has started it since the plan was
            made.
        """
        now = read.server(self._cloud, server)
        if now is not None and now.status not in shelving.AWAY:
            raise self._cloud.error(
                f'server {server} is not shelved any more, its status is '
                f'{now.status}; make a new plan')
        self._shelve(server, False)

    def _move(self, move: planner.Move) -> planner.Move:
        """Move a server; return the move with the server's actual new place.
        """
        origin = move.origin
        assert isinstance(origin, fleet.Place)  # As the fleet names GPUs.
        closed: tuple[hosts.Gpu, ...] = ()
        if move.destination != move.origin:
            closed = cordons.find(self._cloud, origin.host, origin.gpu)
            if any(gpu.cordons for gpu in closed):
                raise self._cloud.error(
                    f'{_name(origin)} was cordoned in the meantime')
        begun = False
        try:
            for gpu in closed:
                self._close(origin, gpu)
            begun = True
            self._shelve(move.server, True)
        except BaseException:
            # For example after Ctrl-C. The first error remains the error.
            self._try(lambda: self._open(origin, closed))
            if begun:
                self._try(lambda: self._bring_back(move.server))
            raise
        self._open(origin, closed)
        there = sorted({fleet.Place(one.provider.host, one.provider.gpu)
                        for one in servers.read(self._cloud, move.server)
                        if one.provider is not None})
        self._say(f'server {move.server} has '
                  + ', '.join(map(_name, there)))
        if closed and origin in there:
            raise self._cloud.error(
                f'server {move.server} came back to {_name(origin)}')
        return dataclasses.replace(move, destination=next(
            iter(there), move.destination))

    def _try(self, act: Callable[[], None]) -> None:
        """Do a step of the cleanup after a failure; report if it fails too."""
        try:
            act()
        except exception.CloudError as error:
            self._say(str(error))

    def _shelve(self, server: str, unshelve: bool) -> None:
        for reason in self._shelving(server, unshelve).values():
            raise self._cloud.error(f'server {server}: {reason}')

    def _shelving(self, server: str, unshelve: bool) -> dict[str, str]:
        return shelving.move(
            self._cloud, [server], [server] if unshelve else [],
            self._seconds, self._say, self._clock, self._sleep)

    def _bring_back(self, server: str) -> None:
        """Start a server again whose move failed, if it is shelved.

        Nova may still be shelving it, so this waits.
        """
        end = self._clock() + self._seconds
        problem = ''
        while True:
            try:
                now = read.server(self._cloud, server)
            except exception.CloudError as error:
                problem = responses.reason(error)
            else:
                if now is None or not now.busy and (
                        now.status not in shelving.AWAY):
                    return
                problem = f'its status is {now.status}'
                if not now.busy:
                    self._say(f'bringing back server {server}')
                    problem = self._shelving(server, True).get(server, '')
                    if not problem:
                        return
            if self._clock() >= end:
                raise self._cloud.error(
                    f'server {server} stays shelved ({problem}); to start it '
                    f'later: openstack server unshelve {server}')
            self._sleep(_ROUND)

    def _close(self, origin: fleet.Place, gpu: hosts.Gpu) -> None:
        self._say(f'cordoning {_name(origin)}')
        cordons.close(self._cloud, gpu, self._new)
        still = cordons.wait_closed(
            self._cloud, origin.host, [origin.gpu], self._seconds,
            clock=self._clock, sleep=self._sleep)
        if still:
            raise self._cloud.error(
                f'cyborg-agent has not reserved {_name(origin)} in '
                f'{self._seconds:g} s; check that it runs')

    def _open(self, origin: fleet.Place, closed: tuple[hosts.Gpu, ...]
              ) -> None:
        """Lift the cordon of a move, but not a cordon by an operator."""
        if not closed:
            return
        self._say(f'uncordoning {_name(origin)}')
        try:
            # Read the GPU again, because its device is disabled by now.
            for gpu in cordons.find(self._cloud, origin.host, origin.gpu):
                known = cordon.of(gpu.cordons, cordon.Source.CYBORG)
                if known is not None and known.reason not in (
                        '', self._new.reason):
                    self._say(f'{_name(origin)} stays cordoned: {known}')
                    continue
                cordons.open_(self._cloud, gpu)
        except exception.CloudError as error:
            raise self._cloud.error(
                f'{_name(origin)} may stay cordoned: '
                f'{responses.reason(error)}; to offer it again: '
                f'openstack gpu uncordon {origin.host} {origin.gpu}'
            ) from error


def _fixed(gpus: Collection[moving.Gpu], servers: Collection[str]
           ) -> list[moving.Gpu]:
    """Return the GPUs with all servers fixed, except the given servers."""
    return [dataclasses.replace(gpu, holders=tuple(
        holder if holder.name in servers else dataclasses.replace(
            holder, mobility=moving.Mobility.FIXED)
        for holder in gpu.holders)) for gpu in gpus]


def _name(place: fleet.Place) -> str:
    return f'GPU {place.gpu} on host {place.host}'
