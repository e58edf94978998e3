# SPDX-License-Identifier: Apache-2.0

"""Read flavors, servers, compute services and limits from Nova."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any

from openstack import exceptions
from oslo_utils import uuidutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cloud import request as cloud_request
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.cloud import state as cloud_state

_MIB_PER_GIB = 1024
_QUOTAS = {'instances': None, 'cores': 'VCPU', 'ram': 'MEMORY_MB'}
"""Nova's own quotas, with the resource class that each counts."""
_FEW = 10
"""Up to this number, servers are requested one by one."""
_CLASS = 'class:'
_UNIFIED = {'instances': 'servers', 'cores': 'class:VCPU',
            'ram': 'class:MEMORY_MB'}
"""The unified limit that Nova shows as each of them."""


def flavor(cloud: connection.Cloud, name: str) -> cloud_request.Flavor:
    """Return a flavor by name or ID."""
    compute = cloud.sdk.compute
    item = compute.find_flavor(name)
    if item is None:
        raise exception.InvalidValue(
            what='flavor', value=name,
            expected='expected the name or ID of a flavor'
            + cloud_request.similar(name, (found.name for found
                                           in compute.flavors())))
    made = _flavor(item)
    if made.public:
        return made
    return dataclasses.replace(made, projects=frozenset(
        entry['tenant_id'] for entry in compute.get_flavor_access(item)))


def server(cloud: connection.Cloud, name: str
           ) -> tuple[facts.Server, cloud_request.Flavor]:
    """Return a server of any project by name or UUID, and its flavor."""
    item = cloud.sdk.compute.find_server(name, ignore_missing=False,
                                         all_projects=True)
    return _server(item), _flavor(item.flavor)


def find_server(cloud: connection.Cloud, name: str) -> str:
    """Return the UUID of a server that the user may see."""
    if uuidutils.is_uuid_like(name):
        return name
    return cloud.sdk.compute.find_server(
        name, ignore_missing=False, details=False,
        all_projects=cloud.has_role()).id


def known_servers(cloud: connection.Cloud, uuids: Collection[str],
                  hosts: Collection[str] | None = None
                  ) -> dict[str, facts.Server]:
    """Return the consumers that are servers, of any project.

    A few consumers are requested one by one. For more, Nova lists all servers
    of the hosts, a thousand per request, and only consumers that are missing
    from the list are requested one by one.

    :param uuids: of the consumers.
    :param hosts: of nova-compute, on which most of the servers run; None for
        the whole cloud.
    """
    def listed(place: dict[str, str]) -> dict[str, facts.Server]:
        return {item.id: _server(item) for item in cloud.sdk.compute.servers(
            all_projects=True, **place) if item.id in uuids}

    where = [{}] if hosts is None else [
        {'compute_host': host} for host in hosts]
    found: dict[str, facts.Server] = {}
    if len(uuids) > max(_FEW, len(where)):
        for some in placement.at_once(listed, where):
            found.update(some)
    others = placement.at_once(
        lambda uuid: existing_server(cloud, uuid), sorted({*uuids} - {*found}))
    found.update((item.id, _server(item)) for item in others
                 if item is not None)
    return found


def existing_server(cloud: connection.Cloud, uuid: str) -> Any:
    """Return openstacksdk's server; None if it does not exist."""
    try:
        return cloud.sdk.compute.get_server(uuid)
    except exceptions.NotFoundException:
        return None


def migrations(cloud: connection.Cloud, uuids: Iterable[str]
               ) -> frozenset[str]:
    """Return the consumers that are migrations.

    During a migration, the migration holds the allocations on the source.
    """
    wanted = set(uuids)
    found: set[str] = set()
    listed = cloud.sdk.compute.migrations() if wanted else ()
    for item in listed:
        found |= wanted & {item.uuid}
        if found == wanted:
            break
    return frozenset(found)


def services_by_host(cloud: connection.Cloud) -> dict[str, facts.Service]:
    """Return the nova-compute services by their host, as Nova names it."""
    return {item.host: facts.Service(
        item.host, item.availability_zone or '', item.status == 'enabled',
        item.state == 'up', item.disabled_reason or '')
        for item in cloud.sdk.compute.services(binary='nova-compute')}


