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

"""The files that configure the GPU nodes of a Kubernetes cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import yaml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.kubernetes import labels
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.kubernetes import operator_values
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
"""The program adds two vectors and ends (README of the device plugin)."""


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, and writes multi-line text as a block."""

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
    """Its path relative to the directory of all files."""
    content: dict[str, Any]
    """Plain values."""
    text: str
    """YAML."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A kind of node that the cluster has."""

    node: kubernetes_node.Node
    sharing: kubernetes_sharing.Sharing | None = None


@dataclasses.dataclass(frozen=True)
class Rendered:
    """The result of :func:`render`."""

    strategy: kubernetes_strategy.Strategy
    by_layout: dict[str, dict[str, int]]
    """What pods can request on a node, by layout and resource."""
    files: tuple[File, ...]
    notes: tuple[str, ...]
    """What a person should know, one sentence each."""

    @property
    def allocatable(self) -> dict[str, int]:
        """What pods can request with the only layout, by resource."""
        offered, = self.by_layout.values()
        return offered


def render(wanted: Sequence[Wanted],
           strategy: kubernetes_strategy.Strategy,
           values: operator_values.Values | None = None) -> Rendered:
    """Return all files for the nodes of a cluster.

    There is no file of mig-parted if no GPU of the nodes supports MIG. If
    there are several layouts, the files of each are in a directory with its
    name.

    :param wanted: a node for each layout, with different names.
    :param values: the current values of the cluster.
    :raises InvalidValue: if the device plugin would fail or find nothing.
    """
    values = values or operator_values.Values()
    _check_names([item.node for item in wanted])
    parts = [_files(item, strategy) for item in wanted]
    shared = []
    parted = None
    if any(item.node.has_mig for item in wanted):
        parted = operator_values.mig_parted(
            [kubernetes_node.mig_entry(item.node) for item in wanted
             if item.node.has_mig], values)
        shared.append(File(MIG_PARTED, parted.to_dict(), parted.dump()))
    shared.append(_file(OPERATOR, operator_values.merged(
        values, strategy, _dump(_config(strategy)),
        {item.node.name: files[0].text
         for item, (_offered, files) in zip(wanted, parts, strict=True)},
        parted)))
    return Rendered(
        strategy,
        {item.node.name: offered
         for item, (offered, _files) in zip(wanted, parts, strict=True)},
        (*_placed(wanted, [files for _offered, files in parts]), *shared),
        _notes(wanted, strategy))


def _check_names(nodes):
    names = [node.name for node in nodes]
    for node in nodes:
        if names.count(node.name) > 1 or node.name == operator_values.DEFAULT:
            raise exception.InvalidValue(
                what='layout name', value=node.name,
                expected='each layout of a cluster needs a unique name, and '
                f'{operator_values.DEFAULT} is the configuration of nodes '
                'without a layout; rename the entry')
        if node.name == operator_values.DISABLED and node.with_mig:
            raise exception.InvalidValue(
                what='layout name', value=node.name,
                expected='this name is reserved for the layout that turns MIG '
                'mode off on all GPUs; rename the entry')


def _files(wanted, strategy):
    """Return what pods can request on a node, and its layout's files."""
    node, sharing = wanted.node, wanted.sharing
    offered = kubernetes_sharing.allocatable(
        kubernetes_strategy.resources(node, strategy), sharing)
    config = _file(PLUGIN, _config(strategy, sharing))
    plugin_config.parse(config.text, PLUGIN)
    return offered, (config, _file(LABELS, {'metadata': {
        'labels': labels.labels(node, strategy, sharing)}}),
        _file(POD, _pod(node.name, offered)))


def _placed(wanted, parts):
    """Yield the files of all layouts, each with its final path."""
    for item, files in zip(wanted, parts, strict=True):
        for file in files:
            yield file if len(wanted) == 1 else dataclasses.replace(
                file, name=f'{item.node.name}/{file.name}')


def _notes(wanted, strategy):
    """Return each note once."""
    return tuple(dict.fromkeys(
        note for item in wanted for note in (
            *kubernetes_strategy.notes(item.node, strategy),
            *([kubernetes_sharing.NOTES[item.sharing.method]]
              if item.sharing else ()))))


def stream(files: tuple[File, ...]) -> str:
    """Return all files as documents of one YAML stream, with their names."""
    return ''.join(f'---\n# {file.name}\n{file.text}' for file in files)


def _config(strategy, sharing=None):
    flags = {'migStrategy': strategy.value}
    if (sharing is not None
            and sharing.method is kubernetes_sharing.Method.MPS):
        # Without mpsRoot the plugin does not start.
        flags['mpsRoot'] = kubernetes_sharing.MPS_ROOT
    config = {'version': plugin_config.VERSION, 'flags': flags}
    if sharing is not None:
        config['sharing'] = sharing.to_dict()
    return config


def _pod(name, offered):
    """Return a pod with one container for each resource."""
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
    """Return a container's name: a DNS label, so without dots."""
    return asked[len(resource.PREFIX):].replace('.', '-')


def _file(name, content):
    return File(name, content, _dump(content))


def _dump(content):
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False,
                     default_flow_style=False)
