# SPDX-License-Identifier: Apache-2.0

"""Parse the definition file of a cloud's profiles, flavors and limits.

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

An invalid part is an error that names its place in the file. This module does
no I/O.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import os_resource_classes as orc

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.cloud import baremetal
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.partition import names as profile_names
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml
from cyborg_gpu_driver.report.content import names

VERSION = 'v1'
GPU_PROFILE = 'gpu-profile'
"""The format of a GPU's profile, which ``definition.profile_class`` parses."""
NODE_CLASS = 'node-class'
"""The format of a resource class of Ironic's nodes."""

_CLASSES = (orc.FPGA, 'GPU', orc.PGPU, orc.VGPU)
"""Resource classes that Cyborg 17 accepts beside custom ones
(``SUPPORT_RESOURCES``)."""
_DB_MAX = (1 << 31) - 1
"""The greatest number that Nova's and Keystone's databases can store."""
_UNLIMITED = -1
_SHOWN_TRAIT = re.compile(r'CUSTOM_GPU_(?:ARCH|MEMORY|MODEL)_(.+)')
"""What a description says of the traits that a group requires."""
_CUSTOM = 'CUSTOM_[A-Z0-9_]+'
_CUSTOM_TEXT = 'CUSTOM_ followed by upper-case letters, digits and _'

# Cyborg's own pattern, and the length of its database column.
_PROFILE_NAME = schema.matching(
    '[A-Za-z0-9_-]{1,255}', 'up to 255 letters, digits, - and _',
    'slice-10gb')
_FLAVOR_NAME = schema.matching(
    r'[^\s\x00-\x1f](?:[^\x00-\x1f]{0,253}[^\s\x00-\x1f])?',
    'text of up to 255 printable characters without leading or trailing '
    'spaces')
# As in Nova's schema of extra specs.
_SPEC_KEY = schema.matching(
    '[a-zA-Z0-9_:. -]{1,255}', 'letters, digits, spaces, - _ : and .')
_PROJECT = schema.matching(
    r'\s*\S(?s:.*)', 'the name or UUID of a project')
_RESOURCE_CLASS = {
    **schema.matching(
        f'{"|".join(_CLASSES)}|{_CUSTOM}', 'a resource class of Cyborg: '
        f'{", ".join(_CLASSES)}, or {_CUSTOM_TEXT}', 'CUSTOM_NVIDIA_1G_10GB'),
    'maxLength': names.CUSTOM_NAME_MAX}
_TRAIT = {
    **schema.matching(_CUSTOM, f'a trait that Cyborg accepts: {_CUSTOM_TEXT}',
                      'CUSTOM_GPU_ARCH_HOPPER'),
    'maxLength': names.CUSTOM_NAME_MAX}
_GPU = {'type': 'string', 'format': GPU_PROFILE,
        'description': "a GPU's profile", 'examples': ['1g.10gb']}
_GPU_OR_CLASS = {'gpu': _GPU, 'resources': _RESOURCE_CLASS}
_ONE_OF_THEM = [{'required': ['gpu']}, {'required': ['resources']}]
_GROUP_TEXT = 'a mapping with one of the keys gpu and resources'

_GROUP = schema.mapping({}, {
    **_GPU_OR_CLASS,
    'count': schema.integer(1, _DB_MAX),
    'together': schema.TRUTH,
    'required': schema.listing(_TRAIT),
    'forbidden': schema.listing(_TRAIT)}, oneOf=_ONE_OF_THEM,
    description=_GROUP_TEXT)
_NODES = schema.mapping({
    'resource_class': {
        'type': 'string', 'format': NODE_CLASS,
        'description': 'the resource class of the nodes',
        'examples': ['baremetal.gpu']}}, layout_yaml.DEVICES['properties'])
_PROFILE = schema.mapping({
    'name': _PROFILE_NAME,
    'groups': schema.listing(_GROUP, 1)}, {
    'description': schema.TEXT, 'nodes': _NODES})
