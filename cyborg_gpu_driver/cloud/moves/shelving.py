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

"""Servers that leave their GPU: shelved, and unshelved elsewhere.

Nova 34 refuses to resize and to migrate servers with accelerators, live and
cold (nova/compute/api.py, block_accelerators of resize and live_migrate).
Shelving gives the accelerators back, and unshelving takes new ones where
Placement has room. Nova keeps the root disk in an image meanwhile.
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
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses

_HERE = frozenset({'ACTIVE', 'SHUTOFF', 'PAUSED', 'SUSPENDED'})
"""What Nova shelves (nova/compute/api.py, shelve)."""
_SHELVED, _OFFLOADED = 'SHELVED', 'SHELVED_OFFLOADED'
AWAY = frozenset({_SHELVED, _OFFLOADED})
"""The status of a server that does not run because it is shelved."""
_ROUND = 2.0
"""Seconds between two looks."""
_SERVER_ERROR = 500


class Step(enum.Enum):
    """What is to be done with a server; the value is Nova's action."""

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

    :ivar busy: whether Nova is doing something with it.
    :ivar host: where it is; None if it is nowhere.
    :ivar fault: why the last thing failed; empty if Nova does not say.
    """

    status: str
    busy: bool
    host: str | None
    fault: str = ''


def following(now: Now, sent: Collection[Step], unshelve: bool,
              was_away: bool = False) -> Step:
    """What comes next for a server. Pure.

    :param sent: the actions that Nova was asked for so far.
    :param unshelve: whether it is to run elsewhere.
    :param was_away: whether it has been offloaded since the first look.
    """
    if now.busy:
        return Step.WAIT
    if now.status == _SHELVED:
        return Step.STUCK if Step.OFFLOAD in sent else Step.OFFLOAD
    if now.status == _OFFLOADED:
        if now.host is not None:
            # Nova forgets the host a moment later. A server that is
            # unshelved in between loses its new host.
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
    """Shelve servers, some at the same time, and unshelve them.

    While Nova does not answer, the command asks again: nothing else would
    start a server that is shelved by then.

    :param servers: UUIDs.
    :param unshelve: those that are to run again, with other accelerators.
    :param seconds: how long all of it may take.
    :param tell: told what is done with which server.
    :returns: why each server that did not make it has not, by its UUID.
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
        # As of Ctrl-C.
        for server, course in sorted(left.items()):
            if _hint(course):
                tell(f'server {server}: {_hint(course)}')
        raise
    return failed


@dataclasses.dataclass
class _Course:
    """How far one server has come.

    :ivar sent: the actions that Nova has taken.
    """

    server: str
    unshelve: bool
    sent: set[Step] = dataclasses.field(default_factory=set)
    was_away: bool = False


def _hint(course):
    """What to do about a server that is left half-way; may be empty."""
    return '' if not (course.sent and course.unshelve) else (
        'it may stay shelved; to start it: openstack server unshelve '
        f'{course.server}')


def _attempt(cloud, course, tell):
    """As :func:`_advance`; a service that does not answer is no end."""
    try:
        return _advance(cloud, course, tell)
    except exception.CloudError as error:
        return not _may_pass(error), responses.reason(error)


def _advance(cloud, course, tell):
    """Take the next step of one server.

    :returns: whether that was the last, and what is wrong, if anything.
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
    """Whether a service has not answered, or not for a fault of its own."""
    cause = error.__cause__
    if isinstance(cause, exceptions.HttpException):
        return (cause.status_code or 0) >= _SERVER_ERROR
    return isinstance(cause, (identity_exceptions.ConnectionError,
                              identity_exceptions.HttpServerError))


def _read(cloud, server):
    """A server as it is now; None if it is gone."""
    answer = cloud.ask('compute', f'/servers/{server}', state.COMPUTE)
    if answer is None:
        return None
    with responses.understanding(cloud, 'Nova', f'server {server}'):
        item = answer['server']
        return Now(item['status'],
                   item['OS-EXT-STS:task_state'] is not None,
                   item['OS-EXT-SRV-ATTR:host'],
                   (item.get('fault') or {}).get('message', ''))


def _act(cloud, server, step):
    """Ask Nova for an action.

    :returns: False if Nova is doing something else with the server, which
        the next look sees.
    """
    try:
        cloud.change('compute', 'POST', f'/servers/{server}/action',
                     {step.value: None}, state.COMPUTE)
    except exception.CloudError as error:
        if not isinstance(error.__cause__, exceptions.ConflictException):
            raise
        return False
    return True
