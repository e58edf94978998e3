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

"""Read and change a cloud's device profiles, flavors and limits."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from urllib import parse

from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import baremetal
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import plan
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.record import codec

_USAGES = '1.9'
"""The first microversion of Placement's API with the usages of a project."""
_SHELVED = 'SHELVED_OFFLOADED'
_SHOWN = 5
"""The number of servers of a flavor to read: one is enough to keep the flavor.
"""

Present = dict[resources.Key, resources.Existing]
Users = Mapping[str, tuple[str, ...]]
_MADE_BY = 'made_by'
"""Key in ``extra`` for the mark of a deploy template, which has no description
before Ironic's microversion 1.112."""


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
    with connection.understanding(cloud, 'Keystone', f'project {name}'):
        if answer is not None:
            return codec.decode(str, answer['project']['id'])
        found = [codec.decode(str, item['id']) for item in connection.complete(
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
    with connection.understanding(cloud, 'Cyborg', 'a device profile'):
        return [_profile(item) for item in listed]


def profile_users(cloud: connection.Cloud) -> Users:
    """Return the current and future users of device profiles, by name.

    A server that is shelved and offloaded has no accelerator request, but
    when it is unshelved it uses the device profile that its flavor names.
    """
    users: dict[str, list[str]] = collections.defaultdict(list)
    requests = cloud.get('/accelerator_requests', 'arqs')
    with connection.understanding(cloud, 'Cyborg', 'an accelerator request'):
        for request in requests:
            server = request['instance_uuid']
            text = (f'server {server}' if server else
                    f'accelerator request {request["uuid"]} '
                    f'({request["state"]})')
            known = users[request['device_profile_name']]
            if text not in known:
                known.append(text)
    shelved = connection.pages(cloud, '/servers/detail', 'servers',
                               all_tenants='true', status=_SHELVED)
    with connection.understanding(cloud, 'Nova', 'a shelved server'):
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
    listed = connection.pages(cloud, '/flavors/detail', 'flavors',
                              is_public='None')
    with connection.understanding(cloud, 'Nova', 'a flavor'):
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
    answer = cloud.ask('compute', '/servers', connection.NOVA,
                       all_tenants='true', flavor=flavor, limit=str(_SHOWN))
    with connection.understanding(cloud, 'Nova', 'the list of servers'):
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
    with connection.understanding(cloud, 'Keystone', 'the list of services'):
        services = [item['id'] for item in connection.complete(
            cloud, '/services', 'services', type='compute')]
        if len(services) != 1:
            raise cloud.error(f'Keystone has {len(services)} services of type '
                              'compute; expected one')
        regions = {item['region_id'] for item in connection.complete(
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
    with connection.understanding(cloud, 'Keystone', 'a registered limit'):
        found = [_limit(item, resources.RegisteredLimit(
            item['resource_name'], item['default_limit']))
            for item in connection.complete(
                cloud, '/registered_limits', 'registered_limits', **scope)
            if _is_of(item, scope)]
    with connection.understanding(cloud, 'Keystone', 'a limit'):
        return found + [_limit(item, resources.Limit(
            item['resource_name'], item['project_id'],
            item['resource_limit']))
            for item in connection.complete(
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
    with connection.understanding(cloud, 'Placement', 'the usages of a '
                                  'project'):
        return {codec.decode(str, name): codec.decode(int, used)
                for name, used in answer['usages'].items()}


def project_names(cloud: connection.Cloud) -> dict[str, str]:
    """Return the names of all projects, by UUID.

    :raises CloudError: if Keystone does not list them all.
    """
    with connection.understanding(cloud, 'Keystone', 'the list of projects'):
        return {codec.decode(str, item['id']): codec.decode(str, item['name'])
                for item in connection.complete(
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
                       connection.NOVA)
    return [item['tenant_id'] for item in answer['flavor_access']]


def carry_out(cloud: connection.Cloud, changes: Iterable[plan.Change],
              mark: bool = True
              ) -> Iterator[tuple[plan.Change, exception.CloudError | None]]:
    """Make the changes, and yield each with its error, if any.

    The first failure ends it, because later changes may need the failed one.
    A partly created item has the mark, so that another run can continue.

    :param mark: whether limits get the mark.
    """
    writer = Writer(cloud, mark)
    for change in changes:
        try:
            writer.make(change)
        except exception.CloudError as error:
            yield change, error
            return
        yield change, None


def _never(*_items: object) -> None:
    raise ValueError('the plan has a change that the service does not support')


class Writer:
    """Creates, changes and deletes items for GPUs.

    :param mark: whether limits get the mark by which :func:`plan.make` knows
        what it may delete.
    """

    def __init__(self, cloud: connection.Cloud, mark: bool = True):
        self._cloud = cloud
        self._mark = mark

    def make(self, change: plan.Change) -> None:
        """Make one change.

        :raises CloudError: if a service refuses the change, or if an item to
            delete has come into use meanwhile.
        """
        create, update, path, service = {
            resources.Kind.PROFILE: (
                self._create_profile, _never, '/device_profiles',
                'accelerator'),
            resources.Kind.FLAVOR: (
                self._create_flavor, self._update_flavor, '/flavors',
                'compute'),
            resources.Kind.REGISTERED: (
                self._create_registered, self._update_registered,
                '/registered_limits', 'identity'),
            resources.Kind.LIMIT: (
                self._create_limit, self._update_limit, '/limits',
                'identity'),
            resources.Kind.TEMPLATE: (
                self._create_template, self._update_template,
                '/deploy_templates', 'baremetal'),
            resources.Kind.NODE: (
                _never, self._add_traits, '/nodes', 'baremetal'),
        }[change.item.kind]
        if change.action is plan.Action.UPDATE:
            update(change.wanted, change.there)
            return
        if change.action in (plan.Action.DELETE, plan.Action.REPLACE):
            self._check_unused(change.there)
            self._cloud.change(service, 'DELETE',
                               f'{path}/{change.there.identity}')
        if change.action in (plan.Action.CREATE, plan.Action.REPLACE):
            create(change.wanted)

    def _check_unused(self, existing):
        item = existing.item
        users: tuple[str, ...] = ()
        if item.kind is resources.Kind.PROFILE:
            users = profile_users(self._cloud).get(item.name, ())
        elif item.kind is resources.Kind.FLAVOR:
            users = flavor_users(self._cloud, existing.identity)
        if users:
            raise self._cloud.error(
                f'{item.kind.value} {item.name} is now in use: '
                + ', '.join(users))

    def _create_profile(self, item):
        self._cloud.change('accelerator', 'POST', '/device_profiles',
                           profile_body(item))

    def _create_flavor(self, item):
        answer = self._compute('POST', '/flavors', flavor_body(item))
        with_nothing = resources.Flavor(
            item.name, item.vcpus, item.ram, item.disk, item.public, (),
            description=item.description)
        self._update_flavor(item, resources.Existing(
            with_nothing, answer['flavor']['id']))

    def _update_flavor(self, item, existing):
        path = f'/flavors/{existing.identity}'
        there = existing.item
        if not existing.ours or there.description != item.description:
            self._compute('PUT', path, flavor_description_body(item))
        wanted, found = dict(item.extra_specs), dict(there.extra_specs)
        changed = {key: value for key, value in wanted.items()
                   if found.get(key) != value}
        if changed:
            self._compute('POST', f'{path}/os-extra_specs',
                          extra_specs_body(changed))
        for key in sorted(found.keys() - wanted.keys()):
            self._compute('DELETE', f'{path}/os-extra_specs/'
                          + parse.quote(key, safe=':'))
        for action, projects in (
                ('addTenantAccess', item.projects - there.projects),
                ('removeTenantAccess', there.projects - item.projects)):
            for project in sorted(projects):
                self._compute('POST', f'{path}/action',
                              access_body(action, project))

    def _create_registered(self, item):
        self._identity('POST', '/registered_limits',
                       registered_limits_body(item, self._scope,
                                              self._mark))

    def _update_registered(self, item, existing):
        """Delete the project limits, change the default and restore them.

        Keystone 30 changes a registered limit only while no project has a
        limit of its own. Meanwhile the default applies to those projects.
        """
        gone = []
        try:
            for other in limits(self._cloud, self._scope):
                if item.key in other.item.needs:
                    gone.append(other)
                    self._identity('DELETE', f'/limits/{other.identity}')
            self._identity('PATCH', f'/registered_limits/{existing.identity}',
                           registered_limit_body(item, self._mark))
        finally:
            self._restore(gone)

    def _restore(self, limits):
        """Create limits again; one that fails does not prevent the others.

        :raises CloudError: if one fails; names all that are missing.
        """
        lost, reason = [], ''
        for limit in limits:
            try:
                self._post_limit(limit.item, limit.ours)
            except exception.CloudError as error:
                # Keystone has refused to delete it, or another client has
                # created it.
                if not isinstance(error.__cause__,
                                  exceptions.ConflictException):
                    lost.append(f'{limit.item.name}: {limit.item.value}')
                    reason = connection.reason(error)
        if lost:
            raise self._cloud.error(
                'limits of projects were deleted to change their default and '
                f'could not be created again ({reason}); create them: '
                + ', '.join(lost))

    def _create_limit(self, item):
        self._post_limit(item, self._mark)

    def _post_limit(self, item, mark):
        self._identity('POST', '/limits',
                       limits_body(item, self._scope, mark))

    def _update_limit(self, item, existing):
        # A limit that was created again meanwhile has another ID.
        identity = {other.item.key: other.identity for other in limits(
            self._cloud, self._scope)}.get(item.key, existing.identity)
        self._identity('PATCH', f'/limits/{identity}',
                       limit_body(item, self._mark))

    def _create_template(self, item):
        self._baremetal('POST', '/deploy_templates', template_body(item))

    def _update_template(self, item, existing):
        self._baremetal('PATCH', f'/deploy_templates/{existing.identity}',
                        template_patch(item))

    def _add_traits(self, item, existing):
        # One by one, so that a trait that another client adds meanwhile is
        # not lost.
        for trait in sorted(item.traits - existing.item.traits):
            self._baremetal(
                'PUT', f'/nodes/{existing.identity}/traits/{trait}')

    @functools.cached_property
    def _scope(self):
        return limit_scope(self._cloud)

    def _compute(self, method, path, body=None):
        return self._cloud.change('compute', method, path, body,
                                  connection.NOVA)

    def _baremetal(self, method, path, body=None):
        return self._cloud.change('baremetal', method, path, body,
                                  baremetal.VERSION)

    def _identity(self, method, path, body=None):
        return self._cloud.change('identity', method, path, body)


def profile_body(item: resources.DeviceProfile) -> list[dict[str, Any]]:
    """Return the body to create a device profile."""
    return [{'name': item.name, 'groups': [dict(group) for group
                                           in item.groups],
             'description': resources.marked(item.description)}]


def flavor_body(item: resources.Flavor) -> dict[str, Any]:
    """Return the body to create a flavor without extra specs and projects."""
    return {'flavor': {
        'name': item.name, 'vcpus': item.vcpus, 'ram': item.ram,
        'disk': item.disk, 'os-flavor-access:is_public': item.public,
        **flavor_description_body(item)['flavor']}}


def flavor_description_body(item: resources.Flavor) -> dict[str, Any]:
    """Return the body to change the description of a flavor, and mark it."""
    return {'flavor': {'description': resources.marked(item.description)}}


def extra_specs_body(specs: Mapping[str, str]) -> dict[str, Any]:
    """Return the body to set extra specs of a flavor; it keeps the others."""
    return {'extra_specs': dict(specs)}


def access_body(action: str, project: str) -> dict[str, Any]:
    """Return the body to add or remove a project's access to a flavor.

    :param action: ``addTenantAccess`` or ``removeTenantAccess``.
    """
    return {action: {'tenant': project}}


def registered_limits_body(item: resources.RegisteredLimit,
                           scope: Mapping[str, str], mark: bool = True
                      ) -> dict[str, Any]:
    """Return the body to create a registered limit.

    :param scope: ``service_id``, and ``region_id`` if there is one.
    :param mark: whether ``profile sync`` may delete it later.
    """
    return {'registered_limits': [{
        **scope, 'resource_name': item.name,
        **registered_limit_body(item, mark)['registered_limit']}]}


def registered_limit_body(item: resources.RegisteredLimit, mark: bool = True
                     ) -> dict[str, Any]:
    """Return the body to change a registered limit, and to mark it if asked.
    """
    return {'registered_limit': {'default_limit': item.default,
                                 **_description(mark)}}


def limits_body(item: resources.Limit, scope: Mapping[str, str],
                mark: bool = True) -> dict[str, Any]:
    """Return the body to create a project's limit.

    The parameters are those of :func:`registered_limits`.
    """
    return {'limits': [{
        **scope, 'project_id': item.project, 'resource_name': item.resource,
        **limit_body(item, mark)['limit']}]}


def limit_body(item: resources.Limit, mark: bool = True) -> dict[str, Any]:
    """Return the body to change a project's limit, and to mark it if asked."""
    return {'limit': {'resource_limit': item.value, **_description(mark)}}


def _description(mark):
    return {'description': resources.marked('')} if mark else {}


def template_body(item: resources.DeployTemplate) -> dict[str, Any]:
    """Return the body to create a deploy template."""
    return {'name': item.name, 'steps': json.loads(item.steps),
            'extra': {_MADE_BY: resources.MARK}}


def template_patch(item: resources.DeployTemplate) -> list[dict[str, Any]]:
    """Return the patch to change the steps of a deploy template and mark it.
    """
    return [{'op': 'replace', 'path': '/steps',
             'value': json.loads(item.steps)},
            {'op': 'add', 'path': f'/extra/{_MADE_BY}',
             'value': resources.MARK}]


def is_marked(extra: Mapping[str, Any] | None) -> bool:
    """Whether a deploy template's ``extra`` has the mark."""
    return (extra or {}).get(_MADE_BY) == resources.MARK
