# SPDX-License-Identifier: Apache-2.0

"""Read and change a cloud's device profiles, flavors and limits."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from urllib import parse

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import baremetal
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import plan
from cyborg_gpu_driver.cloud import resources

_SHELVED = 'SHELVED_OFFLOADED'
_SHOWN = 5
"""The number of servers of a flavor to read: one is enough to keep the flavor.
"""

_MARK = {'description': resources.marked('')}
"""What marks a limit."""


def read(cloud: connection.Cloud, wanted: definition.Definition,
         everything: bool = False) -> plan.Present:
    """Read the existing items of the wanted kinds, and their users.

    :param wanted: with its projects' UUIDs.
    :param everything: whether to read all kinds, to find items that are no
        longer wanted.
    """
    kinds = {kind for item in wanted.items
             for kind, _ in (item.key, *item.needs)}
    keys = {item.key: item for item in wanted.items}
    found = []
    # A cloud for bare metal alone has no Cyborg.
    if everything or not wanted.nodes or resources.Kind.PROFILE in kinds:
        found = profiles(cloud)
    if any(_may_go(existing, keys, everything) for existing in found):
        users = profile_users(cloud)
        found = [dataclasses.replace(
            existing, users=users.get(existing.item.name, ()))
            for existing in found]
    if everything or resources.Kind.FLAVOR in kinds:
        found += [
            dataclasses.replace(
                existing, users=flavor_users(cloud, existing.identity))
            if _may_go(existing, keys, everything) else existing
            for existing in flavors(cloud, keys)]
    if everything or resources.Kind.REGISTERED in kinds:
        found += limits(cloud)
    for item in wanted.items:
        if item.kind is resources.Kind.TEMPLATE:
            found += baremetal.templates(cloud, item.name)
    return {existing.item.key: existing for existing in found}


def project(cloud: connection.Cloud, name: str) -> str:
    """Return the UUID of a project, by its name or UUID."""
    if name in (cloud.access.project_id, cloud.access.project_name):
        # Keystone shows projects to administrators only.
        return cloud.access.project_id
    return cloud.sdk.identity.find_project(name, ignore_missing=False).id


def profiles(cloud: connection.Cloud) -> list[resources.Existing]:
    """Return Cyborg's device profiles, without their users."""
    cloud.check_admin()
    return [_profile(item)
            for item in cloud.sdk.accelerator.device_profiles()]


def device_profiles(cloud: connection.Cloud
                    ) -> list[resources.DeviceProfile]:
    """Return Cyborg's device profiles alone."""
    return [existing.item for existing in profiles(cloud)
            if isinstance(existing.item, resources.DeviceProfile)]


def profile_users(cloud: connection.Cloud
                  ) -> Mapping[str, tuple[str, ...]]:
    """Return the current and future users of device profiles, by name.

    A server that is shelved and offloaded has no accelerator request, but
    when it is unshelved it uses the device profile that its flavor names.
    """
    users: dict[str, list[str]] = collections.defaultdict(list)
    for request in cyborg.requests(cloud):
        text = (f'server {request.instance_uuid}' if request.instance_uuid
                else f'accelerator request {request.uuid} ({request.state})')
        known = users[request.device_profile_name]
        if text not in known:
            known.append(text)
    for server in cloud.sdk.compute.servers(all_projects=True,
                                            status=_SHELVED):
        name = server.flavor.extra_specs.get(resources.PROFILE_KEY)
        if name is not None:
            users[name].append(f'shelved server {server.id}')
    return {name: tuple(texts) for name, texts in users.items()}


def flavors(cloud: connection.Cloud,
            wanted: Collection[resources.Key] = ()
            ) -> list[resources.Existing]:
    """Return the flavors that name a device profile, or are wanted.

    Their users are not read.
    """
    return [_flavor(cloud, item) for item in cloud.sdk.compute.flavors()
            if (resources.Kind.FLAVOR, item.name) in wanted
            or resources.PROFILE_KEY in item.extra_specs]


def flavor_users(cloud: connection.Cloud, flavor: str) -> tuple[str, ...]:
    """Return some servers that use a flavor; empty if there are none."""
    return tuple(f'server {server.id}' for server in cloud.sdk.compute.servers(
        details=False, all_projects=True, flavor=flavor, limit=_SHOWN,
        paginated=False))


