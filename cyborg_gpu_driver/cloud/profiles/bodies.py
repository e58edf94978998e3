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

"""Bodies of requests to Cyborg, Ironic, Nova and Keystone. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.cloud.profiles import resources

_MADE_BY = 'made_by'
"""Key in ``extra`` for the mark of a deploy template, which has no description
before Ironic's microversion 1.112."""


def profile(item: resources.DeviceProfile) -> list[dict[str, Any]]:
    """Return the body to create a device profile."""
    return [{'name': item.name, 'groups': [dict(group) for group
                                           in item.groups],
             'description': resources.marked(item.description)}]


def flavor(item: resources.Flavor) -> dict[str, Any]:
    """Return the body to create a flavor without extra specs and projects."""
    return {'flavor': {
        'name': item.name, 'vcpus': item.vcpus, 'ram': item.ram,
        'disk': item.disk, 'os-flavor-access:is_public': item.public,
        **flavor_description(item)['flavor']}}


def flavor_description(item: resources.Flavor) -> dict[str, Any]:
    """Return the body to change the description of a flavor, and mark it."""
    return {'flavor': {'description': resources.marked(item.description)}}


def extra_specs(specs: Mapping[str, str]) -> dict[str, Any]:
    """Return the body to set extra specs of a flavor; it keeps the others."""
    return {'extra_specs': dict(specs)}


def access(action: str, project: str) -> dict[str, Any]:
    """Return the body to add or remove a project's access to a flavor.

    :param action: ``addTenantAccess`` or ``removeTenantAccess``.
    """
    return {action: {'tenant': project}}


def registered_limits(item: resources.RegisteredLimit,
                      scope: Mapping[str, str], mark: bool = True
                      ) -> dict[str, Any]:
    """Return the body to create a registered limit.

    :param scope: ``service_id``, and ``region_id`` if there is one.
    :param mark: whether ``profile sync`` may delete it later.
    """
    return {'registered_limits': [{
        **scope, 'resource_name': item.name,
        **registered_limit(item, mark)['registered_limit']}]}


def registered_limit(item: resources.RegisteredLimit, mark: bool = True
                     ) -> dict[str, Any]:
    """Return the body to change a registered limit, and to mark it if asked.
    """
    return {'registered_limit': {'default_limit': item.default,
                                 **_description(mark)}}


def limits(item: resources.Limit, scope: Mapping[str, str],
           mark: bool = True) -> dict[str, Any]:
    """Return the body to create a project's limit.

    The parameters are those of :func:`registered_limits`.
    """
    return {'limits': [{
        **scope, 'project_id': item.project, 'resource_name': item.resource,
        **limit(item, mark)['limit']}]}


def limit(item: resources.Limit, mark: bool = True) -> dict[str, Any]:
    """Return the body to change a project's limit, and to mark it if asked."""
    return {'limit': {'resource_limit': item.value, **_description(mark)}}


def _description(mark):
    return {'description': resources.marked('')} if mark else {}


def template(item: resources.DeployTemplate) -> dict[str, Any]:
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
