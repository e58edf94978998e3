# SPDX-License-Identifier: Apache-2.0

"""Carry out a plan of moves, one server after the other.

Nova 34 refuses to resize servers with accelerators, and refuses live and cold
migration (nova/compute/api.py, block_accelerators of resize and live_migrate).
Shelving releases the accelerators, and unshelving allocates new ones where
Placement has room. Meanwhile Nova keeps the root disk in an image.

The GPU that a server leaves is cordoned until the server runs elsewhere, so
that neither this server nor a new one takes the room. Before each move, the
code reads the cloud again and plans again, with only the servers of the plan.
If moving these no longer makes enough room, no further server is moved.
Whatever ends a move, even Ctrl-C, the GPU is uncordoned and the server is
started again.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import time
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

from keystoneauth1 import exceptions as identity_exceptions
from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cordons
from cyborg_gpu_driver.cloud import fleet
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import moves as partition_moves

_HERE = frozenset({'ACTIVE', 'SHUTOFF', 'PAUSED', 'SUSPENDED'})
"""The status of a server that Nova can shelve (nova/compute/api.py, shelve).
"""
_SHELVED, _OFFLOADED = 'SHELVED', 'SHELVED_OFFLOADED'
AWAY = frozenset({_SHELVED, _OFFLOADED})
"""The status of a server that does not run because it is shelved."""
_SHELVING_ROUND = 2.0
"""Seconds between two reads of the servers."""
_SERVER_ERROR = 500
_ROUND = 3.0
"""Seconds between two reads of the cloud."""


class Step(enum.Enum):
    """The next step for a server; the value of an action is Nova's name."""

    SHELVE = 'shelve'
    OFFLOAD = 'shelveOffload'
    UNSHELVE = 'unshelve'
    WAIT = 'wait'
    DONE = 'done'
    STUCK = 'stuck'


_ACTIONS = frozenset({Step.SHELVE, Step.OFFLOAD, Step.UNSHELVE})


def following(now: Any, sent: Collection[Step], unshelve: bool,
              was_away: bool = False) -> Step:
    """Return the next step for a server. Pure.

    :param now: openstacksdk's server.
    :param sent: the actions that were requested from Nova so far.
    :param unshelve: whether the server is to run again, elsewhere.
    :param was_away: whether the server has been offloaded since the first
        read.
    """
    if now.task_state is not None:
        return Step.WAIT
    if now.status == _SHELVED:
        return Step.STUCK if Step.OFFLOAD in sent else Step.OFFLOAD
    if now.status == _OFFLOADED:
        if now.compute_host is not None:
            # Nova clears the host a moment later. If the server is unshelved
            # before that, Nova clears its new host.
            return Step.WAIT
        if not unshelve:
            return Step.DONE
        return Step.STUCK if Step.UNSHELVE in sent else Step.UNSHELVE
    if now.status not in _HERE:
        return Step.STUCK
    if Step.UNSHELVE in sent or unshelve and was_away:
        return Step.DONE
    return Step.STUCK if Step.SHELVE in sent else Step.SHELVE


def shelve(cloud: connection.Cloud, servers: Collection[str],
           unshelve: Collection[str], seconds: float,
           tell: Callable[[str], None] = lambda text: None,
           clock: Callable[[], float] = time.monotonic,
           sleep: Callable[[float], None] = time.sleep) -> dict[str, str]:
    """Shelve servers in parallel, and unshelve them.

    If Nova does not answer, the function tries again: nothing else would
    start a server that is already shelved.

    :param unshelve: UUIDs of the servers that are to run again, with other
        accelerators.
    :returns: the reason for each server that failed, by UUID.
    """
    end = clock() + seconds
    left = {server: _Course(server, server in unshelve)
            for server in servers}
    failed: dict[str, str] = {}
    try:
        while left:
            for server, course in sorted(left.items()):
                failed.pop(server, None)
                done, problem = _attempt(cloud, course, tell)
                if done:
                    del left[server]
                if problem:
                    failed[server] = problem
            if left and clock() >= end:
                failed.update((server, ': '.join(filter(None, (
                    f'not finished after {seconds:g} s',
                    failed.get(server), _hint(course))))
                ) for server, course in left.items())
                break
            if left:
                sleep(_SHELVING_ROUND)
    except BaseException:
        # For example after Ctrl-C.
        for server, course in sorted(left.items()):
            if _hint(course):
                tell(f'server {server}: {_hint(course)}')
        raise
    return failed


@dataclasses.dataclass
class _Course:
    """The progress of one server."""

    server: str
    unshelve: bool
    sent: set[Step] = dataclasses.field(default_factory=set)
    was_away: bool = False


def _hint(course: _Course) -> str:
    """How to recover a server whose move was interrupted; empty if no need."""
    return '' if not (course.sent and course.unshelve) else (
        'it may stay shelved; to start it: openstack server unshelve '
        f'{course.server}')


def _attempt(cloud: connection.Cloud, course: _Course,
             tell: Callable[[str], None]) -> tuple[bool, str]:
    """Like :func:`_advance`, but an error that may pass does not end the move.
    """
    try:
        with cloud.errors():
            return _advance(cloud, course, tell)
    except exception.CloudError as error:
        return not _may_pass(error), connection.reason(error)


