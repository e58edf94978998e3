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

"""Carry out the changes of a plan in a cloud, one after the other."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from collections.abc import Iterator
from urllib import parse

from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import baremetal_state
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.profiles import bodies
from cyborg_gpu_driver.cloud.profiles import plan
from cyborg_gpu_driver.cloud.profiles import resources


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
            users = state.profile_users(self._cloud).get(item.name, ())
        elif item.kind is resources.Kind.FLAVOR:
            users = state.flavor_users(self._cloud, existing.identity)
        if users:
            raise self._cloud.error(
                f'{item.kind.value} {item.name} is now in use: '
                + ', '.join(users))

    def _create_profile(self, item):
        self._cloud.change('accelerator', 'POST', '/device_profiles',
                           bodies.profile(item))

    def _create_flavor(self, item):
        answer = self._compute('POST', '/flavors', bodies.flavor(item))
        with_nothing = resources.Flavor(
            item.name, item.vcpus, item.ram, item.disk, item.public, (),
            description=item.description)
        self._update_flavor(item, resources.Existing(
            with_nothing, answer['flavor']['id']))

    def _update_flavor(self, item, existing):
        path = f'/flavors/{existing.identity}'
        there = existing.item
        if not existing.ours or there.description != item.description:
            self._compute('PUT', path, bodies.flavor_description(item))
        wanted, found = dict(item.extra_specs), dict(there.extra_specs)
        changed = {key: value for key, value in wanted.items()
                   if found.get(key) != value}
        if changed:
            self._compute('POST', f'{path}/os-extra_specs',
                          bodies.extra_specs(changed))
        for key in sorted(found.keys() - wanted.keys()):
            self._compute('DELETE', f'{path}/os-extra_specs/'
                          + parse.quote(key, safe=':'))
        for action, projects in (
                ('addTenantAccess', item.projects - there.projects),
                ('removeTenantAccess', there.projects - item.projects)):
            for project in sorted(projects):
                self._compute('POST', f'{path}/action',
                              bodies.access(action, project))

    def _create_registered(self, item):
        self._identity('POST', '/registered_limits',
                       bodies.registered_limits(item, self._scope,
                                                self._mark))

    def _update_registered(self, item, existing):
        """Delete the project limits, change the default and restore them.

        Keystone 30 changes a registered limit only while no project has a
        limit of its own. Meanwhile the default applies to those projects.
        """
        gone = []
        try:
            for other in state.limits(self._cloud, self._scope):
                if item.key in other.item.needs:
                    gone.append(other)
                    self._identity('DELETE', f'/limits/{other.identity}')
            self._identity('PATCH', f'/registered_limits/{existing.identity}',
                           bodies.registered_limit(item, self._mark))
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
                    reason = responses.reason(error)
        if lost:
            raise self._cloud.error(
                'limits of projects were deleted to change their default and '
                f'could not be created again ({reason}); create them: '
                + ', '.join(lost))

    def _create_limit(self, item):
        self._post_limit(item, self._mark)

    def _post_limit(self, item, mark):
        self._identity('POST', '/limits',
                       bodies.limits(item, self._scope, mark))

    def _update_limit(self, item, existing):
        # A limit that was created again meanwhile has another ID.
        identity = {other.item.key: other.identity for other in state.limits(
            self._cloud, self._scope)}.get(item.key, existing.identity)
        self._identity('PATCH', f'/limits/{identity}',
                       bodies.limit(item, self._mark))

    def _create_template(self, item):
        self._baremetal('POST', '/deploy_templates', bodies.template(item))

    def _update_template(self, item, existing):
        self._baremetal('PATCH', f'/deploy_templates/{existing.identity}',
                        bodies.template_patch(item))

    def _add_traits(self, item, existing):
        # One by one, so that a trait that another client adds meanwhile is
        # not lost.
        for trait in sorted(item.traits - existing.item.traits):
            self._baremetal(
                'PUT', f'/nodes/{existing.identity}/traits/{trait}')

    @functools.cached_property
    def _scope(self):
        return state.limit_scope(self._cloud)

    def _compute(self, method, path, body=None):
        return self._cloud.change('compute', method, path, body,
                                  responses.NOVA)

    def _baremetal(self, method, path, body=None):
        return self._cloud.change('baremetal', method, path, body,
                                  baremetal_state.VERSION)

    def _identity(self, method, path, body=None):
        return self._cloud.change('identity', method, path, body)
