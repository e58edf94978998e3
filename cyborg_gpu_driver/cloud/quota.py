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

"""Quotas of projects for GPU resource classes, and their usage.

A quota is a unified limit of Keystone for the resource ``class:NAME``. A
registered limit applies to every project that has no limit of its own. Nova
enforces quotas with ``[quota] driver = nova.quota.UnifiedLimitsDriver``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import os_resource_classes as orc

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import plan
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.report.content import names

_PREFIX = 'class:'
_UNSET = 'unset'
_CUSTOM = names.custom(names.VENDOR) + '_'
_REQUEST = 'resources'
_NUMBER = re.compile('-1|[0-9]{1,10}', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Quota:
    """The quota of one project for a resource class.

    :ivar project: UUID; None for the default of all projects.
    :ivar limit: None if there is no limit.
    :ivar own: whether the limit is the project's own, not the default.
    :ivar used: what the project's servers use; None for the default.
    """

    project: str | None
    resource_class: str
    limit: int | None
    own: bool
    used: int | None

    @property
    def free(self) -> int | None:
        """How much more the project can use; None if there is no limit."""
        if self.limit is None or self.used is None:
            return None
        return max(0, self.limit - self.used)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A limit to be set.

    :ivar limit: None to delete the limit.
    """

    resource_class: str
    limit: int | None


def is_gpu(resource_class: str) -> bool:
    """Whether a resource class is one of this driver's GPUs."""
    return resource_class == orc.PGPU or resource_class.startswith(_CUSTOM)


def requested(profiles: Iterable[resources.Existing]) -> frozenset[str]:
    """Return the GPU resource classes that device profiles ask for."""
    return frozenset(
        name for existing in profiles
        if isinstance(existing.item, resources.DeviceProfile)
        for group in existing.item.groups for key, _ in group
        for kind, _, name in [key.partition(':')]
        if kind == _REQUEST and is_gpu(name))


def defaults(limits: Iterable[resources.Existing]) -> Iterator[Quota]:
    """Yield the registered limits of GPUs, sorted by resource class."""
    for name, value in sorted(_registered(limits).items()):
        yield Quota(None, name, _limited(value), False, None)


def of_project(project: str, limits: Iterable[resources.Existing],
               usages: Mapping[str, int], classes: Iterable[str] = ()
               ) -> Iterator[Quota]:
    """Yield a project's quotas, sorted by resource class.

    :param project: UUID.
    :param limits: registered limits and limits of projects.
    :param usages: what the project uses of each resource class.
    :param classes: resource classes to include even if the project has no
        limit of its own for them and uses none of them.
    """
    limits = list(limits)
    registered = _registered(limits)
    own = {_class(item.resource): item.value
           for item in (existing.item for existing in limits)
           if isinstance(item, resources.Limit) and item.project == project}
    for name in sorted(own.keys() | usages.keys() | set(classes)):
        if is_gpu(name):
            yield Quota(project, name,
                        _limited(own.get(name, registered.get(name))),
                        name in own, usages.get(name, 0))


def parse(text: str) -> Setting:
    """Parse ``PROFILE=LIMIT``.

    :param text: PROFILE is a profile (``1g.10gb``) or a resource class;
        LIMIT is a number, -1 for no limit, or ``unset``.
    :raises InvalidValue: if it is not valid; says what is expected.
    """
    name, equals, value = text.partition('=')
    if not equals or not name:
        raise exception.InvalidValue(
            what='quota', value=text,
            expected='expected PROFILE=LIMIT, such as 1g.10gb=4')
    if not is_gpu(name):
        name = definition.profile_class(name)
    if value == _UNSET:
        return Setting(name, None)
    if (not _NUMBER.fullmatch(value)
            or int(value) > definition.HIGHEST_LIMIT):
        raise exception.InvalidValue(
            what=f'limit of {name}', value=value,
            expected='expected a number from 0 to '
                     f'{definition.HIGHEST_LIMIT}, -1 for no limit, '
                     f'or {_UNSET}')
    return Setting(name, int(value))


def parse_all(texts: Iterable[str]) -> list[Setting]:
    """Parse several settings.

    :raises InvalidValue: if one is not valid, or two are for one class.
    """
    found: dict[str, Setting] = {}
    for text in texts:
        setting = parse(text)
        if setting.resource_class in found:
            raise exception.InvalidValue(
                what='quota', value=text,
                expected=f'{setting.resource_class} is given twice')
        found[setting.resource_class] = setting
    return list(found.values())


def changes(settings: Iterable[Setting], project: str | None,
            limits: Iterable[resources.Existing]) -> Iterator[plan.Change]:
    """Yield the changes that apply the settings.

    :param project: UUID; None for the defaults.
    :param limits: the existing limits.
    """
    present = {existing.item.key: existing for existing in limits}
    for setting in settings:
        name = _PREFIX + setting.resource_class
        item: resources.Item
        if project is None:
            item = resources.RegisteredLimit(name, setting.limit or 0)
        else:
            item = resources.Limit(name, project, setting.limit or 0)
        yield from _change(setting, item, present)


def _change(setting: Setting, item: resources.Item,
            present: Mapping[resources.Key, resources.Existing]
            ) -> Iterator[plan.Change]:
    there = present.get(item.key)
    if setting.limit is None:
        if there is not None:
            yield plan.Change(
                plan.Action.DELETE,
                'no limit' if there.item.kind is resources.Kind.REGISTERED
                else 'the default applies', None, there)
    elif any(need not in present for need in item.needs):
        yield plan.Change(
            plan.Action.REFUSE, f'{setting.resource_class} has no default; '
            'set one with --default first', item)
    elif there is None:
        yield plan.Change(plan.Action.CREATE, str(setting.limit), item)
    else:
        found = plan.differences(item, there.item)
        if found:
            yield plan.Change(
                plan.Action.UPDATE, '; '.join(found.values()), item, there)


def _registered(limits: Iterable[resources.Existing]) -> dict[str, int]:
    return {_class(item.name): item.default
            for item in (existing.item for existing in limits)
            if isinstance(item, resources.RegisteredLimit)
            and is_gpu(_class(item.name))}


def _class(name: str) -> str:
    return name.removeprefix(_PREFIX)


def _limited(value: int | None) -> int | None:
    """Return the limit; None for Keystone's -1, which means no limit."""
    return None if value is None or value < 0 else value