def _advance(cloud: connection.Cloud, course: _Course,
             tell: Callable[[str], None]) -> tuple[bool, str]:
    """Take the next step of one server.

    :returns: whether that was the last step, and the problem, if any.
    """
    now = nova.existing_server(cloud, course.server)
    if now is None:
        return True, ''
    course.was_away |= now.status == _OFFLOADED
    step = following(now, course.sent, course.unshelve, course.was_away)
    if step is Step.STUCK:
        fault = (now.fault or {}).get('message', '')
        return True, f'its status is {now.status}' + (
            f': {fault}' if fault else '') + (
            '; no other host takes it' if Step.UNSHELVE in course.sent
            and now.status == _OFFLOADED else '')
    if step in _ACTIONS:
        tell(f'server {course.server}: {step.value}')
        if _act(cloud, course.server, step):
            course.sent.add(step)
    return step is Step.DONE, ''


def _may_pass(error: exception.CloudError) -> bool:
    """Whether the service did not answer, or answered with a server error."""
    cause = error.__cause__
    if isinstance(cause, exceptions.HttpException):
        return (cause.status_code or 0) >= _SERVER_ERROR
    return isinstance(cause, (identity_exceptions.ConnectionError,
                              identity_exceptions.HttpServerError))


def _act(cloud: connection.Cloud, server: str, step: Step) -> bool:
    """Request an action from Nova.

    :returns: False if Nova is doing something else with the server. The next
        read of the server shows what.
    """
    compute = cloud.sdk.compute
    try:
        {Step.SHELVE: compute.shelve_server,
         Step.OFFLOAD: compute.shelve_offload_server,
         Step.UNSHELVE: compute.unshelve_server}[step](server)
    except exceptions.ConflictException:
        return False
    return True


class Applying:
    """Carries out a plan.

    :param asked: the resources for which the plan makes room.
    :param look: reads the cloud as it was read for the plan.
    :param new: the cordon for each GPU that a server leaves.
    :param seconds: how long to wait for each report and for each move.
    """

    def __init__(self, cloud: connection.Cloud, asked: resources.Group,
                 look: Callable[[], fleet.Snapshot], new: cordon.Cordon,
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

    def run(self, plan: partition_moves.Plan) -> partition_moves.Plan:
        """Carry out a plan.

        :returns: what was done. It can differ from the plan, because the
            cloud changes meanwhile.
        :raises CloudError: if a step fails, takes too long, or does not have
            the planned result. The error says what has been done.
        """
        done: list[str] = []
        moves: list[partition_moves.Move] = []
        try:
            with self._cloud.errors():
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
                f'{connection.reason(error)} (done before that: '
                f'{", ".join(done) or "nothing"})'
            ) from error

    def _expect(self, left: Collection[str]) -> partition_moves.Plan:
        """Wait until moving some servers is enough.

        The agents report with a delay what has become free.
        """
        end = self._clock() + self._seconds
        while True:
            found = self._look()
            wanted = found.fleet.want(self._asked)
            plan = wanted and partition_moves.find(
                _fixed(found.fleet.gpus, left), wanted, len(left)).plan
            if plan:
                return plan
            rest = end - self._clock()
            if rest <= 0:
                raise self._cloud.error(
                    'the plan no longer makes room; make a new plan')
            self._sleep(min(_ROUND, rest))

    def _offload(self, server: str) -> None:
        """Offload a server that is shelved."""
        now = nova.existing_server(self._cloud, server)
        if now is not None and now.status not in AWAY:
            raise self._cloud.error(
                f'server {server} is not shelved any more, its status is '
                f'{now.status}; make a new plan')
        self._shelve(server, False)

    def _move(self, move: partition_moves.Move) -> partition_moves.Move:
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
            attempt = functools.partial(self._cloud.attempt,
                                        complain=self._say)
            attempt(self._open, origin, closed)
            if begun:
                attempt(self._bring_back, move.server)
            raise
        self._open(origin, closed)
        there = sorted({fleet.Place(provider.host, provider.gpu)
                        for _, provider in nova.accelerators(
                            self._cloud, move.server) if provider is not None})
        self._say(f'server {move.server} has '
                  + ', '.join(map(_name, there)))
        if closed and origin in there:
            raise self._cloud.error(
                f'server {move.server} came back to {_name(origin)}')
        return dataclasses.replace(move, destination=next(
            iter(there), move.destination))

    def _shelve(self, server: str, unshelve: bool) -> None:
        for reason in shelve(
                self._cloud, [server], [server] if unshelve else [],
                self._seconds, self._say, self._clock, self._sleep).values():
            raise self._cloud.error(f'server {server}: {reason}')

    def _bring_back(self, server: str) -> None:
        """Start a server again whose move failed, if it is shelved.

        Nova may still be shelving it, so this waits.
        """
        end = self._clock() + self._seconds
        problem = ''
        while True:
            try:
                with self._cloud.errors():
                    now = nova.existing_server(self._cloud, server)
                if now is None or now.task_state is None and (
                        now.status not in AWAY):
                    return
                problem = f'its status is {now.status}'
                if now.task_state is None:
                    self._say(f'bringing back server {server}')
                    self._shelve(server, True)
                    return
            except exception.CloudError as error:
                problem = connection.reason(error)
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
            with self._cloud.errors():
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
                f'{connection.reason(error)}; to offer it again: '
                f'openstack gpu uncordon {origin.host} {origin.gpu}'
            ) from error


def _fixed(gpus: Collection[partition_moves.Gpu], servers: Collection[str]
           ) -> list[partition_moves.Gpu]:
    """Return the GPUs with all servers fixed, except the given servers."""
    return [dataclasses.replace(gpu, holders=tuple(
        holder if holder.name in servers else dataclasses.replace(
            holder, mobility=partition_moves.Mobility.FIXED)
        for holder in gpu.holders)) for gpu in gpus]


def _name(place: fleet.Place) -> str:
    return f'GPU {place.gpu} on host {place.host}'
