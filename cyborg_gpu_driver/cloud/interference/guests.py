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

"""Run applications in servers of a cloud, up to two on one GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.interference import servers
from cyborg_gpu_driver.interference import applications as apps
from cyborg_gpu_driver.interference import guest
from cyborg_gpu_driver.interference import results

_ASTRAY = 8
"""A step fails when this many servers have been created on a wrong GPU."""
_REFUSED = 3
"""A step fails when Nova has failed to create a server this many times."""
_PAUSE = 10.0
"""Seconds before the next attempt to create a server: the agents report with
a delay what a deleted server has released."""
_SLACK = 60.0
"""Seconds by which a line on a console may be late."""


@dataclasses.dataclass(frozen=True)
class _Guest:
    """A server, its application, and the token that marks its output lines.
    """

    server: str
    application: apps.Application
    token: str


class Guests:
    """A :class:`.measuring.Runner` that runs applications in servers.

    The first server chooses the host of all others, because GPUs of different
    hosts can be of different models.

    :param made: the properties of every server.
    :param host: on which all servers must be; None for any.
    :param timeout: seconds that each run may take.
    :param boot: seconds until a guest must run its script.
    :param wait: waits for a number of seconds, or raises an exception to end
        the measurement.
    :param say: called with a line for display.
    """

    gpu_memory_mib: int | None = None
    """Unknown, because a guest does not report it."""

    def __init__(self, cloud: connection.Cloud, made: servers.Made,
                 host: str | None, timeout: float, boot: float,
                 wait: Callable[[float], None],
                 say: Callable[[str], None] = lambda text: None,
                 poll: float = 3.0,
                 clock: Callable[[], float] = time.monotonic):
        self._cloud = cloud
        self._made = made
        self._host = host
        self._timeout = timeout
        self._boot = boot
        self._wait = wait
        self._say = say
        self._poll = poll
        self._clock = clock
        self._mark = uuid.uuid4().hex
        self._warned: set[str] = set()

    def runs(self, application: apps.Application,
             other: apps.Application | None, count: int
             ) -> list[results.Runs]:
        """Run an application ``count`` times, in a server of its own.

        :param other: an application that runs at the same time, in a second
            server on the same GPU.
        :raises GpuDriverError: if no such server can be created, or its guest
            does not run the script.
        """
        with contextlib.ExitStack() as stack:
            # Also finds a server whose creation Nova did not confirm.
            stack.callback(self._clear)
            companion, gpus = None, None
            if other is not None:
                companion, gpus = self._start(other, None, None)
                self._begun(companion)
            measured, gpus = self._start(application, count, gpus)
            self._warn(gpus, [one.server for one in (measured, companion)
                              if one])
            return self._watch(measured, companion, count)

    def _warn(self, gpus, ours):
        others = servers.others(self._cloud, gpus, ours)
        if others - self._warned:
            self._say(f'Other servers on {_names(gpus)} disturb the '
                      f'measurement: {", ".join(sorted(others))}')
            self._warned |= others

    def _start(self, application, count, gpus):
        """Create a server on given GPUs; on any if ``gpus`` is None."""
        token = uuid.uuid4().hex
        script = guest.user_data(application, token, count, self._timeout)
        astray = refused = 0
        while True:
            server = servers.create(self._cloud, self._made.body(
                servers.NAME + application.name, self._mark, script,
                self._host))
            now = self._settled(server)
            if now.problem:
                problem = f'server {server}: {now.problem}'
                self._delete([server])
                refused += 1
                if refused == _REFUSED:
                    raise self._no_room(problem)
                self._wait(_PAUSE)
                continue
            found = servers.place(self._cloud, server)
            self._host = self._host or now.host
            if gpus in (None, found):
                return _Guest(server, application, token), found
            problem = (f'server {server} is on {_names(found)}, the other '
                       f'one on {_names(gpus)}')
            astray += 1
            if astray == _ASTRAY:
                raise self._no_room(problem)
            # The stopped server occupies the wrong GPU until the step ends.
            servers.stop(self._cloud, server)

    def _no_room(self, problem):
        return self._cloud.error(
            f'{problem}. Each pair needs one GPU with room for two servers of '
            'this flavor: choose a flavor with a slice or vGPU of a GPU that '
            'has room, gpu:placement=pack, or another --host')

    def _settled(self, server):
        end = self._clock() + self._boot
        while True:
            now = servers.look(self._cloud, server)
            if now.ready or now.problem:
                return now
            if self._clock() >= end:
                return servers.Now(False, None, 'it is not active after '
                                                f'{self._boot:g} s')
            self._wait(self._poll)

    def _begun(self, one):
        """Wait until a guest runs its command."""
        end = self._clock() + self._boot
        while not self._report(one).begun:
            if self._clock() >= end:
                raise self._silent(one)
            self._wait(self._poll)

    def _watch(self, measured, companion, count):
        """Wait until the runs of a guest are over, and return them."""
        self._begun(measured)
        known, changed = 0, self._clock()
        while True:
            report = self._report(measured)
            found = guest.runs_of(report, measured.application,
                                  self._timeout)
            if companion:
                failed = guest.runs_of(self._report(companion),
                                       companion.application, self._timeout)
                if failed:
                    return found[:count - 1] + failed
            if report.ended:
                return found
            if len(found) > known:
                known, changed = len(found), self._clock()
            if self._clock() >= changed + self._timeout + _SLACK:
                return [*found, results.Runs(
                    results.Outcome.TIMED_OUT,
                    problem=f'{measured.application.name}: no result on the '
                            f'console after {self._timeout + _SLACK:g} s')]
            self._wait(self._poll)

    def _report(self, one):
        return guest.read(servers.console(self._cloud, one.server),
                          one.token)

    def _silent(self, one):
        return self._cloud.error(
            f'the guest of server {one.server} has not run its user data '
            f'after {self._boot:g} s. The image needs cloud-init, and its '
            '/dev/console must be the console that Nova shows ("openstack '
            'console log show"); --boot-timeout gives the guest more time')

    def _clear(self):
        try:
            left = servers.marked(self._cloud, self._mark)
        except exception.CloudError as error:
            self._say(f'{error}; "openstack gpu interference clean" deletes '
                      'what is left')
            return
        self._delete(left)

    def _delete(self, uuids):
        for server, problem in servers.delete(self._cloud, uuids).items():
            self._say(f'server {server} could not be deleted: {problem}. '
                      '"openstack gpu interference clean" tries again')


def _names(gpus):
    return ', '.join(f'GPU {gpu} on host {host}'
                     for host, gpu in sorted(gpus))