_FLAVOR = schema.mapping({
    'name': _FLAVOR_NAME,
    'profile': {**_PROFILE_NAME, 'description': "a device profile's name"},
    'vcpus': schema.integer(1, _DB_MAX),
    'ram': schema.integer(1, _DB_MAX),
    'disk': schema.integer(0, _DB_MAX)}, {
    'description': schema.TEXT,
    'public': schema.TRUTH,
    'projects': schema.listing(_PROJECT),
    'extra_specs': {
        'type': 'object', 'propertyNames': _SPEC_KEY,
        'additionalProperties': {'type': 'string', 'maxLength': 255}}})
_LIMIT = schema.mapping({'default': schema.integer(_UNLIMITED, _DB_MAX)}, {
    **_GPU_OR_CLASS,
    'projects': {
        'type': 'object', 'propertyNames': _PROJECT,
        'additionalProperties': schema.integer(_UNLIMITED, _DB_MAX)}},
    oneOf=_ONE_OF_THEM, description=_GROUP_TEXT)
DEFINITION = schema.mapping({'version': {'const': VERSION}}, {
    'profiles': schema.listing(_PROFILE),
    'flavors': schema.listing(_FLAVOR),
    'limits': schema.listing(_LIMIT)})
_PASSTHROUGH = policy.Mode.PASSTHROUGH.value
_GROUP_NAME = re.compile(r'nvlink-[1-9][0-9]?_[A-Z0-9_]+', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Definition:
    """The content of a definition file."""

    items: tuple[resources.Item, ...]
    nodes: tuple[baremetal.NodeProfile, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Known:
    """What is known while a file is parsed.

    :ivar project: returns the UUID of a project.
    :ivar nodes: the profiles for bare metal, by name.
    :ivar texts: the descriptions of the profiles, by name.
    """

    project: Callable[[str], str]
    nodes: dict[str, baremetal.NodeProfile] = dataclasses.field(
        default_factory=dict)
    texts: dict[str, str] = dataclasses.field(default_factory=dict)


def parse(text: str, source: str,
          project: Callable[[str], str] = lambda name: name) -> Definition:
    """Parse a file's text. JSON is valid, because it is YAML.

    :param project: returns the UUID of a project of the file.
    """
    place = schema.Place(source)
    content = layout_yaml.plain(text, place)
    schema.check(content, DEFINITION, place, {
        GPU_PROFILE: profile_class,
        NODE_CLASS: baremetal.class_in_placement})
    items: list[resources.Item] = []
    known = _Known(project)
    for key, read in (('profiles', _profile), ('flavors', _flavor),
                      ('limits', _limit)):
        for number, value in enumerate(content.get(key, ())):
            where = place.below(key, number)
            for item in read(where, value, known):
                _check_new(where, item, items)
                items.append(item)
    return Definition(tuple(items), tuple(known.nodes.values()))


def profile_class(text: str) -> str:
    """Return the resource class of a profile by its name.

    :param text: ``passthrough``, a GPU instance profile (``1g.10gb+me``, or
        ``1g.10gb.me`` as in a provider's name), a vGPU type (``T4-2B``) or a
        group of GPUs of a model (``nvlink-2_H100_NVL``).
    """
    if text == _PASSTHROUGH:
        return orc.PGPU
    if _GROUP_NAME.fullmatch(text):
        return names.custom(names.VENDOR, text)
    for parse_name in (profile_names.ProfileName.parse,
                       profile_names.VgpuTypeName.parse):
        try:
            return names.custom(names.VENDOR, str(parse_name(
                re.sub(r'(?<=gb)\.', '+', text))))
        except exception.InvalidValue:
            continue
    raise exception.InvalidValue(
        what='profile of a GPU', value=text,
        expected=f'expected {_PASSTHROUGH}, a GPU instance profile such as '
                 '1g.10gb, a vGPU type such as T4-2B, or a group of GPUs with '
                 'their model such as nvlink-2_H100_NVL')


def _check_new(where: schema.Place, item: resources.Item,
               items: Iterable[resources.Item]) -> None:
    if any(item.key == other.key for other in items):
        raise where.error(f'{item.kind.value} {item.name} appears twice',
                          'keep one')


def _profile(place: schema.Place, value: Mapping[str, Any], known: _Known
             ) -> Iterator[resources.Item]:
    profile = resources.DeviceProfile(
        value['name'],
        tuple(group for number, item in enumerate(value['groups'])
              for group in _groups(place.below('groups', number), item)),
        _description(place, value) or ' + '.join(map(_words,
                                                     value['groups'])))
    known.texts[profile.name] = profile.description
    if 'nodes' in value:
        made = baremetal.make(profile, value['nodes'], place)
        known.nodes[profile.name] = made
        yield made.template
    else:
        yield profile


def _words(group: Mapping[str, Any]) -> str:
    """Say in words for tenants what a group of the file gives."""
    name = group.get('gpu', '')
    if 'resources' in group:
        text = group['resources']
    elif name == _PASSTHROUGH:
        text = 'whole GPU'
    elif _GROUP_NAME.fullmatch(name):
        text = f'GPU group {name}'
    else:
        text = ('vGPU ' if '-' in name.partition('gb')[0]
                else 'MIG slice ') + name
    traits = [match[1].replace('_', ' ') for match in map(
        _SHOWN_TRAIT.fullmatch, group.get('required', ())) if match]
    return (f'{group.get("count", 1)} x {text}'
            + (f' ({", ".join(traits)})' if traits else ''))


def _groups(place: schema.Place, value: Mapping[str, Any]
            ) -> list[resources.Group]:
    resource_class = _class(value)
    count = value.get('count', 1)
    together = value.get('together', False)
    if together and resource_class == orc.PGPU and count > 1:
        raise place.below('together').error(
            f'{count} whole GPUs cannot be on one GPU', 'leave it out')
    required = frozenset(value.get('required', ()))
    forbidden = frozenset(value.get('forbidden', ()))
    if required & forbidden:
        raise place.below('forbidden').error(
            f'{min(required & forbidden)} is also required',
            'keep it in one of them only')
    if together:
        return [resources.group(resource_class, count, required, forbidden)]
    return [resources.group(resource_class, 1, required, forbidden)] * count


def _class(value: Mapping[str, Any]) -> str:
    """The resource class of an item with the key ``gpu`` or ``resources``."""
    return (profile_class(value['gpu']) if 'gpu' in value
            else value['resources'])


def _flavor(place: schema.Place, value: Mapping[str, Any], known: _Known
            ) -> Iterator[resources.Item]:
    projects = frozenset(map(known.project, value.get('projects', ())))
    public = value.get('public', 'projects' not in value)
    if public and projects:
        raise place.below('projects').error(
            'a public flavor is available to all '
            'projects', 'remove public or projects')
    specs = value.get('extra_specs', {})
    if resources.PROFILE_KEY in specs:
        raise place.below('extra_specs').error(
            f'the key {resources.PROFILE_KEY} is set from the device profile',
            'give profile: NAME instead')
    metal = known.nodes.get(value['profile'])
    if metal is None:
        # Skyline shows a flavor with this extra spec among those with GPUs.
        specs = {':category': 'vgpu', **specs,
                 resources.PROFILE_KEY: value['profile']}
    found = resources.Flavor(
        value['name'], value['vcpus'], value['ram'], value['disk'], public,
        tuple(sorted(specs.items())), projects,
        _description(place, value) or known.texts.get(value['profile'], ''))
    yield found if metal is None else metal.flavor(found)


def _limit(place: schema.Place, value: Mapping[str, Any], known: _Known
           ) -> Iterator[resources.Item]:
    name = f'class:{_class(value)}'
    yield resources.RegisteredLimit(name, value['default'])
    for project, limit in value.get('projects', {}).items():
        yield resources.Limit(name, known.project(project), limit)


def _description(place: schema.Place, value: Mapping[str, Any]) -> str:
    text = value.get('description', '')
    if resources.unmarked(text)[1]:
        raise place.below('description').error(
            f'ends in {resources.MARK}',
            'remove it; the command adds it')
    return text
