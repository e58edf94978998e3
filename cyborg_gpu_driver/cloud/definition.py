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

"""The file that says what a cloud is to have for its GPUs.

::

    version: v1
    profiles:
    - name: slice-10gb
      groups:
      - gpu: 1g.10gb
    flavors:
    - {name: gpu.slice, profile: slice-10gb, vcpus: 4, ram: 8192, disk: 20}
    limits:
    - {gpu: 1g.10gb, default: 0, projects: {research: 8}}

What is not understood is an error that names its place in the file. Pure.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import os_resource_classes as orc

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import fields
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.partition import layout_yaml
from cyborg_gpu_driver.partition import names as profile_names
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.report import names

VERSION = 'v1'
_WHOLE = policy.Mode.PASSTHROUGH.value
_CLASSES = (orc.FPGA, 'GPU', orc.PGPU, orc.VGPU)
"""That Cyborg 17 takes beside custom ones (``SUPPORT_RESOURCES``)."""
_CUSTOM = re.compile(r'CUSTOM_[A-Z0-9_]+', re.ASCII)
_PROFILE_NAME = re.compile(r'[A-Za-z0-9_-]{1,255}', re.ASCII)
"""Cyborg's own rule, and the length of its column."""
_FLAVOR_NAME = re.compile(r'[^\s\x00-\x1f](?:[^\x00-\x1f]{0,253}'
                          r'[^\s\x00-\x1f])?')
_SPEC_KEY = re.compile(r'[a-zA-Z0-9_:. -]{1,255}', re.ASCII)
"""As Nova's schema of extra specs has it."""
_SPEC_MAX = 255
_DB_MAX = (1 << 31) - 1
"""The greatest number that Nova's and Keystone's databases take."""
_UNLIMITED = -1


@dataclasses.dataclass(frozen=True)
class Definition:
    """What a file asks for.

    :ivar items: what there is to be; projects are named as the file does.
    """

    items: tuple[resources.Item, ...]

    @property
    def projects(self) -> frozenset[str]:
        """Every project that is named."""
        found = set()
        for item in self.items:
            if isinstance(item, resources.Flavor):
                found |= item.projects
            elif isinstance(item, resources.Limit):
                found.add(item.project)
        return frozenset(found)

    def resolved(self, projects: Mapping[str, str]) -> Definition:
        """The same with the UUIDs of its projects.

        :param projects: UUIDs by what the file calls each.
        :raises InvalidValue: if it has two limits for one project then.
        """
        items = tuple(_resolved(item, projects) for item in self.items)
        keys = [item.key for item in items]
        for key in keys:
            if keys.count(key) > 1:
                raise exception.InvalidValue(
                    what=key[0].value, value=key[1],
                    expected='the file has two of it, by name and by UUID; '
                             'leave one')
        return Definition(items)


def parse(text: str, source: str) -> Definition:
    """Read a file's text; JSON is YAML too.

    :param source: the file's name, for complaints.
    :raises DefinitionError: naming the place in the file.
    """
    place = Place(source)
    content = place.mapping(layout_yaml.plain(text, place), ('version',),
                            ('profiles', 'flavors', 'limits'))
    if content['version'] != VERSION:
        raise place.below('version').error(
            f'unknown version {content["version"]!r}',
            f'this reads version: {VERSION}')
    items = []
    for key, read in (('profiles', _profile), ('flavors', _flavor),
                      ('limits', _limit)):
        for where, value in place.below(key).items(content.get(key, [])):
            for item in read(where, value):
                _check_new(where, item, items)
                items.append(item)
    return Definition(tuple(items))


def profile_class(text: str) -> str:
    """The resource class of a profile by its name.

    :param text: ``passthrough``, a GPU instance profile (``1g.10gb+me``, or
        ``1g.10gb.me`` as in a provider's name) or a vGPU type (``T4-2B``).
    :raises InvalidValue: saying what is expected.
    """
    if text == _WHOLE:
        return orc.PGPU
    for parse_name in (profile_names.ProfileName.parse,
                       profile_names.VgpuTypeName.parse):
        try:
            return names.custom(names.VENDOR, str(parse_name(
                re.sub(r'(?<=gb)\.', '+', text))))
        except exception.InvalidValue:
            continue
    raise exception.InvalidValue(
        what='profile of a GPU', value=text,
        expected=f'expected {_WHOLE}, a GPU instance profile such as '
                 '1g.10gb or a vGPU type such as T4-2B')