def services(cloud: connection.Cloud) -> dict[str, facts.Service]:
    """Return the nova-compute services by UUID of the compute node's provider.
    """
    by_host = services_by_host(cloud)
    return {node.id: by_host[node.service_details['host']]
            for node in cloud.sdk.compute.hypervisors(details=True)
            if node.service_details['host'] in by_host}


def quotas(cloud: connection.Cloud, owner: str,
           wanted: cloud_request.Request) -> tuple[facts.Limit, ...]:
    """Return Nova's quotas of a project: instances, cores, ram.

    With unified limits Nova shows 0 for a resource that has no limit in
    Keystone (``get_legacy_project_limits`` in nova/limit/placement.py).
    ``[quota] unified_limits_resource_list`` decides whether Nova enforces that
    0, and no API shows this option. So such a 0 is left out.
    """
    if wanted.flavor is None:
        return ()
    quota = cloud.sdk.compute.get_quota_set(owner, usage=True)
    found = tuple(
        facts.Limit(name, getattr(quota, name),
                    quota.usage[name] + quota.reservation[name],
                    wanted.totals.get(counted, 0) if counted else 1)
        for name, counted in _QUOTAS.items())
    if all(limit.limit for limit in found):
        return found
    unified = _unified(cloud, owner)
    if not unified:
        return found
    return tuple(limit for limit in found
                 if limit.limit or _UNIFIED[limit.name] in unified)


def unified_limits(cloud: connection.Cloud, owner: str,
                   wanted: cloud_request.Request) -> tuple[facts.Limit, ...]:
    """Return Keystone's limits of a project for resource classes.

    With the unified ``[quota] driver``, Nova also counts the resources of a
    device profile. With other drivers, operators register no such limits.
    """
    limits = _unified(cloud, owner)
    mine = {name: limits[_CLASS + name] for name in wanted.totals
            if _CLASS + name in limits}
    if not mine:
        return ()
    used = cloud_state.usages(cloud, owner)
    return tuple(
        facts.Limit(_CLASS + name, limit, used.get(name, 0),
                    wanted.totals[name])
        for name, limit in sorted(mine.items()))


def _unified(cloud: connection.Cloud, owner: str) -> dict[str, int]:
    """A project's limits for Nova in Keystone, by resource name."""
    found = [existing.item for existing
             in cloud_state.limits(cloud, project_id=owner)]
    return {
        **{item.name: item.default for item in found
           if isinstance(item, resources.RegisteredLimit)},
        **{item.resource: item.value for item in found
           if isinstance(item, resources.Limit) and item.project == owner}}


def _flavor(item: Any) -> cloud_request.Flavor:
    """Return a flavor."""
    return cloud_request.Flavor(
        item.name, item.vcpus, item.ram, item.disk + (item.ephemeral or 0)
        + -(-(item.swap or 0) // _MIB_PER_GIB), dict(item.extra_specs),
        item.is_public, bool(item.is_disabled))


def _server(item: Any) -> facts.Server:
    host = item.hypervisor_hostname
    return facts.Server(
        item.id, item.name or item.id, item.status, item.project_id or '',
        host,
        # Once a server has a host, Nova shows the zone of the host, even if
        # no zone was requested.
        None if host else item.availability_zone or None,
        (item.fault or {}).get('message', ''))


def accelerators(cloud: connection.Cloud, server: str
                 ) -> list[tuple[cyborg.AcceleratorRequest,
                                 facts.Node | None]]:
    """Return the accelerator requests of a server, each with its provider.

    The provider is None if the request is not bound, or if Placement does not
    tell the user, who is no administrator.
    """
    found = cyborg.requests(cloud, instance_uuid=server)
    if not found:
        raise cloud.error('Cyborg has no accelerator request for server '
                          + server)
    known = placement.gpu_profiles(cloud, {
        one.device_rp_uuid for one in found} - {None, ''}
    ) if cloud.has_role() else {}
    return [(one, known.get(one.device_rp_uuid))
            for one in sorted(found, key=lambda one: one.uuid)]
