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

"""Delete accelerator requests of servers deleted while the agent was down.

cyborg-api asks the agent to unbind, gets no answer and leaves the request
bound, although Nova has deleted the server and its allocation. No service of
the cloud ever repairs that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.cloud import computes
from cyborg_gpu_driver.cloud import records
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.orphans import clean as orphans_clean
from cyborg_gpu_driver.cloud.orphans import orphans

LOG = logging.getLogger(__name__)

_BOUND = 'Bound'
_RARELY = 60.0
"""Minimum number of seconds between two checks."""


class Finisher:
    """Deletes bound requests of one host whose servers are gone.

    A server is gone if two checks that are ``grace`` apart find neither a
    server nor a migration in Nova, and no allocation in Placement. If a
    service does not answer, no server counts as gone.

    :param connect: returns the cloud; if it is None, nothing is checked.
    :param host: the compute node as Cyborg names it.
    :param grace: seconds between the checks.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, connect: Callable[[], connection.Cloud] | None,
                 host: str, grace: float,
                 clock: Callable[[], float] = time.monotonic):
        self._connect = connect
        self._host = host
        self._grace = max(grace, _RARELY)
        self._clock = clock
        self._cloud: connection.Cloud | None = None
        self._looked: float | None = None
        self._gone: tuple[orphans.Orphan, ...] = ()
        self._said = log_once.LogOnce()

    def look(self) -> None:
        """Run a check if it is due, and delete what the last check found, too.

        Never raises.
        """
        if self._connect is None or (
                self._looked is not None
                and self._clock() - self._looked < self._grace):
            return
        before, self._gone = self._gone, ()
        try:
            if self._cloud is None:
                self._cloud = self._connect()
            self._gone = gone(self._cloud, self._host)
        except Exception as error:
            # The report of the GPUs must not depend on this check.
            self._say('Cannot find accelerator requests of deleted servers: '
                      + exception.steady(error))
        else:
            for orphan in orphans.lasting(before, self._gone):
                self._finish(self._cloud, orphan)
        self._looked = self._clock()

    def _finish(self, cloud, orphan):
        try:
            orphans_clean.remove(cloud, orphan)
        except Exception as error:
            self._say(f'Accelerator request {orphan.subject} of deleted '
                      f'server {orphan.server} cannot be deleted: '
                      + exception.steady(error))
        else:
            LOG.info('Deleted accelerator request %(arq)s of server '
                     '%(server)s, which no longer exists',
                     {'arq': orphan.subject, 'server': orphan.server})

    def _say(self, message):
        if self._said.is_new(message, about=message):
            LOG.warning('%s', message)


def gone(cloud: connection.Cloud, host: str) -> tuple[orphans.Orphan, ...]:
    """Return the bound requests of a host whose servers are gone now.

    Nova is asked only about servers without an allocation.

    :param host: the compute node as Cyborg and Placement name it.
    :raises CloudError: if a request to a service fails, or Nova does not know
        the host: this Nova may belong to another region.
    """
    bound = {arq.uuid: arq for arq in records.arqs(cloud)
             if arq.host == host and arq.state == _BOUND and arq.server}
    servers = {arq.server for arq in bound.values() if arq.server}
    left = {server for server in servers if not _has_allocation(cloud, server)}
    if not left:
        return ()
    _check_nova(cloud, host)
    left -= set(computes.known_servers(cloud, left))
    left -= computes.migrations(cloud, left)
    return tuple(orphans.Orphan(
        orphans.Kind.REQUEST_OF_GONE, arq.uuid, host,
        f'request for {arq.profile} is {arq.state} for server {arq.server}, '
        'which no longer exists', '', arq.server, arq.profile, True)
        for arq in bound.values() if arq.server in left)


def _has_allocation(cloud, server):
    answer = cloud.ask('placement', f'/allocations/{server}',
                       placement_api.VERSION)
    with responses.understanding(cloud, 'Placement', 'an allocation'):
        return bool(answer['allocations'])


def _check_nova(cloud, host):
    roots = {item['uuid'] for item in placement_api.listed(cloud, name=host)}
    if not roots & computes.services(cloud).keys():
        raise cloud.error(f'Nova has no compute node {host}; check that it is '
                          'the Nova of this region')
