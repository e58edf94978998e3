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

"""Read flavors, servers, compute services and limits from Nova."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from urllib import parse

from oslo_utils import uuidutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cloud import request as cloud_request
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.cloud import state as cloud_state
from cyborg_gpu_driver.host.snapshot import model

_MIB_PER_GIB = 1024
_QUOTAS = {'instances': None, 'cores': 'VCPU', 'ram': 'MEMORY_MB'}
"""Nova's own quotas, with the resource class that each counts."""
_FEW = 10
"""Up to this number, servers are requested one by one."""
_CLASS = 'class:'
_SERVERS = 'servers'
"""The unified limit for the number of instances."""
_MDEV = 'MDEV'


def flavor(cloud: connection.Cloud, name: str) -> cloud_request.Flavor:
    """Return a flavor by name or ID.

    :raises CloudError: if a request to Nova fails.
    :raises InvalidValue: if there is none.
    """
    answer: Any = cloud.ask(
        'compute', f'/flavors/{parse.quote(name, safe="")}', connection.NOVA)
    with connection.understanding(cloud, 'Nova', 'a flavor'):
        if answer is not None:
            item = answer['flavor']
        else:
            listed = connection.pages(cloud, '/flavors/detail', 'flavors',
                                      is_public='None')
            item = next((found for found in listed
                         if found['name'] == name), None)
            if item is None:
                raise exception.InvalidValue(
                    what='flavor', value=name,
                    expected='expected the name or ID of a flavor'
                    + cloud_request.similar(name, (found['name']
                                                   for found in listed)))
        made = _flavor(item, item['name'])
        if made.public:
            return made
        access = cloud.ask(
            'compute', f'/flavors/{item["id"]}/os-flavor-access',
            connection.NOVA)
        return _flavor(item, item['name'], frozenset(
            entry['tenant_id'] for entry in access['flavor_access']))


def server(cloud: connection.Cloud, name: str
           ) -> tuple[facts.Server, cloud_request.Flavor]:
    """Return a server of any project by name or UUID, and its flavor.

    :raises CloudError: if there is none, or a request to Nova fails.
    """
    uuid = find_server(cloud, name)
    answer: Any = cloud.ask('compute', f'/servers/{uuid}', connection.NOVA)
    if answer is None:
        raise cloud.error(f'there is no server {uuid}')
    with connection.understanding(cloud, 'Nova', 'a server'):
        item = answer['server']
        return _server(item), _flavor(
            item['flavor'], item['flavor']['original_name'])


def known_servers(cloud: connection.Cloud, uuids: Collection[str],
                  hosts: Collection[str] | None = None
                  ) -> dict[str, facts.Server]:
    """Return the consumers that are servers, of any project.

    A few consumers are requested one by one. For more, Nova lists all servers
    of the hosts, a thousand per request, and only consumers that are missing
    from the list are requested one by one. The list lacks the servers of a
    cell that is down.

    :param uuids: of the consumers.
    :param hosts: of nova-compute, on which most of the servers run; None for
        the whole cloud.
    :raises CloudError: if a request to Nova fails.
    """
    def ask(uuid):
        answer = cloud.ask('compute', f'/servers/{uuid}', connection.NOVA)
        with connection.understanding(cloud, 'Nova', 'a server'):
            return uuid, answer and _server(answer['server'])

    where = [{}] if hosts is None else [{'host': host} for host in hosts]
    found = {}
    if len(uuids) > max(_FEW, len(where)):
        for listed in placement.at_once(
                lambda place: _listed(cloud, uuids, place), where):
            found.update(listed)
    found.update(placement.at_once(ask, sorted(set(uuids) - set(found))))
    return {uuid: server for uuid, server in found.items()
            if server is not None}


def _listed(cloud, uuids, place):
    """The requested servers that are in Nova's list."""
    with connection.understanding(cloud, 'Nova', 'a server'):
        return {item['id']: _server(item) for item in connection.each(
            cloud, '/servers/detail', 'servers', all_tenants='true',
            **place) if item['id'] in uuids}