def limit_scope(cloud: connection.Cloud) -> dict[str, str]:
    """Return the service and region of Nova's limits.

    oslo.limit looks for limits of the service and the region of its configured
    endpoint, so a limit for another region has no effect. If Nova is in
    several regions, the user's counts.

    :raises CloudError: if the service or the region is ambiguous.
    """
    region = cloud.region
    services = [entry for entry in cloud.access.service_catalog.catalog
                if entry['type'] == 'compute']
    if len(services) != 1:
        raise cloud.error(f'the catalog has {len(services)} services of type '
                          'compute; expected one')
    regions = {item['region_id'] for item in services[0]['endpoints']}
    if len(regions) > 1 and region not in regions:
        raise cloud.error('Nova is in several regions ('
                          + ', '.join(sorted(map(str, regions)))
                          + '); choose one with --os-region-name')
    (chosen,) = {region} if region in regions else regions or {None}
    return {'service_id': services[0]['id'],
            **({} if chosen is None else {'region_id': chosen})}


def limits(cloud: connection.Cloud) -> list[resources.Existing]:
    """Return registered limits and limits of Nova in the user's region.

    Keystone's list for one region has no limits of other regions. A limit for
    no region at all is a separate limit.
    """
    scope = limit_scope(cloud)
    region = scope.get('region_id')
    found = [_limit(item, resources.RegisteredLimit(
        item['resource_name'], item['default_limit']))
        for item in _complete(cloud, 'registered_limits', **scope)
        if item['region_id'] == region]
    return found + [_limit(item, resources.Limit(
        item['resource_name'], item['project_id'], item['resource_limit']))
        for item in _complete(cloud, 'limits', **scope)
        if item['project_id'] is not None and item['region_id'] == region]


def usages(cloud: connection.Cloud, project: str) -> dict[str, int]:
    """Return what a project's servers use of each resource class."""
    return cloud.ask('placement', '/usages',
                     project_id=project)['usages']


def project_names(cloud: connection.Cloud) -> dict[str, str]:
    """Return the names of all projects, by UUID."""
    return {item['id']: item['name'] for item in _complete(cloud, 'projects')}


def _complete(cloud: connection.Cloud, kind: str, **query: str
              ) -> list[dict[str, Any]]:
    """Return all items of a Keystone list.

    Keystone can limit its lists, which have no further pages then.
    openstacksdk does not tell that an item is missing.
    """
    answer = cloud.ask('identity', f'/{kind}', **query)
    if answer.get('truncated'):
        raise cloud.error(f'Keystone lists only some {kind} (list_limit in '
                          'keystone.conf)')
    return list(answer[kind])


def _limit(item: Mapping[str, Any], value: resources.Item
           ) -> resources.Existing:
    return resources.Existing(value, item['id'],
                              resources.unmarked(item['description'])[1])


def _may_go(existing: resources.Existing,
            wanted: Mapping[resources.Key, resources.Item], prune: bool
            ) -> bool:
    """Whether an existing item may be deleted or replaced."""
    item = wanted.get(existing.item.key)
    if item is None:
        return prune and existing.ours
    return not existing.ours or bool(
        item.fixed & plan.differences(item, existing.item).keys())


def _profile(item: Any) -> resources.Existing:
    description, ours = resources.unmarked(item.description)
    return resources.Existing(resources.DeviceProfile(
        item.name,
        tuple(tuple(sorted((str(key), str(value))
                           for key, value in group.items()))
              for group in item.groups), description), item.uuid, ours)


def _flavor(cloud: connection.Cloud, item: Any) -> resources.Existing:
    description, ours = resources.unmarked(item.description)
    projects = () if item.is_public else (
        entry['tenant_id']
        for entry in cloud.sdk.compute.get_flavor_access(item))
    return resources.Existing(resources.Flavor(
        item.name, item.vcpus, item.ram, item.disk, item.is_public,
        tuple(sorted(item.extra_specs.items())), frozenset(projects),
        description), item.id, ours)


def carry_out(cloud: connection.Cloud, changes: Iterable[plan.Change]
              ) -> Iterator[tuple[plan.Change, exception.CloudError | None]]:
    """Make the changes, and yield each with its error, if any.

    The first failure ends it, because later changes may need the failed one.
    A partly created item has the mark, so that another run can continue.
    """
    writer = Writer(cloud)
    for change in changes:
        try:
            with cloud.errors():
                writer.make(change)
        except exception.CloudError as error:
            yield change, error
            return
        yield change, None


