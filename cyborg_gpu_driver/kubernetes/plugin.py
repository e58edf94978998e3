# SPDX-License-Identifier: Apache-2.0

"""What NVIDIA's device plugin offers of a node, and its configuration file."""

from __future__ import annotations

import collections
import dataclasses
import enum
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.partition import target

# Names of the resources of a Kubernetes node, such as ``nvidia.com/gpu``.
#
# The rules are those of NVIDIA's device plugin (api/config/v1/resources.go):
# the prefix may be left out, the full name has at most 63 characters, and the
# part after the prefix is a DNS subdomain.

PREFIX = 'nvidia.com/'
GPU = PREFIX + 'gpu'
SHARED = '.shared'
"""What renameByDefault adds to the name of a shared resource."""

_LONGEST = 63
_SUBDOMAIN = re.compile(
    r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*',
    re.ASCII)


def full_name(text: str) -> str:
    """Return a resource's name with its prefix.

    :raises InvalidValue: if the device plugin would not accept it.
    """
    name = text if text.startswith(PREFIX) else PREFIX + text
    if (len(name) > _LONGEST
            or not _SUBDOMAIN.fullmatch(name[len(PREFIX):])):
        raise exception.InvalidValue(
            what='resource', value=text,
            expected=f'expected {PREFIX}NAME of at most {_LONGEST} '
                     'characters, NAME in lower case letters, digits, dots '
                     f'and hyphens, such as {GPU} or {PREFIX}mig-1g.10gb')
    return name


def of_profile(name: str) -> str:
    """Return the resource of a MIG profile under strategy ``mixed``.

    :param name: the profile as NVML names it: ``1g.10gb+me``.
    """
    return f'{PREFIX}mig-{name.replace("+", ".")}'


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
            what='the layout with strategy', value=strategy.value,
            expected=reason)
    found: collections.Counter[str] = collections.Counter()
    if strategy is Strategy.NONE:
        found[GPU] = len(node.gpus)
    else:
        found[GPU] = len(node.whole)
        for devices in node.devices:
            resource = (GPU if strategy is Strategy.SINGLE
                        else of_profile(devices.name))
            found[resource] += devices.count
    return {name: count for name, count in found.items() if count}


def notes(node: kubernetes_node.Node, strategy: Strategy) -> tuple[str, ...]:
    """Return notes on what works, but perhaps not as a user expects."""
    if strategy is Strategy.NONE:
        return tuple(
            f'{node.gpu_name(index)} is in MIG mode ({item.wanted}): with '
            'strategy none it is assigned as one GPU and its MIG devices are '
            'not offered'
            for index, item in enumerate(node.gpus) if item.wanted.enabled)
    return tuple(
        f'{node.gpu_name(index)} is in MIG mode without MIG devices: it is '
        'not offered' for index, item in enumerate(node.gpus)
        if item.wanted.enabled and not item.wanted.devices)


def _no_gpu(node: kubernetes_node.Node) -> str | None:
    """Return why strategy none offers nothing; None if it offers GPUs."""
    return None if node.gpus else 'the node has no GPU'


def _not_single(node: kubernetes_node.Node) -> str | None:
    """Return why the plugin fails with strategy single; None if it works."""
    if not node.with_mig:
        return _no_gpu(node)
    for index, item in enumerate(node.gpus):
        if not item.wanted.enabled:
            return (f'{node.gpu_name(index)} is not in MIG mode, but others '
                    'are; put all or none in MIG mode, or use mixed')
        if not item.wanted.devices:
            return (f'{node.gpu_name(index)} is in MIG mode without MIG '
                    'devices; partition it like the others, or use mixed')
    kinds = {(devices.name, _attributes(devices))
             for devices in node.devices}
    if len(kinds) > 1:
        names = target.listed(collections.Counter(
            name for name, _what in sorted(kinds)))
        return ('all MIG devices must have the same profile, but there are '
                f'{names}; use mixed')
    return None


def _not_mixed(node: kubernetes_node.Node) -> str | None:
    """Return why the plugin fails with strategy mixed; None if it works."""
    for devices in node.devices:
        if devices.slices != devices.profile.slices:
            return (f'{devices.name} is a part of a {devices.profile.name}, '
                    'and only whole GPU instances have a resource; create '
                    f'{devices.profile.name}, or use single for a node that '
                    f'has only {devices.name}')
    if not node.whole and not node.devices:
        return ('every GPU is in MIG mode without MIG devices, so there is '
                'nothing to offer; partition them, or turn MIG mode off')
    return None


def _attributes(devices: target.WantedDevices) -> tuple[Any, ...]:
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
        full_name(name) for name in asked)) or tuple(there)
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


def _check_mps(replicas: int, node: kubernetes_node.Node, strategy: Strategy
               ) -> None:
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


def _no_mps(reason: str) -> exception.InvalidValue:
    return exception.InvalidValue(
        what='sharing', value=Method.MPS.value, expected=reason)


def allocatable(there: Mapping[str, int], sharing: Sharing | None
                ) -> dict[str, int]:
    """Return what the node offers, by the name that a pod requests."""
    offered = {}
    for name, count in there.items():
        if sharing is not None and name in sharing.resources:
            shown = name + SHARED if sharing.rename else name
            offered[shown] = count * sharing.replicas
        else:
            offered[name] = count
    return offered