def migrations(cloud: connection.Cloud, uuids: Iterable[str]
               ) -> frozenset[str]:
    """Return the consumers that are migrations.

    During a migration, the migration holds the allocations on the source.

    :raises CloudError: if a request to Nova fails.
    """
    wanted = set(uuids)
    found: set[str] = set()
    marker: dict[str, str] = {}
    while wanted - found:
        answer = cloud.ask('compute', '/os-migrations', connection.NOVA,
                           **marker)
        with connection.understanding(cloud, 'Nova', 'a migration'):
            page = [item['uuid'] for item in answer['migrations']]
            found |= wanted & set(page)
            if not page or 'migrations_links' not in answer:
                break
            marker = {'marker': page[-1]}
    return frozenset(found)


def services_by_host(cloud: connection.Cloud) -> dict[str, facts.Service]:
    """Return the nova-compute services by their host, as Nova names it.

    :raises CloudError: if a request to Nova fails.
    """
    answer: Any = cloud.ask('compute', '/os-services', connection.NOVA,
                            binary='nova-compute')
    with connection.understanding(cloud, 'Nova', 'the compute services'):
        return {item['host']: facts.Service(
            item['host'], item['zone'], item['status'] == 'enabled',
            item['state'] == 'up', item.get('disabled_reason') or '')
            for item in answer['services']}


def services(cloud: connection.Cloud) -> dict[str, facts.Service]:
    """Return the nova-compute services by UUID of the compute node's provider.

    :raises CloudError: if a request to Nova fails.
    """
    by_host = services_by_host(cloud)
    with connection.understanding(cloud, 'Nova', 'the compute nodes'):
        return {node['id']: by_host[node['service']['host']]
                for node in connection.pages(
                    cloud, '/os-hypervisors/detail', 'hypervisors')
                if node['service']['host'] in by_host}


def aggregates(cloud: connection.Cloud) -> tuple[facts.Aggregate, ...]:
    """Return the host aggregates.

    :raises CloudError: if a request to Nova fails.
    """
    answer: Any = cloud.ask('compute', '/os-aggregates', connection.NOVA)
    with connection.understanding(cloud, 'Nova', 'the aggregates'):
        return tuple(facts.Aggregate(
            item['name'], frozenset(item['hosts']), dict(item['metadata']))
            for item in answer['aggregates'])


def quotas(cloud: connection.Cloud, owner: str, wanted: cloud_request.Request
           ) -> tuple[facts.Limit, ...]:
    """Return Nova's quotas of a project: instances, cores, ram.

    With unified limits Nova shows 0 for a resource that has no limit in
    Keystone (``get_legacy_project_limits`` in nova/limit/placement.py).
    ``[quota] unified_limits_resource_list`` decides whether Nova enforces that
    0, and no API shows this option. So such a 0 is left out.

    :raises CloudError: if a request to Nova or Keystone fails.
    """
    answer: Any = cloud.ask(
        'compute', f'/os-quota-sets/{owner}/detail', connection.NOVA)
    with connection.understanding(cloud, 'Nova', 'the quotas'):
        found = tuple(
            facts.Limit(name, item['limit'], item['in_use']
                        + item['reserved'],
                        wanted.totals.get(counted, 0) if counted else 1)
            for name, counted in _QUOTAS.items()
            for item in [answer['quota_set'][name]]
            if wanted.flavor is not None)
    if all(limit.limit for limit in found):
        return found
    unified = _unified(cloud, owner)
    if not unified:
        return found
    return tuple(limit for limit in found
                 if limit.limit or _unified_name(limit.name) in unified)


def unified_limits(cloud: connection.Cloud, owner: str,
                   wanted: cloud_request.Request) -> tuple[facts.Limit, ...]:
    """Return Keystone's limits of a project for resource classes.

    With the unified ``[quota] driver``, Nova also counts the resources of a
    device profile. With other drivers, operators register no such limits.

    :raises CloudError: if a request to Keystone or Placement fails.
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


def _unified(cloud, owner):
    """A project's limits for Nova in Keystone, by resource name."""
    found = [existing.item for existing
             in cloud_state.limits_of_region(cloud, project_id=owner)]
    return {
        **{item.name: item.default for item in found
           if isinstance(item, resources.RegisteredLimit)},
        **{item.resource: item.value for item in found
           if isinstance(item, resources.Limit) and item.project == owner}}


