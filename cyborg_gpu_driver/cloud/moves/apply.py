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
that neither this server nor a new one takes the room. Before each move the
cloud is read again, and planned again with the servers of the plan alone. If
they are not enough any more, nothing else is moved.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import servers
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.cordons import change
from cyborg_gpu_driver.cloud.moves import fleet
from cyborg_gpu_driver.cloud.moves import read
from cyborg_gpu_driver.cloud.moves import shelving
from cyborg_gpu_driver.cloud.profiles import resources
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition.moves import gpus as moving
from cyborg_gpu_driver.partition.moves import planner

_ROUND = 3.0
"""Seconds between two looks at the cloud."""


class Applying:
    """Carries out a plan.

    :param asked: what needs room.
    :param look: reads the cloud as for the plan.
    :param new: the cordon of a GPU that a server leaves.
    :param seconds: how long to wait for each report and for each move.
    :param say: called with a line about what is being done.
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

        :returns: the plan with no moves that there is then.
        :raises CloudError: if a step fails, takes too long, or does not have
            the result that was planned. It says what has been done.
        """
        done: list[str] = []
        try:
            for server in plan.idle:
                self._shelve(server, False)
                done.append(f'offloaded server {server}')
            left = {move.server for move in plan.moves}
            while True:
                now = self._expect(left)
                if not now.moves:
                    return now
                self._move(now.moves[0])
                done.append(f'moved server {now.moves[0].server}')
                left.remove(now.moves[0].server)
        except exception.GpuDriverError as error:
            raise self._cloud.error(
                f'{error} (done before that: {", ".join(done) or "nothing"})'
            ) from error

    def _expect(self, left: Collection[str]) -> planner.Plan:
        """Wait until moving some servers is enough.

        The agents report some time later what has become free.
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
                    'the plan does not make room any more; make a new one')
            self._sleep(min(_ROUND, rest))

    def _move(self, move: planner.Move) -> None:
        origin = move.origin
        assert isinstance(origin, fleet.Place)  # As the fleet names GPUs.
        closed: tuple[hosts.Gpu, ...] = ()
        if move.destination != move.origin:
            closed = change.find(self._cloud, origin.host, origin.gpu)
            if any(gpu.cordons for gpu in closed):
                raise self._cloud.error(
                    f'{_name(origin)} has been cordoned meanwhile')
        try:
            for gpu in closed:
                self._close(origin, gpu)
            self._shelve(move.server, True)
        except exception.GpuDriverError:
            self._open(origin, closed)
            self._bring_back(move.server)
            raise
        self._open(origin, closed)
        there = {fleet.Place(one.provider.host, one.provider.gpu)
                 for one in servers.read(self._cloud, move.server)
                 if one.provider is not None}
        self._say(f'server {move.server} has '
                  + ', '.join(map(_name, sorted(there))))
        if closed and origin in there:
            raise self._cloud.error(
                f'server {move.server} came back to {_name(origin)}')

    def _shelve(self, server: str, unshelve: bool) -> None:
        failed = shelving.move(
            self._cloud, [server], unshelve, self._seconds, self._say,
            self._clock, self._sleep)
        for reason in failed.values():
            raise self._cloud.error(f'server {server}: {reason}')

    def _bring_back(self, server: str) -> None:
        """Start a server again that could not move, if it is shelved."""
        end = self._clock() + self._seconds
        while _is_away(self._cloud, server):
            self._say(f'bringing back server {server}')
            if not shelving.move(self._cloud, [server], True, self._seconds,
                                 self._say, self._clock, self._sleep):
                return
            if self._clock() >= end:
                self._say(f'server {server} stays shelved; unshelve it later')
                return
            self._sleep(_ROUND)

    def _close(self, origin: fleet.Place, gpu: hosts.Gpu) -> None:
        self._say(f'closing {_name(origin)}')
        change.close(self._cloud, gpu, self._new)
        still = change.wait_closed(
            self._cloud, origin.host, [origin.gpu], self._seconds,
            clock=self._clock, sleep=self._sleep)
        if still:
            raise self._cloud.error(
                f'{_name(origin)} is still open after {self._seconds:g} s')

    def _open(self, origin: fleet.Place, closed: tuple[hosts.Gpu, ...]
              ) -> None:
        # It is read again: it is known by now that it is disabled.
        if closed:
            self._say(f'opening {_name(origin)}')
            for gpu in change.find(self._cloud, origin.host, origin.gpu):
                change.open_(self._cloud, gpu)


def _is_away(cloud: connection.Cloud, server: str) -> bool:
    now = read.server(cloud, server)
    return now is not None and now.status == fleet.OFFLOADED


def _fixed(gpus: Collection[moving.Gpu], servers: Collection[str]
           ) -> list[moving.Gpu]:
    """GPUs whose servers stay, but for some."""
    return [dataclasses.replace(gpu, holders=tuple(
        holder if holder.name in servers else dataclasses.replace(
            holder, mobility=moving.Mobility.FIXED)
        for holder in gpu.holders)) for gpu in gpus]


def _name(place: fleet.Place) -> str:
    return f'GPU {place.gpu} on host {place.host}'
