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

"""The configuration file of NVIDIA's device plugin, version v1, strictly.

The schema is that of api/config/v1 in the plugin's repository; GPU feature
discovery reads the same file. The plugin passes over keys that it does not
know, so that a misspelt one is lost in silence: here it is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import fields
from cyborg_gpu_driver.kubernetes import resource
from cyborg_gpu_driver.kubernetes import sharing
from cyborg_gpu_driver.kubernetes import strategy
from cyborg_gpu_driver.partition import layout_yaml

VERSION = 'v1'

_DURATION = re.compile(
    r'infinite|0|[-+]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+')
_UUID = r'[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}'
_DEVICE = re.compile(
    rf'\d+|\d+:\d+|GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d+/\d+',
    re.ASCII)
_METHODS = tuple(method.key for method in sharing.Method)


class Place(layout_yaml.Where):
    """A place in the file, such as ``sharing.mps.resources[0]``."""

    def below(self, *parts: object) -> Place:
        name = '.'.join(map(str, parts))
        top = Place(self.source).path
        return dataclasses.replace(
            self, path=name if self.path == top else f'{self.path}.{name}')

    def item(self, number: int) -> Place:
        return dataclasses.replace(self, path=f'{self.path}[{number}]')

    def error(self, problem: str, expected: str
              ) -> exception.PluginConfigError:
        return exception.PluginConfigError(
            source=self.source, where=self.path, problem=problem,
            expected=expected)

    def items(self, value: Any) -> list[tuple[Place, Any]]:
        """The items of a list that is not empty, each with its place.

        :raises PluginConfigError: if it is none.
        """
        if not isinstance(value, list) or not value:
            raise self.error(f'{layout_yaml.kind(value)} stands there',
                             'expected a list of at least one item')
        return [(self.item(number), item)
                for number, item in enumerate(value)]


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What a value may be."""

    check: Callable[[Any], Any]
    """Raises ValueError if it is not."""
    expected: str


def _choice(*words):
    def check(value):
        if value not in words:
            raise ValueError(f'{value!r} is none of them')
    return _Kind(check, 'expected ' + ', '.join(words))


def _list_strategy(value):
    for word in value if isinstance(value, list) else [value]:
        _LIST_STRATEGY.check(word)


def _duration(value):
    if not (type(value) in (int, float)
            or (isinstance(value, str) and _DURATION.fullmatch(value))):
        raise ValueError(f'{value!r} is not a duration')


_TRUTH = _Kind(fields.truth, 'expected true or false')
_TEXT = _Kind(fields.text, 'expected text')
_LIST_STRATEGY = _choice('envvar', 'volume-mounts', 'cdi-annotations',
                         'cdi-cri')

_FLAGS: Mapping[str, _Kind] = {
    'migStrategy': _choice(*(item.value for item in strategy.Strategy)),
    'failOnInitError': _TRUTH,
    'mpsRoot': _TEXT,
    'nvidiaDriverRoot': _TEXT,
    'nvidiaDevRoot': _TEXT,
    'gdrcopyEnabled': _TRUTH,
    'gdsEnabled': _TRUTH,
    'mofedEnabled': _TRUTH,
    'useNodeFeatureAPI': _TRUTH,
    'deviceDiscoveryStrategy': _choice('auto', 'nvml', 'tegra'),
}
_PLUGIN: Mapping[str, _Kind] = {
    'passDeviceSpecs': _TRUTH,
    'deviceListStrategy': _Kind(
        _list_strategy, _LIST_STRATEGY.expected + ', or a list of them'),
    'deviceIDStrategy': _choice('uuid', 'index'),
    'cdiAnnotationPrefix': _TEXT,
    'nvidiaCTKPath': _TEXT,
    'containerDriverRoot': _TEXT,
    'sharedDevicesAllocationPolicy': _choice('distributed', 'packed'),
}
_DISCOVERY: Mapping[str, _Kind] = {
    'oneshot': _TRUTH,
    'noTimestamp': _TRUTH,
    'sleepInterval': _Kind(
        _duration, 'expected nanoseconds, infinite, or a duration such as '
                   '60s'),
    'outputFile': _TEXT,
    'machineTypeFile': _TEXT,
}


