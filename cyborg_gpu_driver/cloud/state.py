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

"""Read a cloud's device profiles, flavors and limits, and their users."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from urllib import parse

from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.profiles import definition
from cyborg_gpu_driver.cloud.profiles import plan
from cyborg_gpu_driver.cloud.profiles import resources
from cyborg_gpu_driver.record import codec

_USAGES = '1.9'
"""The first microversion of Placement's API with the usages of a project."""
_SHELVED = 'SHELVED_OFFLOADED'
_SHOWN = 5
"""The number of servers of a flavor to read: one is enough to keep the flavor.
"""

Present = dict[resources.Key, resources.Existing]
Users = Mapping[str, tuple[str, ...]]


def read(cloud: connection.Cloud, wanted: definition.Definition,
         everything: bool = False) -> Present:
    """Read the existing items of the wanted kinds, and their users.

    :param wanted: with its projects' UUIDs.
    :param everything: whether to read all kinds, to find items that are no
        longer wanted.
    :raises CloudError: if a request to a service fails.
    """
    kinds = {item.kind for item in wanted.items}
    keys = {item.key: item for item in wanted.items}
    found = profiles(cloud)
    if any(_may_go(existing, keys, everything) for existing in found):
        users = profile_users(cloud)
        found = [_used(existing, users.get(existing.item.name, ()))
                 for existing in found]
    if everything or resources.Kind.FLAVOR in kinds:
        found += used_flavors(cloud, keys, everything)
    if everything or resources.Kind.REGISTERED in kinds:
        found += limits_of_region(cloud)
    return {existing.item.key: existing for existing in found}


def projects(cloud: connection.Cloud, named: Collection[str]
             ) -> dict[str, str]:
    """Return the UUIDs of projects.

    :param named: names or UUIDs.
    :raises CloudError: if there is no such project, or several.
    """
    return {name: project(cloud, name) for name in sorted(named)}


def project(cloud: connection.Cloud, name: str) -> str:
    """Return the UUID of a project.

    :param name: its name or UUID.
    :raises CloudError: if there is no such project, or several.
    """
    answer = cloud.ask('identity', f'/projects/{parse.quote(name, safe="")}')
    with responses.understanding(cloud, 'Keystone', f'project {name}'):
        if answer is not None:
            return codec.decode(str, answer['project']['id'])
        found = [codec.decode(str, item['id']) for item in responses.complete(
            cloud, '/projects', 'projects', name=name)]
    if not found:
        raise cloud.error(f'there is no project {name}')
    if len(found) > 1:
        raise cloud.error(f'{len(found)} projects are named {name}; give the '
                          'UUID of one')
    return found[0]


def profiles(cloud: connection.Cloud) -> list[resources.Existing]:
    """Return Cyborg's device profiles, without their users."""
    listed = cloud.get('/device_profiles', 'device_profiles')
    with responses.understanding(cloud, 'Cyborg', 'a device profile'):
        return [_profile(item) for item in listed]


def profile_users(cloud: connection.Cloud) -> Users:
    """Return the current and future users of device profiles, by name.

    A server that is shelved and offloaded has no accelerator request, but
    when it is unshelved it uses the device profile that its flavor names.
    """
    users: dict[str, list[str]] = collections.defaultdict(list)
    requests = cloud.get('/accelerator_requests', 'arqs')
    with responses.understanding(cloud, 'Cyborg', 'an accelerator request'):
        for request in requests:
            server = request['instance_uuid']
            text = (f'server {server}' if server else
                    f'accelerator request {request["uuid"]} '
                    f'({request["state"]})')
            known = users[request['device_profile_name']]
            if text not in known:
                known.append(text)
    shelved = responses.pages(cloud, '/servers/detail', 'servers',
                              all_tenants='true', status=_SHELVED)
    with responses.understanding(cloud, 'Nova', 'a shelved server'):
        for server in shelved:
            name = server['flavor']['extra_specs'].get(resources.PROFILE_KEY)
            if name is not None:
                users[name].append(f'shelved server {server["id"]}')
    return {name: tuple(texts) for name, texts in users.items()}


def flavors(cloud: connection.Cloud,
            wanted: Collection[resources.Key] = ()
            ) -> list[resources.Existing]:
    """Return the flavors that name a device profile, or are wanted.

    Their users are not read.

    :param wanted: kinds and names.
    """
    listed = responses.pages(cloud, '/flavors/detail', 'flavors',
                             is_public='None')
    with responses.understanding(cloud, 'Nova', 'a flavor'):
        return [_flavor(item, () if item['os-flavor-access:is_public']
                        else _access(cloud, item['id']))
                for item in listed
                if (resources.Kind.FLAVOR, item['name']) in wanted
                or resources.PROFILE_KEY in item['extra_specs']]


def used_flavors(cloud: connection.Cloud,
                 wanted: Mapping[resources.Key, resources.Item],
                 everything: bool = False) -> list[resources.Existing]:
    """Like :func:`flavors`, with the users of flavors that may be deleted.

    :param everything: whether unwanted flavors may be deleted.
    """
    return [_used(existing, flavor_users(cloud, existing.identity))
            if _may_go(existing, wanted, everything) else existing
            for existing in flavors(cloud, wanted)]


