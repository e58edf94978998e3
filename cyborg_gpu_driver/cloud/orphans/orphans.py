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
"""Find what deleted servers have left in a cloud. Pure.

Cyborg 17 can lose track in several ways. A bind that fails keeps its request
and its attach handle. A bind whose server is deleted meanwhile keeps them
permanently. A request also blocks the deletion of its device profile. No API
shows attach handles by themselves, nor the age of a request.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg_gpu_driver.cloud.explain import facts

_BOUND = 'Bound'
_INITIAL = 'Initial'


class Kind(enum.Enum):
    """The kind of an orphan; the value is the machine-readable name."""

    REQUEST_OF_GONE = 'request-of-gone-server'
    """An accelerator request names a server that does not exist."""
    REQUEST_OF_NOBODY = 'request-of-nobody'
    """An accelerator request names no server."""
    REQUEST_FAILED = 'request-failed'
    """A server's request is not bound, and may hold an attach handle."""
    ALLOCATION_OF_GONE = 'allocation-of-gone-server'
    """A GPU is allocated to a consumer that is no server or migration."""
    ALLOCATION_OF_MIGRATION = 'allocation-of-migration'
    """A GPU is allocated to a migration."""
    ALLOCATION_ELSEWHERE = 'allocation-elsewhere'
    """A server has a GPU allocated on a host where it is not."""
    ALLOCATION_WITHOUT_REQUEST = 'allocation-without-request'
    """A server has a GPU allocated, but no accelerator request for it."""
    STALE_PROVIDER = 'stale-provider'
    """Placement has a provider that Cyborg does not know."""


@dataclasses.dataclass(frozen=True)
class Orphan:
    """One leftover of a server.

    :ivar subject: UUID of the request, the consumer or the provider.
    :ivar where: host, or provider.
    :ivar server: UUID of the server, if the leftover names one.
    :ivar pins: the device profile that it keeps from being deleted.
    :ivar safe: whether it can be removed without a risk for any server.
    """

    kind: Kind
    subject: str
    where: str
    text: str
    remedy: str
    server: str | None = None
    pins: str = ''
    safe: bool = False


@dataclasses.dataclass(frozen=True)
class Accounts:
    """The records of the services.

    :ivar servers: the existing servers, among all consumers and requests.
    :ivar migrations: the other consumers that are migrations.
    """

    trees: tuple[facts.Tree, ...]
    deployables: Mapping[str, int]
    arqs: tuple[facts.Arq, ...]
    servers: Mapping[str, facts.Server]
    migrations: frozenset[str] = frozenset()


def find(known: Accounts) -> tuple[Orphan, ...]:
    """Return all orphans."""
    return (*_requests(known), *_allocations(known), *_providers(known))


def lasting(before: Iterable[Orphan], now: Iterable[Orphan]
            ) -> tuple[Orphan, ...]:
    """Return the orphans that existed before, too.

    For those, no bind or delete is under way.
    """
    there = {(item.kind, item.subject, item.where) for item in before}
    return tuple(item for item in now
                 if (item.kind, item.subject, item.where) in there)


def consumers(trees: Iterable[facts.Tree]) -> set[str]:
    """Return the consumers that hold any part of an accelerator."""
    return {consumer for tree in trees for node in tree.below
            if node.of_cyborg for consumer in node.holders}


def doubtful(trees: Iterable[facts.Tree], servers: Mapping[str, facts.Server]
             ) -> set[str]:
    """Return the UUIDs of providers with a holder that is no server there.

    Their holders may come from accelerator requests, which remain when an
    allocation is lost.
    """
    return {
        node.uuid for tree in trees for node in tree.below
        if any(consumer not in servers
               or servers[consumer].host not in (None, tree.name)
               for consumer in node.holders)}


def _requests(known) -> Iterator[Orphan]:
    for arq in known.arqs:
        where = arq.host or '-'
        if arq.server is None:
            yield Orphan(
                Kind.REQUEST_OF_NOBODY, arq.uuid, where,
                f'request for {arq.profile} is {arq.state} and has no server',
                'openstack gpu orphan clean', None, arq.profile,
                True)
        elif arq.server not in known.servers:
            yield Orphan(
                Kind.REQUEST_OF_GONE, arq.uuid, where,
                f'request for {arq.profile} is {arq.state} for server '
                f'{arq.server}, which no longer exists',
                'openstack gpu orphan clean',
                arq.server, arq.profile, True)
        elif arq.state not in (_BOUND, _INITIAL):
            yield Orphan(
                Kind.REQUEST_FAILED, arq.uuid, where,
                f'request for {arq.profile} of server '
                f'{known.servers[arq.server].name} is {arq.state}',
                'delete or rebuild the server; Nova then deletes its requests',
                arq.server, arq.profile)


def _allocations(known) -> Iterator[Orphan]:
    bound = {(arq.server, arq.provider) for arq in known.arqs}
    for tree in known.trees:
        for node in tree.below:
            for consumer in sorted(node.holders) if node.of_cyborg else ():
                yield from _allocation(consumer, node, tree, bound, known)


def _allocation(consumer, node, tree, bound, known):
    where = f'{tree.name}: {node.title}'
    server = known.servers.get(consumer)
    if consumer in known.migrations:
        yield Orphan(
            Kind.ALLOCATION_OF_MIGRATION, consumer, where,
            f'migration {consumer} has {node.title}: servers with '
            'accelerators cannot migrate',
            'see "openstack server migration list"; confirm or revert it')
    elif server is None:
        yield Orphan(
            Kind.ALLOCATION_OF_GONE, consumer, where,
            f'{node.title} is allocated to {consumer}, which is neither a '
            'server nor a migration', 'openstack gpu orphan clean',
            consumer, safe=True)
    elif server.host and server.host != tree.name:
        yield Orphan(
            Kind.ALLOCATION_ELSEWHERE, consumer, where,
            f'server {server.name} is on {server.host}, but has {node.title} '
            f'on {tree.name}',
            'if the server was evacuated, start nova-compute on the old host; '
            'if it is in REBUILD/rebuilding, start cyborg-agent and '
            'nova-compute there and delete the server; otherwise run '
            'nova-manage placement audit', consumer)
    elif server.host and (consumer, node.uuid) not in bound:
        yield Orphan(
            Kind.ALLOCATION_WITHOUT_REQUEST, consumer, where,
            f'server {server.name} has {node.title} allocated, but no '
            'accelerator request for it, so it has no GPU',
            'delete or rebuild the server; a flavor with resources:... '
            'instead of a device profile also causes this', consumer)


def _providers(known):
    for tree in known.trees:
        for node in tree.below:
            if node.place and node.of_cyborg and (
                    node.uuid not in known.deployables):
                used = (' and a server has an allocation of it, which must be '
                        'removed first' if node.holders else '')
                yield Orphan(
                    Kind.STALE_PROVIDER, node.uuid, tree.name,
                    f'provider {node.name} is not known to Cyborg{used}',
                    'if cyborg-agent on the host has reported: run openstack '
                    f'resource provider delete {node.uuid}, and restart '
                    'nova-compute there, because it caches its providers')