def parse(text: str, source: str) -> dict[str, Any]:
    """Read a file's text.

    :param source: its name, for complaints.
    :returns: its plain values, all of them understood.
    :raises PluginConfigError: naming file and place.
    """
    where = Place(source)
    value = layout_yaml.plain(text, where)
    where.mapping(value, (), ('version', 'flags', 'resources', 'sharing',
                              'imex'))
    if value.get('version', VERSION) != VERSION:
        raise where.below('version').error(
            f'unknown version {value["version"]!r}', f'expected {VERSION}')
    for key, checked in _SECTIONS.items():
        if key in value:
            checked(value[key], where.below(key))
    strategy_ = value.get('flags', {}).get('migStrategy')
    if (strategy_ == strategy.Strategy.MIXED.value
            and sharing.Method.MPS.key in value.get('sharing', {})):
        raise where.below('sharing').error(
            'mps with migStrategy mixed, which the plugin refuses',
            'use timeSlicing, or migStrategy none')
    return value


def _flags(value, where):
    _scalars(value, where, _FLAGS, ('plugin', 'gfd'))
    for key, table in (('plugin', _PLUGIN), ('gfd', _DISCOVERY)):
        if key in value:
            _scalars(value[key], where.below(key), table)


def _scalars(value, where, table, others=()):
    where.mapping(value, (), (*table, *others))
    for key, kind in table.items():
        if key in value:
            _one(value[key], where.below(key), kind)


def _one(value, where, kind):
    try:
        kind.check(value)
    except ValueError as error:
        raise where.error(str(error), kind.expected) from error


def _resources(value, where):
    where.mapping(value, (), ('gpus', 'mig'))
    for key, listed in value.items():
        for place, item in where.below(key).items(listed):
            place.mapping(item, ('pattern', 'name'))
            _one(item['pattern'], place.below('pattern'), _TEXT)
            _name(item['name'], place.below('name'))


def _sharing(value, where):
    where.mapping(value, (), _METHODS)
    if len(value) > 1:
        raise where.error('both ' + ' and '.join(_METHODS) + ' stand there',
                          'a node has one of them: leave one')
    for key, section in value.items():
        _replicated(section, where.below(key))


def _replicated(value, where):
    options = ('renameByDefault', 'failRequestsGreaterThanOne')
    where.mapping(value, ('resources',), options)
    for key in options:
        if key in value:
            _one(value[key], where.below(key), _TRUTH)
    seen = set()
    for place, item in where.below('resources').items(value['resources']):
        place.mapping(item, ('name', 'replicas'), ('rename', 'devices'))
        name = _name(item['name'], place.below('name'))
        if name in seen:
            raise place.error(f'{name} stands there twice', 'leave one')
        seen.add(name)
        _replicas(item['replicas'], place.below('replicas'))
        if 'rename' in item:
            _name(item['rename'], place.below('rename'))
        if 'devices' in item:
            _devices(item['devices'], place.below('devices'))


def _name(value, where):
    """A resource's full name."""
    _one(value, where, _TEXT)
    try:
        return resource.full_name(value)
    except exception.InvalidValue as error:
        raise where.error(str(error), 'correct the name') from error


def _replicas(value, where):
    if type(value) is not int or value < sharing.FEWEST:
        raise where.error(f'{value!r} replicas',
                          f'expected a number from {sharing.FEWEST}')


def _devices(value, where):
    listed = value if isinstance(value, list) else []
    if not (value == 'all' or (type(value) is int and value > 0) or (
            listed and all(_DEVICE.fullmatch(str(item))
                           for item in listed))):
        raise where.error(
            f'{value!r} is not a choice of devices',
            'expected all, a number from 1, or a list of indices of GPUs '
            '(0) or MIG devices ("0:1") and UUIDs')


def _imex(value, where):
    where.mapping(value, (), ('channelIDs', 'required'))
    channels = value.get('channelIDs', [])
    if channels not in ([], [0]) or any(type(item) is not int
                                        for item in channels):
        raise where.below('channelIDs').error(
            f'{channels!r} stands there', 'expected [] or [0]')
    if 'required' in value:
        _one(value['required'], where.below('required'), _TRUTH)


_SECTIONS: Mapping[str, Callable[[Any, Place], None]] = {
    'flags': _flags, 'resources': _resources, 'sharing': _sharing,
    'imex': _imex}