class Place(layout_yaml.Where):
    """A place in the file, such as ``profiles[2].groups[0].resources``."""

    def below(self, *parts: object) -> Place:
        (name,) = parts
        top = Place(self.source).path
        return dataclasses.replace(self, path=str(
            name if self.path == top else f'{self.path}.{name}'))

    def item(self, number: int) -> Place:
        return dataclasses.replace(self, path=f'{self.path}[{number}]')

    def items(self, value: Any) -> list[tuple[Place, Any]]:
        """The items of a list, each with its place.

        :raises DefinitionError: if it is none.
        """
        if not isinstance(value, list):
            raise self.error(f'{layout_yaml.kind(value)} stands there',
                             'expected a list')
        return [(self.item(number), item)
                for number, item in enumerate(value)]

    def take(self, read: Callable[[Any], Any], value: Any) -> Any:
        """What ``read`` makes of the value here.

        :param read: raises ValueError or InvalidValue if it is not right.
        :raises DefinitionError: then.
        """
        try:
            return read(value)
        except ValueError as error:
            raise self.error(str(error), 'correct it') from error
        except exception.InvalidValue as error:
            raise self.error(f'{error.kwargs["what"]} {value!r}',
                             error.kwargs['expected']) from error

    def error(self, problem: str, expected: str
              ) -> exception.DefinitionError:
        return exception.DefinitionError(
            source=self.source, where=self.path, problem=problem,
            expected=expected)


def _resolved(item, projects):
    if isinstance(item, resources.Flavor):
        return dataclasses.replace(item, projects=frozenset(
            projects[name] for name in item.projects))
    if isinstance(item, resources.Limit):
        return dataclasses.replace(item, project=projects[item.project])
    return item


def _check_new(where, item, items):
    if any(item.key == other.key for other in items):
        raise where.error(f'{item.kind.value} {item.name} is there twice',
                          'leave one')


def _profile(place, value):
    content = place.mapping(value, ('name', 'groups'), ('description',))
    where = place.below('groups')
    groups = [group for inner, item in where.items(content['groups'])
              for group in _groups(inner, item)]
    if not groups:
        raise where.error('nothing stands there', 'expected a list of at '
                          'least one group, such as {gpu: 1g.10gb}')
    yield resources.DeviceProfile(
        _matching(place, content, 'name', _PROFILE_NAME,
                  'letters, digits, - and _'),
        tuple(groups), _description(place, content))


def _groups(place, value):
    content = place.mapping(value, (), ('gpu', 'resources', 'count',
                                        'together', 'required', 'forbidden'))
    resource_class = _class(place, content)
    count = _number(place, content, 'count', 1, default=1)
    together = place.below('together').take(
        fields.truth, content.get('together', False))
    if together and resource_class == orc.PGPU and count > 1:
        raise place.below('together').error(
            f'{count} whole GPUs are not on one GPU', 'leave it out')
    required = _traits(place, content, 'required')
    forbidden = _traits(place, content, 'forbidden')
    if required & forbidden:
        raise place.below('forbidden').error(
            f'{min(required & forbidden)} is required as well',
            'leave it in one of them')
    if together:
        return [resources.group(resource_class, count, required, forbidden)]
    return [resources.group(resource_class, 1, required, forbidden)] * count


def _class(place, content, key='resources'):
    """The resource class of what has ``gpu``, or names its class."""
    if ('gpu' in content) == (key in content):
        raise place.error(
            'both gpu and ' + key if 'gpu' in content
            else f'neither gpu nor {key}',
            f'give one of gpu: 1g.10gb and {key}: CUSTOM_NVIDIA_1G_10GB')
    if 'gpu' in content:
        where = place.below('gpu')
        return where.take(profile_class, where.take(
            fields.text, content['gpu']))
    where = place.below(key)
    found = where.take(fields.text, content[key])
    if (found not in _CLASSES and not _CUSTOM.fullmatch(found)
            or len(found) > names.CUSTOM_NAME_MAX):
        raise where.error(
            f"{found!r} is no resource class of Cyborg's",
            'expected ' + ', '.join(_CLASSES) + ' or CUSTOM_ with capitals, '
            'digits and _, such as CUSTOM_NVIDIA_1G_10GB')
    return found