def _unified_name(quota):
    """The unified limit that Nova shows as one of its own quotas."""
    counted = _QUOTAS[quota]
    return _SERVERS if counted is None else _CLASS + counted


def _flavor(item, name, projects=frozenset()):
    swap = int(item['swap'] or 0)
    return cloud_request.Flavor(
        name, item['vcpus'], item['ram'], item['disk']
        + item.get('OS-FLV-EXT-DATA:ephemeral', item.get('ephemeral', 0))
        + -(-swap // _MIB_PER_GIB), dict(item['extra_specs']),
        item.get('os-flavor-access:is_public', True),
        item.get('OS-FLV-DISABLED:disabled', False), projects)


def _server(item):
    fault = item.get('fault') or {}
    host = item.get('OS-EXT-SRV-ATTR:hypervisor_hostname')
    return facts.Server(
        item['id'], item['name'], item['status'], item['tenant_id'], host,
        # Once a server has a host, Nova shows the zone of the host, even if
        # no zone was requested.
        None if host else item.get('OS-EXT-AZ:availability_zone') or None,
        fault.get('message', ''))


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """An accelerator request of a server, and its location.

    Unknown values are None, for example if the request is not bound.

    :ivar state: in Cyborg: ``Bound``, ``BindFailed``...
    :ivar device_profile: for which the request was created.
    :ivar provider: of the GPU's profile.
    :ivar handle: what the server gets: an mdev's UUID, or the address of a
        PCI function.
    :ivar function: PCI address of the function that carries the handle: the
        GPU or a virtual function of it.
    """

    arq: str
    state: str
    device_profile: str
    host: str | None
    provider: placement.Profile | None
    handle_type: str | None
    handle: str | None
    function: str | None


def find_server(cloud: connection.Cloud, server: str) -> str:
    """Return a server's UUID.

    :param server: UUID or name.
    :raises CloudError: if there is no such server, or several.
    """
    if uuidutils.is_uuid_like(server):
        return server
    # Nova interprets the name as a regular expression.
    listed = connection.pages(cloud, '/servers', 'servers',
                              all_tenants='true', name=server)
    with connection.understanding(cloud, 'Nova', 'a server'):
        found = [item['id'] for item in listed if item['name'] == server]
    if len(found) == 1:
        return found[0]
    raise cloud.error(
        f'{len(found)} servers are named {server}; give the UUID of one'
        if found else f'there is no server named {server}')


def accelerators(cloud: connection.Cloud, server: str
                 ) -> tuple[Accelerator, ...]:
    """Return the accelerators of a server.

    :param server: its UUID.
    :raises CloudError: if it has none, or a request to a service fails.
    """
    requests = cloud.get('/accelerator_requests', 'arqs', instance=server)
    if not requests:
        raise cloud.error('Cyborg has no accelerator request for server '
                          + server)
    with connection.understanding(cloud, 'Cyborg', 'an accelerator request'):
        known = placement.gpu_profiles(cloud, {
            request['device_rp_uuid'] for request in requests} - {None, ''})
        return build_accelerators(requests, known)


def build_accelerators(requests: Iterable[Mapping[str, Any]],
                       known: Mapping[str, placement.Profile]
          ) -> tuple[Accelerator, ...]:
    """Return accelerators from requests as Cyborg's API shows them.

    :param known: providers by UUID.
    :raises KeyError, TypeError, AttributeError, InvalidValue: if a request is
        malformed.
    """
    return tuple(_accelerator(request, known.get(request['device_rp_uuid']))
                 for request in sorted(requests, key=lambda one: one['uuid']))


def _accelerator(request, provider):
    info = request['attach_handle_info']
    function = None if not info else str(model.PciAddress.parse(
        '{domain}:{bus}:{device}.{function}'.format(**info)))
    kind = request['attach_handle_type'] or None
    return Accelerator(
        request['uuid'], request['state'], request['device_profile_name'],
        request['hostname'], provider, kind,
        request['attach_handle_uuid'] if kind == _MDEV else function,
        function)
