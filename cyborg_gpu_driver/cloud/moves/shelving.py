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

"""Move servers off their GPU: shelve them, and unshelve them elsewhere.

Nova 34 refuses to resize servers with accelerators, and refuses live and cold
migration (nova/compute/api.py, block_accelerators of resize and live_migrate).
Shelving releases the accelerators, and unshelving allocates new ones where
Placement has room. Meanwhile Nova keeps the root disk in an image.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable
from collections.abc import Collection

from keystoneauth1 import exceptions as identity_exceptions
from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses

_HERE = frozenset({'ACTIVE', 'SHUTOFF', 'PAUSED', 'SUSPENDED'})
"""The status of a server that Nova can shelve (nova/compute/api.py, shelve).
"""
_SHELVED, _OFFLOADED = 'SHELVED', 'SHELVED_OFFLOADED'
AWAY = frozenset({_SHELVED, _OFFLOADED})
"""The status of a server that does not run because it is shelved."""
_ROUND = 2.0
"""Seconds between two reads of the servers."""
_SERVER_ERROR = 500


class Step(enum.Enum):
    """The next step for a server; the value of an action is Nova's name."""

    SHELVE = 'shelve'
    OFFLOAD = 'shelveOffload'
    UNSHELVE = 'unshelve'
    WAIT = 'wait'
    DONE = 'done'
    STUCK = 'stuck'


_ACTIONS = frozenset({Step.SHELVE, Step.OFFLOAD, Step.UNSHELVE})


@dataclasses.dataclass(frozen=True)
class Now:
    """A server as Nova shows it.

    :ivar busy: whether Nova is changing the server (it has a task state).
    :ivar host: on which the server is; None if it is on no host.
    :ivar fault: the server's last fault; empty if Nova shows none.
    """

    status: str
    busy: bool
    host: str | None
    fault: str = ''


def following(now: Now, sent: Collection[Step], unshelve: bool,
              was_away: bool = False) -> Step:
    """Return the next step for a server. Pure.

    :param sent: the actions that were requested from Nova so far.
    :param unshelve: whether the server is to run again, elsewhere.
    :param was_away: whether the server has been offloaded since the first
        read.
    """
    if now.busy:
        return Step.WAIT
    if now.status == _SHELVED:
        return Step.STUCK if Step.OFFLOAD in sent else Step.OFFLOAD
    if now.status == _OFFLOADED:
        if now.host is not None:
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


def move(cloud: connection.Cloud, servers: Collection[str],
         unshelve: Collection[str], seconds: float,
         tell: Callable[[str], None] = lambda text: None,
         clock: Callable[[], float] = time.monotonic,
         sleep: Callable[[float], None] = time.sleep) -> dict[str, str]:
    """Shelve servers in parallel, and unshelve them.

    If Nova does not answer, the function tries again: nothing else would
    start a server that is already shelved.

    :param servers: UUIDs.
    :param unshelve: UUIDs of the servers that are to run again, with other
        accelerators.
    :param seconds: how long everything may take.
    :param tell: called with a line for each action on a server.
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
                sleep(_ROUND)
    except BaseException:
        # For example after Ctrl-C.
        for server, course in sorted(left.items()):
            if _hint(course):
                tell(f'server {server}: {_hint(course)}')
        raise
    return failed


@dataclasses.dataclass
class _Course:
    """The progress of one server.

    :ivar sent: the actions that Nova has accepted.
    """

    server: str
    unshelve: bool
    sent: set[Step] = dataclasses.field(default_factory=set)
    was_away: bool = False


def _hint(course):
    """How to recover a server whose move was interrupted; empty if no need."""
    return '' if not (course.sent and course.unshelve) else (
        'it may stay shelved; to start it: openstack server unshelve '
        f'{course.server}')


def _attempt(cloud, course, tell):
    """Like :func:`_advance`, but an error that may pass does not end the move.
    """
    try:
        return _advance(cloud, course, tell)
    except exception.CloudError as error:
        return not _may_pass(error), responses.reason(error)


def _advance(cloud, course, tell):
    """Take the next step of one server.

    :returns: whether that was the last step, and the problem, if any.
    """
    now = _read(cloud, course.server)
    if now is None:
        return True, ''
    course.was_away |= now.status == _OFFLOADED
    step = following(now, course.sent, course.unshelve, course.was_away)
    if step is Step.STUCK:
        return True, f'its status is {now.status}' + (
            f': {now.fault}' if now.fault else '') + (
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


def _read(cloud, server):
    """Return the current state of a server; None if it no longer exists."""
    answer = cloud.ask('compute', f'/servers/{server}', responses.NOVA)
    if answer is None:
        return None
    with responses.understanding(cloud, 'Nova', f'server {server}'):
        item = answer['server']
        return Now(item['status'],
                   item['OS-EXT-STS:task_state'] is not None,
                   item['OS-EXT-SRV-ATTR:host'],
                   (item.get('fault') or {}).get('message', ''))


def _act(cloud, server, step):
    """Request an action from Nova.

    :returns: False if Nova is doing something else with the server. The next
        read of the server shows what.
    """
    try:
        cloud.change('compute', 'POST', f'/servers/{server}/action',
                     {step.value: None}, responses.NOVA)
    except exception.CloudError as error:
        if not isinstance(error.__cause__, exceptions.ConflictException):
            raise
        return False
    return True