def flavor_users(cloud: connection.Cloud, flavor: str) -> tuple[str, ...]:
    """Return some servers that use a flavor; empty if there are none.

    :param flavor: its ID.
    """
    answer = cloud.ask('compute', '/servers', responses.NOVA,
                       all_tenants='true', flavor=flavor, limit=str(_SHOWN))
    with responses.understanding(cloud, 'Nova', 'the list of servers'):
        return tuple(f'server {server["id"]}'
                     for server in answer['servers'])


def limit_scope(cloud: connection.Cloud) -> dict[str, str]:
    """Return the service and region of Nova's limits.

    oslo.limit looks for limits of the service and the region of its configured
    endpoint, so a limit for another region has no effect. If Nova is in
    several regions, the user's counts.

    :raises CloudError: if the service or the region is ambiguous.
    """
    region = cloud.region
    with responses.understanding(cloud, 'Keystone', 'the list of services'):
        services = [item['id'] for item in responses.complete(
            cloud, '/services', 'services', type='compute')]
        if len(services) != 1:
            raise cloud.error(f'Keystone has {len(services)} services of type '
                              'compute; expected one')
        regions = {item['region_id'] for item in responses.complete(
            cloud, '/endpoints', 'endpoints', service_id=services[0])}
    if len(regions) > 1 and region not in regions:
        raise cloud.error('Nova is in several regions ('
                          + ', '.join(sorted(map(str, regions)))
                          + '); choose one with --os-region-name')
    (chosen,) = {region} if region in regions else regions or {None}
    return {'service_id': services[0],
            **({} if chosen is None else {'region_id': chosen})}


def limits(cloud: connection.Cloud, scope: Mapping[str, str],
           **query: str) -> list[resources.Existing]:
    """Return registered limits and limits of a service in a region.

    Keystone's list for one region has no limits of other regions. A limit for
    no region at all is a separate limit.

    :param query: which limits of projects to return; all by default.
    """
    with responses.understanding(cloud, 'Keystone', 'a registered limit'):
        found = [_limit(item, resources.RegisteredLimit(
            item['resource_name'], item['default_limit']))
            for item in responses.complete(
                cloud, '/registered_limits', 'registered_limits', **scope)
            if _is_of(item, scope)]
    with responses.understanding(cloud, 'Keystone', 'a limit'):
        return found + [_limit(item, resources.Limit(
            item['resource_name'], item['project_id'],
            item['resource_limit']))
            for item in responses.complete(
                cloud, '/limits', 'limits', **scope, **query)
            if item['project_id'] is not None and _is_of(item, scope)]


def limits_of_region(cloud: connection.Cloud, **query: str
                     ) -> list[resources.Existing]:
    """Return registered limits and limits of Nova in the user's region.

    :param query: see :func:`limits`.
    :raises CloudError: if a service does not answer.
    """
    return limits(cloud, limit_scope(cloud), **query)


def usages(cloud: connection.Cloud, project: str) -> dict[str, int]:
    """Return what a project's servers use of each resource class.

    :param project: UUID.
    :raises CloudError: if a request to Placement fails.
    """
    answer = cloud.ask('placement', '/usages', _USAGES, project_id=project)
    with responses.understanding(cloud, 'Placement', 'the usages of a '
                                                     'project'):
        return {codec.decode(str, name): codec.decode(int, used)
                for name, used in answer['usages'].items()}


def project_names(cloud: connection.Cloud) -> dict[str, str]:
    """Return the names of all projects, by UUID.

    :raises CloudError: if Keystone does not list them all.
    """
    with responses.understanding(cloud, 'Keystone', 'the list of projects'):
        return {codec.decode(str, item['id']): codec.decode(str, item['name'])
                for item in responses.complete(
                    cloud, '/projects', 'projects')}


def _limit(item, value):
    return resources.Existing(value, item['id'],
                              resources.unmarked(item['description'])[1])


def _is_of(item, scope):
    return item['region_id'] == scope.get('region_id')


def _used(existing, users):
    return dataclasses.replace(existing, users=users)


def _may_go(existing, wanted, prune):
    """Whether an existing item may be deleted or replaced."""
    item = wanted.get(existing.item.key)
    if item is None:
        return prune and existing.ours
    return not existing.ours or bool(
        item.fixed & plan.differences(item, existing.item).keys())


def _profile(item):
    description, ours = resources.unmarked(item['description'])
    return resources.Existing(resources.DeviceProfile(
        codec.decode(str, item['name']),
        tuple(tuple(sorted((str(key), str(value))
                           for key, value in group.items()))
              for group in item['groups']), description),
        codec.decode(str, item['uuid']), ours)


def _flavor(item, projects_of):
    description, ours = resources.unmarked(item['description'])
    return resources.Existing(resources.Flavor(
        item['name'], item['vcpus'], item['ram'], item['disk'],
        item['os-flavor-access:is_public'],
        tuple(sorted(item['extra_specs'].items())), frozenset(projects_of),
        description), item['id'], ours)


def _access(cloud, flavor):
    answer = cloud.ask('compute', f'/flavors/{flavor}/os-flavor-access',
                       responses.NOVA)
    return [item['tenant_id'] for item in answer['flavor_access']]