class Writer:
    """Creates, changes and deletes items for GPUs.

    What it creates or changes has the mark by which :func:`plan.make` knows
    what it may delete.
    """

    def __init__(self, cloud: connection.Cloud):
        self._cloud = cloud
        self._compute = cloud.sdk.compute
        self._identity = cloud.sdk.identity

    def make(self, change: plan.Change) -> None:
        """Make one change."""
        if change.action is plan.Action.UPDATE:
            self._update(change.item, change.there)
            return
        if change.action in (plan.Action.DELETE, plan.Action.REPLACE):
            self._check_unused(change.there)
            self._delete(change.there)
        if change.action in (plan.Action.CREATE, plan.Action.REPLACE):
            self._create(change.item)

    def _create(self, item: resources.Item) -> None:
        match item:
            case resources.DeviceProfile():
                self._cloud.sdk.accelerator.create_device_profile(
                    name=item.name, groups=[dict(one) for one in item.groups],
                    description=resources.marked(item.description))
            case resources.Flavor():
                self._create_flavor(item)
            case resources.RegisteredLimit():
                self._identity.create_registered_limit(
                    resource_name=item.name, default_limit=item.default,
                    **limit_scope(self._cloud), **_MARK)
            case resources.Limit():
                self._identity.create_limit(
                    resource_name=item.resource, project_id=item.project,
                    resource_limit=item.value, **limit_scope(self._cloud),
                    **_MARK)
            case resources.DeployTemplate():
                self._cloud.sdk.baremetal.create_deploy_template(
                    name=item.name, steps=json.loads(item.steps),
                    extra={baremetal.MADE_BY: resources.MARK})
            case _:
                raise ValueError(f'{item.kind.value}: it cannot be created')

    def _update(self, item: resources.Item, existing: resources.Existing
                ) -> None:
        match item:
            case resources.Flavor():
                self._update_flavor(item, existing)
            case resources.RegisteredLimit():
                self._identity.update_registered_limit(
                    existing.identity, default_limit=item.default, **_MARK)
            case resources.Limit():
                self._identity.update_limit(
                    existing.identity, resource_limit=item.value, **_MARK)
            case resources.DeployTemplate():
                self._cloud.sdk.baremetal.patch_deploy_template(
                    existing.identity, [
                        {'op': 'replace', 'path': '/steps',
                         'value': json.loads(item.steps)},
                        {'op': 'add', 'path': f'/extra/{baremetal.MADE_BY}',
                         'value': resources.MARK}])
            case resources.NodeTraits():
                self._add_traits(item, existing)
            case _:
                raise ValueError(f'{item.kind.value}: it cannot be changed')

    def _delete(self, existing: resources.Existing) -> None:
        match existing.item:
            case resources.DeviceProfile():
                delete = self._cloud.sdk.accelerator.delete_device_profile
            case resources.Flavor():
                delete = self._compute.delete_flavor
            case resources.RegisteredLimit():
                delete = self._identity.delete_registered_limit
            case resources.Limit():
                delete = self._identity.delete_limit
            case _:
                raise ValueError(
                    f'{existing.item.kind.value}: it cannot be deleted')
        delete(existing.identity, ignore_missing=False)

    def _check_unused(self, existing: resources.Existing) -> None:
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

    def _create_flavor(self, item: resources.Flavor) -> None:
        made = self._compute.create_flavor(
            name=item.name, vcpus=item.vcpus, ram=item.ram, disk=item.disk,
            is_public=item.public,
            description=resources.marked(item.description))
        self._update_flavor(item, resources.Existing(dataclasses.replace(
            item, extra_specs=(), projects=frozenset()), made.id))

    def _update_flavor(self, item: resources.Flavor,
                       existing: resources.Existing) -> None:
        flavor, there = existing.identity, existing.item
        assert isinstance(there, resources.Flavor)  # The plan compares alike.
        if not existing.ours or there.description != item.description:
            self._compute.update_flavor(
                flavor, description=resources.marked(item.description))
        wanted, found = dict(item.extra_specs), dict(there.extra_specs)
        changed = {key: value for key, value in wanted.items()
                   if found.get(key) != value}
        if changed:
            self._compute.create_flavor_extra_specs(flavor, changed)
        for key in sorted(found.keys() - wanted.keys()):
            self._compute.delete_flavor_extra_specs_property(
                flavor, parse.quote(key, safe=':'))
        for project in sorted(item.projects - there.projects):
            self._compute.flavor_add_tenant_access(flavor, project)
        for project in sorted(there.projects - item.projects):
            self._compute.flavor_remove_tenant_access(flavor, project)

    def _add_traits(self, item: resources.NodeTraits,
                    existing: resources.Existing) -> None:
        assert isinstance(existing.item, resources.NodeTraits)
        # One by one, so that a trait that another client adds meanwhile is
        # not lost.
        for trait in sorted(item.traits - existing.item.traits):
            self._cloud.sdk.baremetal.add_node_trait(existing.identity, trait)
