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

"""What a Kubernetes cluster is to be told of one node, as files."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from cyborg_gpu_driver.kubernetes import labels
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.kubernetes import plugin_config
from cyborg_gpu_driver.kubernetes import resource
from cyborg_gpu_driver.kubernetes import sharing as kubernetes_sharing
from cyborg_gpu_driver.kubernetes import strategy as kubernetes_strategy

PLUGIN = 'device-plugin.yaml'
MIG_PARTED = 'mig-parted.yaml'
LABELS = 'node-labels.yaml'
POD = 'test-pod.yaml'
OPERATOR = 'gpu-operator-values.yaml'

SAMPLE_IMAGE = 'nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0'
"""Adds two vectors and ends (README of the device plugin)."""
_PLUGIN_MAP = 'cyborg-gpu-device-plugin'
_MIG_MAP = 'cyborg-gpu-mig-parted'
_DEFAULT = 'default'


class _Dumper(yaml.SafeDumper):
    """Lists indented below their key, text of several lines as such."""

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data):
        return True


_Dumper.add_representer(str, lambda dumper, value: dumper.represent_scalar(
    'tag:yaml.org,2002:str', value, style='|' if '\n' in value else None))


@dataclasses.dataclass(frozen=True)
class File:
    """One file."""

    name: str
    content: dict[str, Any]
    """Plain values."""
    text: str
    """YAML."""


@dataclasses.dataclass(frozen=True)
class Rendered:
    """What was made for a node."""

    strategy: kubernetes_strategy.Strategy
    allocatable: dict[str, int]
    """What pods can ask for, by resource."""
    files: tuple[File, ...]
    notes: tuple[str, ...]
    """What a person should know, a sentence each."""


def render(node: kubernetes_node.Node,
           strategy: kubernetes_strategy.Strategy,
           sharing: kubernetes_sharing.Sharing | None = None) -> Rendered:
    """All files for a node.

    mig-parted's is not among them if no GPU of the node has MIG.

    :raises InvalidValue: if the device plugin would fail or find nothing.
    """
    offered = kubernetes_sharing.allocatable(
        kubernetes_strategy.resources(node, strategy), sharing)
    files = [_file(PLUGIN, _config(strategy, sharing))]
    plugin_config.parse(files[0].text, PLUGIN)
    if node.has_mig:
        parted = kubernetes_node.mig_parted(node)
        files.append(File(MIG_PARTED, parted.to_dict(), parted.dump()))
    texts = {file.name: file.text for file in files}
    files += [
        _file(LABELS, {'metadata': {
            'labels': labels.labels(node, strategy, sharing)}}),
        _file(POD, _pod(node.name, offered)),
        _file(OPERATOR, _operator_values(node.name, strategy, texts))]
    notes = kubernetes_strategy.notes(node, strategy)
    if sharing is not None:
        notes += (kubernetes_sharing.NOTES[sharing.method],)
    return Rendered(strategy, offered, tuple(files), notes)


def stream(files: tuple[File, ...]) -> str:
    """All files as documents of one YAML stream, each with its name."""
    return ''.join(f'---\n# {file.name}\n{file.text}' for file in files)


def _config(strategy, sharing=None):
    flags = {'migStrategy': strategy.value}
    if (sharing is not None
            and sharing.method is kubernetes_sharing.Method.MPS):
        # Without it the plugin does not start.
        flags['mpsRoot'] = kubernetes_sharing.MPS_ROOT
    config = {'version': plugin_config.VERSION, 'flags': flags}
    if sharing is not None:
        config['sharing'] = sharing.to_dict()
    return config


def _pod(name, offered):
    """A pod with one container for each resource."""
    return {
        'apiVersion': 'v1',
        'kind': 'Pod',
        'metadata': {'name': 'gpu-test'},
        'spec': {
            'restartPolicy': 'Never',
            'nodeSelector': {labels.PLUGIN_CONFIG: name},
            'tolerations': [{'key': resource.GPU, 'operator': 'Exists',
                             'effect': 'NoSchedule'}],
            'containers': [
                {'name': _container(asked), 'image': SAMPLE_IMAGE,
                 'resources': {'limits': {asked: 1}}}
                for asked in offered],
        },
    }


def _container(asked):
    """A container's name: a DNS label, so without dots."""
    return asked[len(resource.PREFIX):].replace('.', '-')


def _operator_values(name, strategy, texts):
    """Values for the GPU operator's chart.

    The operator gives the strategy to the plugin in its environment, which
    outweighs the file. Nodes without the labels of :mod:`.labels` get the
    configuration ``default``, without sharing, and no layout.
    """
    values = {
        'mig': {'strategy': strategy.value},
        'devicePlugin': {'config': {
            'create': True,
            'name': _PLUGIN_MAP,
            'default': _DEFAULT,
            'data': {_DEFAULT: _dump(_config(strategy)),
                     name: texts[PLUGIN]},
        }},
    }
    if MIG_PARTED in texts:
        values['migManager'] = {'config': {
            'create': True,
            'name': _MIG_MAP,
            'default': '',
            'data': {'config.yaml': texts[MIG_PARTED]},
        }}
    return values


def _file(name, content):
    return File(name, content, _dump(content))


def _dump(content):
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False,
                     default_flow_style=False)
