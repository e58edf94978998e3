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

"""What NVIDIA's device plugin offers of a node under each MIG strategy.

The rules are those of its internal/rm/device_map.go:

====== ==================================================================
none   every GPU is one ``nvidia.com/gpu``; MIG devices are ignored
single MIG devices are ``nvidia.com/gpu``. All MIG devices of all GPUs
       must be alike, or no GPU in MIG mode; otherwise the plugin fails
mixed  MIG devices are ``nvidia.com/mig-<profile>``, other GPUs are
       ``nvidia.com/gpu``. Each compute instance must fill its GPU
       instance; otherwise the plugin finds no resource for it and fails
====== ==================================================================
"""

from __future__ import annotations

import collections
import enum

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.kubernetes import resource
from cyborg_gpu_driver.partition.change import target


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
        found[resource.GPU] = len(node.gpus)
    else:
        found[resource.GPU] = len(node.whole)
        for _gpu, devices in node.devices:
            found[resource.GPU if strategy is Strategy.SINGLE
                  else resource.of_profile(devices.name)] += devices.count
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
