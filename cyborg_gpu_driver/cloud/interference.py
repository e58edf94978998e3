# SPDX-License-Identifier: Apache-2.0

"""Run applications in servers of a cloud, up to two on one GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.interference import applications as apps
from cyborg_gpu_driver.interference import guest
from cyborg_gpu_driver.interference import results

MARK = 'gpu_interference'
"""Metadata key of a server of a measurement; its value identifies the
measurement."""
NAME = 'gpu-interference-'
"""Prefix of the names of these servers."""
_LINES = 2000
"""Number of console lines that are read."""
_GONE = 300.0
"""Seconds within which Nova must delete a server."""
_ROUND = 2.0
_ASTRAY = 8
"""A step fails when this many servers have been created on a wrong GPU."""
_REFUSED = 3
"""A step fails when Nova has failed to create a server this many times."""
_PAUSE = 10.0
"""Seconds before the next attempt to create a server: the agents report with
a delay what a deleted server has released."""
_SLACK = 60.0
"""Seconds by which a line on a console may be late."""

Place = frozenset[tuple[str, str]]
"""GPUs: host and PCI address of each."""


@dataclasses.dataclass(frozen=True)
class Made:
    """The properties of every server of a measurement.

    :ivar flavor: ID; ``image`` and ``network`` are IDs, too.
    :ivar network: None for no network at all.
    :ivar key: name of a key pair, to log in to a guest that does not report.
    """

    flavor: str
    image: str
    network: str | None = None
    key: str | None = None

    def attributes(self, name: str, mark: str, user_data: str,
                   host: str | None) -> dict[str, Any]:
        """Return the attributes of a new server for openstacksdk.

        :param user_data: in base64.
        :param host: on which the server must be; None for any.
        """
        return {
            'name': name, 'flavor_id': self.flavor, 'image_id': self.image,
            'networks': ([{'uuid': self.network}] if self.network
                         else 'none'),
            # Without a network there is no metadata service.
            'config_drive': True, 'user_data': user_data,
            'metadata': {MARK: mark},
            **({'host': host} if host else {}),
            **({'key_name': self.key} if self.key else {})}


def resolve(cloud: connection.Cloud, flavor: str, image: str,
            network: str | None, key: str | None) -> Made:
    """Look up the properties of the servers by names or IDs.

    :raises CloudError: if the flavor asks for no accelerator.
    """
    sdk = cloud.sdk
    found = sdk.compute.find_flavor(flavor, ignore_missing=False,
                                    get_extra_specs=True)
    if not found.extra_specs.get(resources.PROFILE_KEY):
        raise cloud.error(
            f'flavor {flavor} has no {resources.PROFILE_KEY}; expected a '
            'flavor whose device profile asks for a slice or a vGPU')
    return Made(
        found.id, sdk.image.find_image(image, ignore_missing=False).id,
        network and sdk.network.find_network(
            network, ignore_missing=False).id, key)


def problem(server: Any) -> str:
    """Return why a server has failed; empty if it has not."""
    if server is None:
        return 'somebody has deleted it'
    if server.status in ('ACTIVE', 'BUILD'):
        return ''
    return f'its status is {server.status}: ' + (server.fault or {}).get(
        'message', 'Nova does not say why')


def place(cloud: connection.Cloud, server: str) -> Place:
    """Return the GPUs of a server.

    :raises CloudError: if it has no GPU of this driver.
    """
    found = frozenset((provider.host, provider.gpu)
                      for _, provider in nova.accelerators(cloud, server)
                      if provider is not None)
    if not found:
        raise cloud.error(f'server {server} has no GPU of this driver; '
                          'choose another flavor')
    return found


def others(cloud: connection.Cloud, gpus: Place, ours: Collection[str]
           ) -> set[str]:
    """Return the UUIDs of other servers on the same GPUs.

    :param ours: UUIDs of the servers to leave out.
    """
    hosts = {host for host, _gpu in gpus}
    listed = cyborg.requests(cloud)
    there = {(item['device_rp_uuid'], item['instance_uuid'])
             for item in listed if item['hostname'] in hosts
             and item['device_rp_uuid']
             and item['instance_uuid'] not in {None, *ours}}
    known = placement.gpu_profiles(cloud, {one for one, _ in there})
    return {server for one, server in there if one in known
            and (known[one].host, known[one].gpu) in gpus}


def console(cloud: connection.Cloud, server: str) -> str:
    """Return the end of a server's console output; empty while there is none.
    """
    try:
        return str(cloud.sdk.compute.get_server_console_output(
            server, _LINES)['output'])
    except (exceptions.ConflictException, exceptions.NotFoundException):
        # The guest does not exist yet, or has no console yet.
        return ''


def marked(cloud: connection.Cloud, mark: str) -> list[str]:
    """Return the UUIDs of the servers of a measurement.

    Only the user's own project is searched: a measurement creates its servers
    there.
    """
    return [item.id for item in cloud.sdk.compute.servers(name=f'^{NAME}')
            if item.metadata.get(MARK) == mark]


def delete(cloud: connection.Cloud, uuids: Collection[str],
           clock: Callable[[], float] = time.monotonic,
           sleep: Callable[[float], None] = time.sleep) -> dict[str, str]:
    """Delete servers and wait until they are gone.

    :returns: by UUID of each server that still exists, the reason why.
    """
    end = clock() + _GONE
    left, asked = set(uuids), set[str]()
    problems: dict[str, str] = {}
    while left:
        for server in sorted(left):
            try:
                with cloud.errors():
                    if server not in asked:
                        cloud.sdk.compute.delete_server(server)
                        asked.add(server)
                    if nova.existing_server(cloud, server) is None:
                        left.discard(server)
                        problems.pop(server, None)
            except exception.CloudError as error:
                problems[server] = str(error)
        if not left or clock() >= end:
            break
        sleep(_ROUND)
    return {server: problems.get(server) or f'not deleted after {_GONE:g} s'
            for server in left}


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
    :param mark: identifies the measurement. Servers with it that an earlier
        process has left are deleted.
    :param timeout: seconds that each run may take.
    :param boot: seconds until a guest must run its script.
    :param wait: waits for a number of seconds, or raises an exception to end
        the measurement.
    """

    gpu_memory_mib: int | None = None
    """Unknown, because a guest does not report it."""

    def __init__(self, cloud: connection.Cloud, made: Made,
                 host: str | None, mark: str, timeout: float, boot: float,
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
        self._mark = mark
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
        self._clear()
        with self._cloud.errors(), contextlib.ExitStack() as stack:
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
        strangers = others(self._cloud, gpus, ours)
        if strangers - self._warned:
            self._say(f'Other servers on {_names(gpus)} disturb the '
                      f'measurement: {", ".join(sorted(strangers))}')
            self._warned |= strangers

    def _start(self, application, count, gpus):
        """Create a server on given GPUs; on any if ``gpus`` is None."""
        token = uuid.uuid4().hex
        script = guest.user_data(application, token, count, self._timeout)
        astray = refused = 0
        while True:
            server = self._cloud.sdk.compute.create_server(
                **self._made.attributes(NAME + application.name, self._mark,
                                        script, self._host)).id
            host, failure = self._settled(server)
            if failure:
                self._delete([server])
                refused += 1
                if refused == _REFUSED:
                    raise self._no_room(f'server {server}: {failure}')
                self._wait(_PAUSE)
                continue
            found = place(self._cloud, server)
            self._host = self._host or host
            if gpus in (None, found):
                return _Guest(server, application, token), found
            astray += 1
            if astray == _ASTRAY:
                raise self._no_room(
                    f'server {server} is on {_names(found)}, the other one '
                    f'on {_names(gpus)}')
            # The stopped server occupies the wrong GPU until the step ends.
            self._cloud.sdk.compute.stop_server(server)

    def _no_room(self, problem):
        return self._cloud.error(
            f'{problem}. Each pair needs one GPU with room for two servers of '
            'this flavor: choose a flavor with a slice or vGPU of a GPU that '
            'has room, gpu:strategy=pack, or another --host')

    def _settled(self, server):
        """Wait for a server; return its host, and why it failed, if it did.
        """
        end = self._clock() + self._boot
        while True:
            item = nova.existing_server(self._cloud, server)
            failure = problem(item)
            if failure or item.status == 'ACTIVE' and not item.task_state:
                return item and item.compute_host, failure
            if self._clock() >= end:
                return None, f'it is not active after {self._boot:g} s'
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
        return guest.read(console(self._cloud, one.server),
                          one.token)

    def _silent(self, one):
        return self._cloud.error(
            f'the guest of server {one.server} has not run its user data '
            f'after {self._boot:g} s. The image needs cloud-init, and its '
            '/dev/console must be the console that Nova shows ("openstack '
            'console log show"); --boot-timeout gives the guest more time')

    def _clear(self):
        """Delete the servers of the measurement."""
        try:
            with self._cloud.errors():
                left = marked(self._cloud, self._mark)
        except exception.CloudError as error:
            self._say(f'{error}; run the command again to delete what is left')
            return
        self._delete(left)

    def _delete(self, uuids):
        for server, reason in delete(self._cloud, uuids).items():
            self._say(f'server {server} could not be deleted: {reason}. '
                      'Run the command again')


def _names(gpus):
    return ', '.join(f'GPU {gpu} on host {host}'
                     for host, gpu in sorted(gpus))
