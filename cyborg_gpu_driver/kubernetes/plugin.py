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

"""What NVIDIA's device plugin offers of a node, and its configuration file."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

# What NVIDIA's device plugin offers of a node under each MIG strategy.
#
# The rules are those of its internal/rm/device_map.go:
#
# ====== ==================================================================
# none   every GPU is one ``nvidia.com/gpu``; MIG devices are ignored
# single MIG devices are ``nvidia.com/gpu``. All MIG devices of all GPUs
#        must be alike, or no GPU in MIG mode; otherwise the plugin fails
# mixed  MIG devices are ``nvidia.com/mig-<profile>``, other GPUs are
#        ``nvidia.com/gpu``. Each compute instance must fill its GPU
#        instance; otherwise the plugin finds no resource for it and fails
# ====== ==================================================================


class Strategy(enum.Enum):
    """The values of ``flags.migStrategy``."""

    NONE = 'none'
    SINGLE = 'single'
    MIXED = 'mixed'


def suited(node: kubernetes_node.Node) -> Strategy:
    """Return the simplest strategy that offers everything of the layout."""
    if not node.with_mig:
        return Strategy.NONE
    return Strategy.MIXED if _not_single(node) else Strategy.SINGLE


def resources(node: kubernetes_node.Node, strategy: Strategy
              ) -> dict[str, int]:
    """Return how many of each resource the plugin finds, without sharing.

    :raises InvalidValue: if the plugin would fail, or find nothing.
    """
    reason = _REASONS[strategy](node)
    if reason:
        raise exception.InvalidValue(
            what='strategy', value=strategy.value, expected=reason)
    found: collections.Counter[str] = collections.Counter()
    if strategy is Strategy.NONE:
        found[kubernetes_node.GPU] = len(node.gpus)
    else:
        found[kubernetes_node.GPU] = len(node.whole)
        for _gpu, devices in node.devices:
            resource = (kubernetes_node.GPU if strategy is Strategy.SINGLE
                        else kubernetes_node.of_profile(devices.name))
            found[resource] += devices.count
    return {name: count for name, count in found.items() if count}


def notes(node: kubernetes_node.Node, strategy: Strategy) -> tuple[str, ...]:
    """Return notes on what works, but perhaps not as a user expects."""
    if strategy is Strategy.NONE:
        return tuple(
            f'{node.gpu_name(index)} is in MIG mode ({item.wanted}): with '
            'strategy none it is assigned as one GPU and its MIG devices are '
            'not offered'
            for index, item in enumerate(node.gpus) if item.enabled)
    return tuple(
        f'{node.gpu_name(index)} is in MIG mode without MIG devices: it is '
        'not offered' for index, item in enumerate(node.gpus)
        if item.enabled and not item.wanted.devices)


def _no_gpu(node):
    """Return why strategy none offers nothing; None if it offers GPUs."""
    return None if node.gpus else 'the node has no GPU'


def _not_single(node):
    """Return why the plugin fails with strategy single; None if it works."""
    if not node.with_mig:
        return _no_gpu(node)
    for index, item in enumerate(node.gpus):
        if not item.enabled:
            return (f'{node.gpu_name(index)} is not in MIG mode, but others '
                    'are; put all or none in MIG mode, or use mixed')
        if not item.wanted.devices:
            return (f'{node.gpu_name(index)} is in MIG mode without MIG '
                    'devices; partition it like the others, or use mixed')
    kinds = {(devices.name, _attributes(devices))
             for _gpu, devices in node.devices}
    if len(kinds) > 1:
        names = target.listed(collections.Counter(
            name for name, _what in sorted(kinds)))
        return ('all MIG devices must have the same profile, but there are '
                f'{names}; use mixed')
    return None


def _not_mixed(node):
    """Return why the plugin fails with strategy mixed; None if it works."""
    for _gpu, devices in node.devices:
        if devices.slices != devices.profile.slices:
            return (f'{devices.name} is a part of a {devices.profile.name}, '
                    'and only whole GPU instances have a resource; create '
                    f'{devices.profile.name}, or use single for a node that '
                    f'has only {devices.name}')
    if not node.whole and not node.devices:
        return ('every GPU is in MIG mode without MIG devices, so there is '
                'nothing to offer; partition them, or turn MIG mode off')
    return None


def _attributes(devices):
    """Return what the plugin compares (nvmlDeviceAttributes_t)."""
    profile = devices.profile
    return (profile.slices, devices.slices, profile.memory_mib,
            profile.multiprocessors, profile.copy_engines,
            repr(profile.engines))


_REASONS = {Strategy.NONE: _no_gpu, Strategy.SINGLE: _not_single,
            Strategy.MIXED: _not_mixed}


# Sharing of a node's GPUs by time-slicing or by CUDA's MPS.
#
# Both offer one device several times. They exclude each other, so a node has
# at most one of them (README of NVIDIA's device plugin).

FEWEST = 2
"""Minimum number of replicas that the plugin accepts."""
MPS_ROOT = '/run/nvidia/mps'
"""The MPS directory in the charts of the plugin and of the GPU operator."""
_MPS_CLIENTS = 48
_MPS_CLIENTS_OLD = 16
_OLD = frozenset({'kepler', 'maxwell', 'pascal', 'volta'})
"""Architectures below compute capability 7.5. MPS serves 16 clients on them
and 48 on newer ones (cmd/mps-control-daemon/mps/device.go)."""


class Method(enum.Enum):
    """How to share; the values are those of the label ``sharing-strategy``."""

    TIME_SLICING = 'time-slicing'
    MPS = 'mps'

    @property
    def key(self) -> str:
        """The name of its section below ``sharing``."""
        return 'mps' if self is Method.MPS else 'timeSlicing'


NOTES = {
    Method.TIME_SLICING:
        'Replicas share a device in time slices: their memory is not '
        'isolated, one can use all of it, and a fault in one can terminate '
        'all.',
    Method.MPS:
        'MPS gives each replica an equal part of memory and compute units, '
        'but isolates errors less than MIG: a fatal fault in one can '
        'terminate all.',
}


@dataclasses.dataclass(frozen=True)
class Sharing:
    """The resources of a node to offer several times, and how often."""

    method: Method
    replicas: int
    resources: tuple[str, ...]
    """Full names, each once."""
    rename: bool = False
    """Whether to offer them as ``<name>.shared``."""
    several: bool = False
    """Whether a container may request more than one replica."""

    def to_dict(self) -> dict[str, Any]:
        """Return the section ``sharing`` of the plugin's configuration."""
        return {self.method.key: {
            'renameByDefault': self.rename,
            'failRequestsGreaterThanOne': not self.several,
            'resources': [{'name': name, 'replicas': self.replicas}
                          for name in self.resources]}}

    def applies_to(self, name: str) -> bool:
        """Whether a resource is offered several times."""
        return name in self.resources


