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

"""Labels of a node as NVIDIA's GPU feature discovery sets them.

The labels are defined in internal/lm of the device plugin's repository. This
module leaves out labels whose value neither the layout nor NVML gives (compute
capability, CUDA version, machine type, timestamp). It also leaves out what
the plugin chooses at random: if the GPUs have several models, the plugin
labels any one of them.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.kubernetes import plugin
from cyborg_gpu_driver.partition import target

PLUGIN_CONFIG = kubernetes_node.PREFIX + 'device-plugin.config'
"""Chooses the device plugin's configuration for the node."""
MIG_CONFIG = kubernetes_node.PREFIX + 'mig.config'
"""Chooses the layout for the node, for the GPU operator's MIG manager."""

_FAMILIES = {'ada': 'ada-lovelace'}
"""By architecture as this driver names it, if the label's name differs."""
_MODES = {'0300': 'graphics', '0302': 'compute'}
"""By class of the PCI function: VGA or 3D controller."""
_NOT_IN_NAMES = re.compile(r'[^A-Za-z0-9-_. ]')


def labels(node: kubernetes_node.Node,
           strategy: plugin.Strategy,
           sharing: plugin.Sharing | None) -> dict[str, str]:
    """Return all labels that are known in advance, sorted and valid."""
    found = {**_whole(node, sharing), **_mig(node, strategy, sharing),
             **_node(node, sharing), PLUGIN_CONFIG: node.name}
    if node.has_mig:
        found[MIG_CONFIG] = node.name
    return {key: value for key, value in sorted(found.items())
            if kubernetes_node.is_label(value)}


def _node(node, sharing):
    """Return the labels that hold for all GPUs."""
    mps = (sharing is not None
           and sharing.method is plugin.Method.MPS)
    found = {'mig.capable': _truth(node.has_mig),
             'mps.capable': _truth(mps)}
    modes = {_MODES.get(item.gpu.class_code, 'unknown')
             for item in node.gpus}
    found['gpu.mode'] = modes.pop() if len(modes) == 1 else 'unknown'
    if node.driver_version:
        parts = node.driver_version.split('.')
        found['cuda.driver-version.full'] = node.driver_version
        found.update(zip(('cuda.driver-version.major',
                          'cuda.driver-version.minor',
                          'cuda.driver-version.revision'), parts,
                         strict=False))
    return {kubernetes_node.PREFIX + key: value
            for key, value in found.items()}


def _whole(node, sharing):
    """Return the labels ``nvidia.com/gpu.*`` of the GPUs themselves.

    A GPU that is not in MIG mode overrides a GPU in MIG mode, which has no
    replicas.
    """
    found: dict[str, str] = {}
    for some, shared, replicas in ((node.with_mig, None, 0),
                                   (node.whole, sharing, 1)):
        by_model = {item.gpu.model: item.gpu for item in some
                    if item.gpu.model}
        _override(found, [
            _of_model(gpu, sum(item.gpu.model == name
                               for item in node.gpus), shared, replicas)
            for name, gpu in by_model.items()])
    return found


def _of_model(gpu: model.Gpu, count: int, sharing, replicas: int):
    found = _base(kubernetes_node.GPU, count, gpu.model, sharing, replicas)
    if gpu.memory_mib:
        found['memory'] = gpu.memory_mib
    if gpu.architecture:
        found['family'] = _FAMILIES.get(gpu.architecture, gpu.architecture)
    return _named(kubernetes_node.GPU, found)


def _mig(node, strategy, sharing):
    """Return the labels of MIG devices and of the MIG strategy."""
    if strategy is plugin.Strategy.NONE:
        return {}
    found = {kubernetes_node.PREFIX + 'mig.strategy': strategy.value}
    counts: collections.Counter[str] = collections.Counter()
    first: dict[str, tuple[model.Gpu, target.WantedDevices]] = {}
    for gpu, devices in node.devices:
        counts[devices.name] += devices.count
        # If boards differ, the device of the first one gives the labels.
        first.setdefault(devices.name, (gpu, devices))
    for name, (gpu, devices) in first.items():
        offered = (kubernetes_node.GPU
                   if strategy is plugin.Strategy.SINGLE
                   else kubernetes_node.of_profile(name))
        found |= _of_devices(gpu, devices, offered, counts[name], sharing)
    return found


def _of_devices(gpu: model.Gpu, devices: target.WantedDevices, offered: str,
                count: int, sharing):
    profile = devices.profile
    product = (f'{_product(gpu.model)}-MIG-'
               f'{kubernetes_node.label_name(devices.name)}'
               if gpu.model else None)
    found = _base(offered, count, product, sharing, 1)
    found |= {
        'memory': profile.memory_mib,
        'slices.gi': profile.slices,
        'slices.ci': devices.slices,
        'engines.copy': profile.copy_engines,
        'engines.decoder': profile.engines.decoders,
        'engines.encoder': profile.engines.encoders,
        'engines.jpeg': profile.engines.jpeg,
        'engines.ofa': profile.engines.ofa,
    }
    if devices.slices == profile.slices:
        # Only the driver knows the number for a part of a GPU instance.
        found['multiprocessors'] = profile.multiprocessors
    return _named(offered, found)


def _base(offered: str, count: int, product: str | None, sharing,
          replicas: int) -> dict[str, Any]:
    """Return the labels that every resource has.

    :param replicas: the value of the label if nothing is shared.
    """
    shared = sharing is not None and sharing.applies_to(offered)
    found: dict[str, Any] = {
        'count': count,
        'replicas': sharing.replicas if shared else replicas,
        'sharing-strategy': sharing.method.value if shared else 'none',
    }
    if product:
        found['product'] = _product(product) + (
            '-SHARED' if shared and not sharing.rename else '')
    return found


def _product(text: str) -> str:
    """Return a model's name as in a label: ``NVIDIA-A100-SXM4-80GB``."""
    return '-'.join(_NOT_IN_NAMES.sub('', text).split())


def _named(offered, found):
    return {f'{offered}.{key}': str(value) for key, value in found.items()}


def _override(found: dict[str, str], others: Sequence[dict[str, str]]):
    """Replace each label by that of ``others``, if they have the same value.

    A label that differs among ``others`` is removed.
    """
    for key in {key for labels_ in others for key in labels_}:
        values = {labels_.get(key) for labels_ in others}
        found.pop(key, None)
        value = values.pop()
        if value is not None and not values:
            found[key] = value


def _truth(value):
    return str(value).lower()