def _traits(place, content, key):
    found = []
    for where, value in place.below(key).items(content.get(key, [])):
        trait = where.take(fields.text, value)
        if not _CUSTOM.fullmatch(trait) or len(trait) > names.CUSTOM_NAME_MAX:
            raise where.error(
                f'{trait!r} is no trait that Cyborg takes',
                'expected CUSTOM_ with capitals, digits and _, such as '
                'CUSTOM_GPU_ARCH_HOPPER')
        found.append(trait)
    return frozenset(found)


def _flavor(place, value):
    content = place.mapping(
        value, ('name', 'profile', 'vcpus', 'ram', 'disk'),
        ('description', 'public', 'projects', 'extra_specs'))
    public = place.below('public').take(
        fields.truth, content.get('public', 'projects' not in content))
    projects = [where.take(_name, name) for where, name in
                place.below('projects').items(content.get('projects', []))]
    if public and projects:
        raise place.below('projects').error(
            'a public flavor is for all projects', 'leave out one of public '
            'and projects')
    profile = _matching(place, content, 'profile', _PROFILE_NAME,
                        "a device profile's name")
    yield resources.Flavor(
        _matching(place, content, 'name', _FLAVOR_NAME, 'text of up to 255 '
                  'printable characters without blanks around it'),
        _number(place, content, 'vcpus', 1), _number(place, content, 'ram', 1),
        _number(place, content, 'disk', 0), public,
        tuple(sorted({**_extra_specs(place, content),
                      resources.PROFILE_KEY: profile}.items())),
        frozenset(projects), _description(place, content))


def _extra_specs(place, content):
    where = place.below('extra_specs')
    found = content.get('extra_specs', {})
    if not isinstance(found, dict):
        raise where.error(f'{layout_yaml.kind(found)} stands there',
                          'expected keys and texts')
    for key, value in found.items():
        if key == resources.PROFILE_KEY:
            raise where.error(f'{key} stands there', 'give profile: NAME')
        if not _SPEC_KEY.fullmatch(key):
            raise where.error(f'key {key!r}', 'expected letters, digits, '
                              'blanks, - _ : and . alone')
        inner = where.below(key)
        if len(inner.take(fields.text, value)) > _SPEC_MAX:
            raise inner.error(f'{len(value)} characters',
                              f'expected at most {_SPEC_MAX}')
    return found


def _limit(place, value):
    content = place.mapping(value, ('default',),
                            ('gpu', 'resources', 'projects'))
    name = f'class:{_class(place, content)}'
    yield resources.RegisteredLimit(
        name, _number(place, content, 'default', _UNLIMITED))
    where = place.below('projects')
    projects = content.get('projects', {})
    if not isinstance(projects, dict):
        raise where.error(f'{layout_yaml.kind(projects)} stands there',
                          'expected projects and numbers')
    for project in projects:
        yield resources.Limit(name, where.take(_name, project),
                              _number(where, projects, project, _UNLIMITED))


def _name(value):
    """The name or UUID of a project."""
    if not fields.text(value).strip():
        raise ValueError(f"{value!r} is no project's name or UUID")
    return value


def _number(place, content, key, least, default=None):
    value = content.get(key, default)
    if type(value) is not int or not least <= value <= _DB_MAX:
        raise place.below(key).error(
            f'{value!r} stands there',
            f'expected a whole number from {least} to {_DB_MAX}')
    return value


def _matching(place, content, key, pattern, expected):
    where = place.below(key)
    value = where.take(fields.text, content[key])
    if not pattern.fullmatch(value):
        raise where.error(f'{value!r} stands there', f'expected {expected}')
    return value


def _description(place, content):
    where = place.below('description')
    text = where.take(fields.text, content.get('description', ''))
    if resources.unmarked(text)[1]:
        raise where.error(f'{text!r} ends in {resources.MARK}',
                          'leave that out; it is put there')
    return text