def shared(method: Method, replicas: int, asked: Iterable[str],
           node: kubernetes_node.Node,
           strategy: Strategy, rename: bool = False,
           several: bool = False) -> Sharing:
    """Return a sharing that the device plugin accepts on a node.

    :param asked: names of resources, with or without prefix; empty for all
        resources of the node.
    :raises InvalidValue: names what the plugin would refuse or ignore.
    """
    there = resources(node, strategy)
    names = tuple(dict.fromkeys(
        kubernetes_node.full_name(name) for name in asked)) or tuple(there)
    for name in names:
        if name not in there:
            raise exception.InvalidValue(
                what='resource', value=name,
                expected=f'with strategy {strategy.value} the layout offers '
                         + ', '.join(there))
    if replicas < FEWEST:
        raise exception.InvalidValue(
            what='replicas', value=replicas,
            expected=f'expected {FEWEST} or more; leave it out to share '
                     'nothing')
    if method is Method.MPS:
        _check_mps(replicas, node, strategy)
    return Sharing(method, replicas, names, rename, several)


def _check_mps(replicas, node, strategy):
    if strategy is Strategy.MIXED:
        raise _no_mps('the device plugin rejects it with strategy mixed; use '
                      'none, or time-slicing')
    if node.with_mig:
        raise _no_mps('the device plugin rejects it for GPUs in MIG mode; use '
                      'time-slicing, or turn MIG mode off')
    for index, item in enumerate(node.gpus):
        most = (_MPS_CLIENTS_OLD if item.gpu.architecture in _OLD
                else _MPS_CLIENTS)
        if replicas > most:
            raise exception.InvalidValue(
                what='replicas', value=replicas,
                expected=f'MPS serves at most {most} clients on '
                         f'{node.gpu_name(index)}, '
                         f'{item.gpu.model or item.gpu.device_id}')


def _no_mps(reason):
    return exception.InvalidValue(
        what='sharing', value=Method.MPS.value, expected=reason)


def allocatable(there: Mapping[str, int], sharing: Sharing | None
                ) -> dict[str, int]:
    """Return what the node offers, by the name that a pod requests."""
    offered = {}
    for name, count in there.items():
        if sharing is not None and sharing.applies_to(name):
            shown = name + kubernetes_node.SHARED if sharing.rename else name
            offered[shown] = count * sharing.replicas
        else:
            offered[name] = count
    return offered


# The schema of the configuration file of NVIDIA's device plugin.
#
# The schema follows api/config/v1 in the plugin's repository.

VERSION = 'v1'
RESOURCE_NAME = 'resource-name'
"""The format of a resource's name: ``resource.full_name`` reads it."""

_UUID = '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}'
_NAME = {'type': 'string', 'format': RESOURCE_NAME,
         'description': 'the name of a resource',
         'examples': ['nvidia.com/gpu']}
