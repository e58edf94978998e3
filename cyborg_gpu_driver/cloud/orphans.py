# SPDX-License-Identifier: Apache-2.0

"""Find and remove leftovers of deleted servers in a cloud.

Cyborg 17 can lose track in several ways. A bind that fails keeps its request
and its attach handle. A bind whose server is deleted meanwhile keeps them
permanently. A request also blocks the deletion of its device profile. No API
shows attach handles by themselves, nor the age of a request.

If a server is deleted while the agent is down, cyborg-api asks the agent to
unbind, gets no answer and leaves the request bound, although Nova has deleted
the server and its allocation. No service of the cloud ever repairs that.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.report.content import names

_BOUND = 'Bound'
_SERVICE = 'service'
"""The role that Cyborg requires for operations that are reserved to Nova."""
LOG = logging.getLogger(__name__)

_RARELY = 60.0
"""Minimum number of seconds between two checks."""


class Kind(enum.Enum):
    """The kind of an orphan; the value is the machine-readable name."""

    REQUEST_OF_GONE = 'request-of-gone-server'
    """An accelerator request names a server that does not exist."""
    REQUEST_OF_NOBODY = 'request-of-nobody'
    """An accelerator request names no server."""
    ALLOCATION_OF_GONE = 'allocation-of-gone-server'
    """A GPU is allocated to a consumer that is no server or migration."""
    STALE_PROVIDER = 'stale-provider'
    """Placement has a provider that Cyborg does not know."""
    WITHDRAWN_PROVIDER = 'withdrawn-provider'
    """A GPU does not offer any more what a provider stands for."""


_OF_PROVIDERS = Kind.STALE_PROVIDER, Kind.WITHDRAWN_PROVIDER


@dataclasses.dataclass(frozen=True)
class Orphan:
    """One leftover of a server, which can be removed without a risk.

    :ivar subject: UUID of the request, the consumer or the provider.
    :ivar where: host, or provider.
    :ivar server: UUID of the server, if the leftover names one.
    :ivar pins: the device profile that it keeps from being deleted.
    """

    kind: Kind
    subject: str
    where: str
    text: str
    server: str | None = None
    pins: str = ''


@dataclasses.dataclass(frozen=True)
class Accounts:
    """The records of the services.

    :ivar servers: of the existing servers, among all consumers and requests,
        the names by UUID.
    :ivar migrations: the other consumers that are migrations.
    """

    trees: tuple[facts.Tree, ...]
    deployables: Mapping[str, int]
    arqs: tuple[cyborg.AcceleratorRequest, ...]
    servers: Mapping[str, str]
    migrations: frozenset[str] = frozenset()


def find(known: Accounts, providers: bool = False) -> tuple[Orphan, ...]:
    """Return all orphans.

    :param providers: whether providers may be removed, so that nova-compute
        of their hosts has to be restarted.
    """
    return (*_requests(known), *_allocations(known),
            *(_providers(known) if providers else ()))


def to_restart(removed: Iterable[Orphan]) -> tuple[str, ...]:
    """Return the hosts whose nova-compute has removed providers in its cache.

    SIGHUP clears its cache only in releases that use eventlet. It ends the
    process of Nova 34 (oslo_service/backend/_threading/service.py,
    ProcessLauncher._reload_service).
    """
    return tuple(sorted({item.where for item in removed
                         if item.kind in _OF_PROVIDERS}))


def lasting(before: Iterable[Orphan], now: Iterable[Orphan]
            ) -> tuple[Orphan, ...]:
    """Return the orphans that existed before, too.

    For those, no bind or delete is under way.
    """
    there = {(item.kind, item.subject, item.where) for item in before}
    return tuple(item for item in now
                 if (item.kind, item.subject, item.where) in there)


def consumers_of(trees: Iterable[facts.Tree]) -> set[str]:
    """Return the consumers that hold any part of an accelerator."""
    return {consumer for tree in trees for node in tree.below
            if node.of_cyborg for consumer in node.holders}


def doubtful(trees: Iterable[facts.Tree], servers: Mapping[str, str]
             ) -> set[str]:
    """Return the UUIDs of providers with a holder that is no server.

    Their holders may come from accelerator requests, which remain when an
    allocation is lost.
    """
    return {
        node.uuid for tree in trees for node in tree.below
        if node.holders.keys() - servers.keys()}


def _requests(known: Accounts) -> Iterator[Orphan]:
    for arq in known.arqs:
        where, profile = arq.hostname or '-', arq.device_profile_name
        if arq.instance_uuid is None:
            yield Orphan(
                Kind.REQUEST_OF_NOBODY, arq.uuid, where,
                f'request for {profile} is {arq.state} and has no server',
                None, profile)
        elif arq.instance_uuid not in known.servers:
            yield _of_gone(arq)


def _of_gone(arq: cyborg.AcceleratorRequest) -> Orphan:
    return Orphan(
        Kind.REQUEST_OF_GONE, arq.uuid, arq.hostname or '-',
        f'request for {arq.device_profile_name} is {arq.state} for server '
        f'{arq.instance_uuid}, which no longer exists', arq.instance_uuid,
        arq.device_profile_name)


def _allocations(known: Accounts) -> Iterator[Orphan]:
    for tree in known.trees:
        for node in tree.below:
            for consumer in sorted(node.holders) if node.of_cyborg else ():
                if (consumer not in known.servers
                        and consumer not in known.migrations):
                    yield Orphan(
                        Kind.ALLOCATION_OF_GONE, consumer,
                        f'{tree.name}: {node.title}',
                        f'{node.title} is allocated to {consumer}, which is '
                        'neither a server nor a migration', consumer)


def _providers(known: Accounts) -> Iterator[Orphan]:
    for tree in known.trees:
        for node in tree.below:
            withdrawn = names.WITHDRAWN in node.traits
            if (node.holders or not node.of_cyborg
                    or not (node.place or withdrawn)):
                continue
            if node.uuid not in known.deployables:
                yield Orphan(
                    Kind.STALE_PROVIDER, node.uuid, tree.name,
                    f'provider {node.name} is not known to Cyborg; see that '
                    'cyborg-agent on the host has reported')
            elif withdrawn:
                yield Orphan(
                    Kind.WITHDRAWN_PROVIDER, node.uuid, tree.name,
                    f'{node.title} is not offered any more')


def read(cloud: connection.Cloud,
         progress: placement.Progress = lambda done, total: None
         ) -> Accounts:
    """Return the current records of all services.

    Allocations and accelerator requests are read before the servers, so that
    those of a server that is created meanwhile do not count as orphans.

    :raises CloudError: if a request to a service fails, or if Nova belongs to
        another region than the others. Orphans are unknown then.
    """
    arqs = tuple(cyborg.requests(cloud))
    hosts = placement.accelerator_trees(cloud, arqs, progress)
    if hosts or any(arq.instance_uuid for arq in arqs):
        _check_nova(cloud, {tree.root.uuid: tree.name for tree in hosts})
    servers = nova.known_servers(
        cloud, consumers_of(hosts) | {
            arq.instance_uuid for arq in arqs if arq.instance_uuid})
    hosts = placement.with_holders(
        cloud, hosts, doubtful(hosts, servers))
    consumers = consumers_of(hosts)
    servers.update(nova.known_servers(cloud, consumers - set(servers)))
    return Accounts(
        hosts, cyborg.deployables(cloud), arqs, servers,
        nova.migrations(cloud, consumers - set(servers)))


def remove(cloud: connection.Cloud, orphan: Orphan) -> None:
    """Remove an orphan, unless it has changed.

    :raises ChangeRefused: if the orphan has changed, or if the user may not
        remove it.
    """
    if orphan.kind is Kind.ALLOCATION_OF_GONE:
        _remove_allocation(cloud, orphan)
    elif orphan.kind in _OF_PROVIDERS:
        _remove_provider(cloud, orphan)
    else:
        _remove_request(cloud, orphan)


def _check_nova(cloud: connection.Cloud, hosts: Mapping[str, str]) -> None:
    """Make sure that Nova belongs to the same region as the other services.

    Nova of another region would know none of the servers.

    :param hosts: names of compute nodes by the UUIDs of their providers.
    """
    if not hosts.keys() & nova.services(cloud).keys():
        raise cloud.error(
            'Nova has none of the compute nodes that have accelerators in '
            f'Placement ({", ".join(hosts.values()) or "none"}); check that '
            'it is the Nova of this region')


def _remove_request(cloud: connection.Cloud, orphan: Orphan) -> None:
    arq = next((item for item in cyborg.requests(cloud)
                if item.uuid == orphan.subject), None)
    if arq is None:
        return
    if arq.instance_uuid != orphan.server:
        raise _kept(orphan, f'server {arq.instance_uuid} uses it now')
    if arq.instance_uuid is None:
        cloud.change('accelerator', 'DELETE',
                     f'/accelerator_requests?arqs={arq.uuid}')
        return
    _check_gone(cloud, orphan)
    if not cloud.has_role(_SERVICE):
        raise _kept(orphan, (
            'Cyborg lets only services delete requests of servers. This user '
            f'lacks the role {_SERVICE}; use one with the roles admin and '
            f'{_SERVICE}'))
    cloud.change('accelerator', 'DELETE',
                 f'/accelerator_requests?arqs={arq.uuid}', as_service=True)


def _remove_allocation(cloud: connection.Cloud, orphan: Orphan) -> None:
    path = f'/allocations/{orphan.subject}'
    answer = cloud.ask('placement', path)
    if not answer['allocations']:
        return
    body = {'allocations': {}, **{key: answer[key] for key in (
        'consumer_generation', 'project_id', 'user_id')}}
    _check_gone(cloud, orphan)
    held = [arq.uuid for arq in cyborg.requests(cloud)
            if arq.instance_uuid == orphan.subject]
    if held:
        # Otherwise Placement would allocate what Cyborg cannot bind.
        raise _kept(orphan, f'accelerator request {held[0]} must be deleted '
                    'first')
    # The generation makes this fail if the allocation has changed since.
    cloud.change('placement', 'PUT', path, body)


def _remove_provider(cloud: connection.Cloud, orphan: Orphan) -> None:
    path = f'/resource_providers/{orphan.subject}'
    answer = cloud.ask('placement', f'{path}/traits')
    if answer is None:
        return
    if orphan.kind is Kind.WITHDRAWN_PROVIDER and (
            names.WITHDRAWN not in answer['traits']):
        raise _kept(orphan, 'the GPU offers it again')
    # Placement refuses this while the provider has allocations.
    cloud.change('placement', 'DELETE', path)


def _check_gone(cloud: connection.Cloud, orphan: Orphan) -> None:
    named = {orphan.server or orphan.subject}
    if (nova.known_servers(cloud, named)
            or nova.migrations(cloud, named)):
        raise _kept(orphan, f'{orphan.server} exists')


def _kept(orphan: Orphan, reason: str) -> exception.ChangeRefused:
    return exception.ChangeRefused(
        f'{orphan.kind.value} {orphan.subject} was not removed: {reason}')


class Finisher:
    """Deletes bound requests of one host whose servers are gone.

    A server is gone if two checks that are ``grace`` apart find neither a
    server nor a migration in Nova, and no allocation in Placement. If a
    service does not answer, no server counts as gone.

    :param connect: returns the cloud; if it is None, nothing is checked.
    :param grace: seconds between the checks.
    """

    def __init__(self, connect: Callable[[], connection.Cloud] | None,
                 host: str, grace: float,
                 clock: Callable[[], float] = time.monotonic):
        self._watch = connect and cyborg.Watch(
            connect, lambda cloud: gone(cloud, host),
            'Cannot find accelerator requests of deleted servers: %s')
        self._grace = max(grace, _RARELY)
        self._clock = clock
        self._looked: float | None = None
        self._gone: tuple[Orphan, ...] = ()
        self._said = log_once.LogOnce()

    def look(self) -> None:
        """Run a check if it is due, and delete what the last check found, too.

        Never raises.
        """
        if self._watch is None or (
                self._looked is not None
                and self._clock() - self._looked < self._grace):
            return
        before, self._gone = self._gone, self._watch.read() or ()
        for orphan in lasting(before, self._gone):
            self._finish(self._watch.connect(), orphan)
        self._looked = self._clock()

    def _finish(self, cloud: connection.Cloud, orphan: Orphan) -> None:
        try:
            with cloud.errors():
                remove(cloud, orphan)
        except Exception as error:
            message = (f'Accelerator request {orphan.subject} of deleted '
                       f'server {orphan.server} cannot be deleted: '
                       + exception.steady(error))
            if self._said.is_new(message, about=message):
                LOG.warning('%s', message)
        else:
            LOG.info('Deleted accelerator request %(arq)s of server '
                     '%(server)s, which no longer exists',
                     {'arq': orphan.subject, 'server': orphan.server})


def gone(cloud: connection.Cloud, host: str) -> tuple[Orphan, ...]:
    """Return the bound requests of a host whose servers are gone now.

    Nova is asked only about servers without an allocation.

    :param host: the compute node as Cyborg and Placement name it.
    :raises CloudError: if a request to a service fails, or Nova does not know
        the host: this Nova may belong to another region.
    """
    bound = [arq for arq in cyborg.requests(cloud)
             if arq.hostname == host and arq.state == _BOUND
             and arq.instance_uuid]
    left = {server for server in {arq.instance_uuid for arq in bound}
            if not cloud.ask('placement', f'/allocations/{server}')[
                'allocations']}
    if not left:
        return ()
    _check_nova(cloud, {item['uuid']: host for item
                        in placement.listed(cloud, name=host)})
    left -= set(nova.known_servers(cloud, left))
    left -= nova.migrations(cloud, left)
    return tuple(_of_gone(arq) for arq in bound if arq.instance_uuid in left)
