# SPDX-License-Identifier: Apache-2.0

"""Read flavors, servers and compute services from Nova."""

from __future__ import annotations

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

_MIB_PER_GIB = 1024
_FEW = 10
"""Up to this number, servers are requested one by one."""


def flavor(cloud: connection.Cloud, name: str) -> cloud_request.Flavor:
    """Return a flavor by name or ID."""
    item = cloud.sdk.compute.find_flavor(name)
    if item is None:
        raise exception.InvalidValue(
            what='flavor', value=name,
            expected='expected the name or ID of a flavor'
            + cloud_request.similar(name, (
                found.name for found in cloud.sdk.compute.flavors())))
    return _flavor(item)


def server(cloud: connection.Cloud, name: str
           ) -> tuple[facts.Server, cloud_request.Flavor]:
    """Return a server of any project by name or UUID, and its flavor."""
    item = cloud.sdk.compute.find_server(name, ignore_missing=False,
                                         all_projects=True)
    host = item.hypervisor_hostname
    return facts.Server(
        item.id, item.name or item.id, host,
        # Once a server has a host, Nova shows the zone of the host, even if
        # no zone was requested.
        None if host else item.availability_zone or None,
        (item.fault or {}).get('message', '')), _flavor(item.flavor)


def find_server(cloud: connection.Cloud, name: str) -> str:
    """Return the UUID of a server that the user may see."""
    if uuidutils.is_uuid_like(name):
        return name
    return cloud.sdk.compute.find_server(
        name, ignore_missing=False, details=False,
        all_projects=cloud.has_role()).id


def known_servers(cloud: connection.Cloud, uuids: Collection[str]
                  ) -> dict[str, str]:
    """Return the names of the consumers that are servers, of any project.

    A few consumers are requested one by one. For more, Nova lists all servers,
    a thousand per request, and only consumers that are missing from the list
    are requested one by one.

    :param uuids: of the consumers.
    """
    found = [] if len(uuids) <= _FEW else [
        item for item in cloud.sdk.compute.servers(all_projects=True)
        if item.id in uuids]
    others = placement.at_once(
        lambda uuid: existing_server(cloud, uuid),
        sorted({*uuids} - {item.id for item in found}))
    return {item.id: item.name or item.id for item in (*found, *others)
            if item is not None}


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


def _flavor(item: Any) -> cloud_request.Flavor:
    """Return a flavor."""
    return cloud_request.Flavor(
        item.name, item.vcpus, item.ram, item.disk + (item.ephemeral or 0)
        + -(-(item.swap or 0) // _MIB_PER_GIB), dict(item.extra_specs))


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