_LIST_STRATEGY = {'enum': ['envvar', 'volume-mounts', 'cdi-annotations',
                           'cdi-cri']}
_DURATION = 'nanoseconds, infinite, or a duration'
_DEVICE = ('the index of a GPU (0) or of a MIG device ("0:1"), or the UUID '
           'of either')

_FLAGS = schema.mapping({}, {
    'migStrategy': {'enum': [item.value for item in Strategy]},
    'failOnInitError': schema.TRUTH,
    'mpsRoot': schema.TEXT,
    'nvidiaDriverRoot': schema.TEXT,
    'nvidiaDevRoot': schema.TEXT,
    'gdrcopyEnabled': schema.TRUTH,
    'gdsEnabled': schema.TRUTH,
    'mofedEnabled': schema.TRUTH,
    'useNodeFeatureAPI': schema.TRUTH,
    'deviceDiscoveryStrategy': {'enum': ['auto', 'nvml', 'tegra']},
    'plugin': schema.mapping({}, {
        'passDeviceSpecs': schema.TRUTH,
        'deviceListStrategy': {'anyOf': [
            _LIST_STRATEGY, schema.listing(_LIST_STRATEGY)]},
        'deviceIDStrategy': {'enum': ['uuid', 'index']},
        'cdiAnnotationPrefix': schema.TEXT,
        'nvidiaCTKPath': schema.TEXT,
        'containerDriverRoot': schema.TEXT,
        'sharedDevicesAllocationPolicy': {'enum': ['distributed',
                                                   'packed']}}),
    'gfd': schema.mapping({}, {
        'oneshot': schema.TRUTH,
        'noTimestamp': schema.TRUTH,
        'sleepInterval': {
            'description': _DURATION, 'examples': ['60s'],
            'anyOf': [
                {'type': 'number'},
                schema.matching(
                    r'infinite|0|[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)'
                    '(ns|us|µs|μs|ms|s|m|h))+', _DURATION, '60s')]},
        'outputFile': schema.TEXT,
        'machineTypeFile': schema.TEXT})})
_NAMED = schema.listing(
    schema.mapping({'pattern': schema.TEXT, 'name': _NAME}), 1)
_REPLICATED = schema.mapping({
    'resources': schema.listing(schema.mapping({
        'name': _NAME,
        'replicas': schema.integer(FEWEST)}, {
        'rename': _NAME,
        'devices': {'anyOf': [
            {'const': 'all'},
            schema.integer(1),
            schema.listing({
                'description': _DEVICE,
                'anyOf': [
                    {**schema.integer(0), 'description': _DEVICE},
                    schema.matching(
                        f'[0-9]+(:[0-9]+)?|(GPU|MIG)-{_UUID}|'
                        f'MIG-GPU-{_UUID}/[0-9]+/[0-9]+', _DEVICE)]},
                1)]}}), 1)}, {
    'renameByDefault': schema.TRUTH,
    'failRequestsGreaterThanOne': schema.TRUTH})

PLUGIN_CONFIG: dict[str, Any] = schema.mapping({}, {
    'version': {'const': VERSION},
    'flags': _FLAGS,
    'resources': schema.mapping({}, {'gpus': _NAMED, 'mig': _NAMED}),
    'sharing': schema.mapping(
        {}, {method.key: _REPLICATED for method in Method},
        maxProperties=1, description='only timeSlicing or mps'),
    'imex': schema.mapping({}, {
        'channelIDs': schema.listing({'type': 'integer', 'const': 0}, 0, 1),
        'required': schema.TRUTH})})


# The configuration file of NVIDIA's device plugin, version v1, strictly.
#
# GPU feature discovery reads the same file. The plugin silently ignores
# unknown keys, for example a misspelt one. Here an unknown key is an error.

def parse_config(text: str, source: str) -> dict[str, Any]:
    """Read a file's text.

    :param source: its name, for messages.
    :returns: its plain values, all of which the plugin knows.
    :raises DocumentError: names the file and the place.
    """
    place = schema.Place(source)
    value = layout_yaml.plain(text, place)
    schema.check(value, PLUGIN_CONFIG, place,
                 {RESOURCE_NAME: kubernetes_node.full_name})
    shared = value.get('sharing', {})
    mixed = value.get('flags', {}).get(
        'migStrategy') == Strategy.MIXED.value
    if mixed and Method.MPS.key in shared:
        raise place.below('sharing').error(
            'mps with migStrategy mixed, which the plugin rejects',
            'use timeSlicing, or migStrategy none')
    for method, section in shared.items():
        _check_names(section['resources'],
                     place.below('sharing', method, 'resources'))
    return value


def _check_names(resources, place):
    """Check that each name appears once, with or without its prefix."""
    seen = set()
    for number, item in enumerate(resources):
        name = kubernetes_node.full_name(item['name'])
        if name in seen:
            raise place.below(number).error(f'{name} appears twice',
                                            'keep one')
        seen.add(name)
