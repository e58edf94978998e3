# SPDX-License-Identifier: Apache-2.0

"""The files that configure the GPU nodes of a Kubernetes cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import yaml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.kubernetes import plugin as kubernetes_plugin
from cyborg_gpu_driver.partition.layout import devices as layout_devices
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

# Values for the GPU operator's chart: all layouts of one cluster.
#
# The chart takes mig-parted's file as one text, so the values of a second
# layout would replace those of the first. Therefore one file of values has all
# layouts.

DISABLED = 'all-disabled'
"""The layout that resets a node. The operator's own file has it, and the file
of this module replaces that file (chart, migManager.config.create)."""
DEFAULT = 'default'
"""The plugin's configuration for nodes without a label."""
_PLUGIN_MAP = 'cyborg-gpu-device-plugin'
_MIG_MAP = 'cyborg-gpu-mig-parted'
_MIG_FILE = 'config.yaml'
_SOURCE = 'rendered layouts'


def choose_strategy(asked: kubernetes_plugin.Strategy | None,
                    suited: Sequence[kubernetes_plugin.Strategy]
                    ) -> kubernetes_plugin.Strategy:
    """Return the MIG strategy of all nodes; the operator has only one.

    :param asked: the strategy that the caller wants; None for any.
    :param suited: the strategy that suits each layout best.
    """
    return asked or max(suited, key=list(kubernetes_plugin.Strategy).index)


def mig_parted(layouts: Sequence[layout_file.Entry]
               ) -> layout_file.LayoutFile:
    """Return mig-parted's file, which always has :data:`DISABLED`."""
    entries = {entry.name: entry for entry in (
        layout_file.Entry(_SOURCE, DISABLED, (layout_file.Section(
            layout_devices.Devices(), False),)), *layouts)}
    return layout_file.LayoutFile(tuple(entries.values()), _SOURCE)


def operator_values(strategy: kubernetes_plugin.Strategy,
                    configs: Mapping[str, str],
                    parted: layout_file.LayoutFile | None) -> dict[str, Any]:
    """Return the values of the GPU operator's chart.

    The operator passes the strategy to the plugin in its environment, which
    overrides the file. Nodes without the labels of :func:`_labels` get the
    plugin's default configuration, without sharing, and no layout.

    :param configs: the plugin's configurations by layout.
    :param parted: mig-parted's file; None if no node has MIG.
    """
    values: dict[str, Any] = {
        'mig': {'strategy': strategy.value},
        'devicePlugin': {'config': {
            'create': True, 'name': _PLUGIN_MAP, 'default': DEFAULT,
            'data': {DEFAULT: _dump(_config(strategy)), **configs}}}}
    if parted is not None:
        values['migManager'] = {'config': {
            'create': True, 'name': _MIG_MAP, 'default': '',
            'data': {_MIG_FILE: parted.dump()}}}
    return values


PLUGIN = 'device-plugin.yaml'
MIG_PARTED = 'mig-parted.yaml'
LABELS = 'node-labels.yaml'
POD = 'test-pod.yaml'
OPERATOR = 'gpu-operator-values.yaml'
PLUGIN_CONFIG = kubernetes_node.PREFIX + 'device-plugin.config'
"""A node's label: its configuration of the device plugin."""
MIG_CONFIG = kubernetes_node.PREFIX + 'mig.config'
"""A node's label: its layout, for the GPU operator's MIG manager."""

SAMPLE_IMAGE = 'nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0'
"""The program adds two vectors and ends (README of the device plugin)."""


class _Dumper(layout_yaml.Dumper):
    """Writes multi-line text as a block, too."""


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
    sharing: kubernetes_plugin.Sharing | None = None


@dataclasses.dataclass(frozen=True)
class Rendered:
    """The result of :func:`render`."""

    strategy: kubernetes_plugin.Strategy
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
           strategy: kubernetes_plugin.Strategy) -> Rendered:
    """Return all files for the nodes of a cluster.

    There is no file of mig-parted if no GPU of the nodes supports MIG. If
    there are several layouts, the files of each are in a directory with its
    name.

    :param wanted: a node for each layout, with different names.
    :raises InvalidValue: if the device plugin would fail or find nothing.
    """
    _check_names([item.node for item in wanted])
    parts = [_files(item, strategy) for item in wanted]
    shared = []
    parted = None
    if any(item.node.has_mig for item in wanted):
        parted = mig_parted(
            [kubernetes_node.mig_entry(item.node) for item in wanted
             if item.node.has_mig])
        shared.append(File(MIG_PARTED, parted.to_dict(), parted.dump()))
    shared.append(_file(OPERATOR, operator_values(
        strategy,
        {item.node.name: files[0].text
         for item, (_offered, files) in zip(wanted, parts, strict=True)},
        parted)))
    return Rendered(
        strategy,
        {item.node.name: offered
         for item, (offered, _files) in zip(wanted, parts, strict=True)},
        (*_placed(wanted, [files for _offered, files in parts]), *shared),
        _notes(wanted, strategy))


def _check_names(nodes: Sequence[kubernetes_node.Node]) -> None:
    names = [node.name for node in nodes]
    for node in nodes:
        if names.count(node.name) > 1 or node.name == DEFAULT:
            raise exception.InvalidValue(
                what='layout name', value=node.name,
                expected='each layout of a cluster needs a unique name, and '
                f'{DEFAULT} is the configuration of nodes '
                'without a layout; rename the entry')
        if node.name == DISABLED and node.with_mig:
            raise exception.InvalidValue(
                what='layout name', value=node.name,
                expected='this name is reserved for the layout that turns MIG '
                'mode off on all GPUs; rename the entry')


def _files(wanted: Wanted, strategy: kubernetes_plugin.Strategy
           ) -> tuple[dict[str, int], tuple[File, ...]]:
    """Return what pods can request on a node, and its layout's files."""
    node, sharing = wanted.node, wanted.sharing
    offered = kubernetes_plugin.allocatable(
        kubernetes_plugin.resources(node, strategy), sharing)
    config = _file(PLUGIN, _config(strategy, sharing))
    return offered, (config, _file(LABELS, {'metadata': {
        'labels': _labels(node)}}),
        _file(POD, _pod(node.name, offered)))


def _labels(node: kubernetes_node.Node) -> dict[str, str]:
    """Return the labels that choose a node's configuration and layout."""
    return {PLUGIN_CONFIG: node.name,
            **({MIG_CONFIG: node.name} if node.has_mig else {})}


def _placed(wanted: Sequence[Wanted], parts: Sequence[tuple[File, ...]]
            ) -> Iterator[File]:
    """Yield the files of all layouts, each with its final path."""
    for item, files in zip(wanted, parts, strict=True):
        for file in files:
            yield file if len(wanted) == 1 else dataclasses.replace(
                file, name=f'{item.node.name}/{file.name}')


def _notes(wanted: Sequence[Wanted], strategy: kubernetes_plugin.Strategy
           ) -> tuple[str, ...]:
    """Return each note once."""
    return tuple(dict.fromkeys(
        note for item in wanted for note in (
            *kubernetes_plugin.notes(item.node, strategy),
            *([kubernetes_plugin.NOTES[item.sharing.method]]
              if item.sharing else ()))))


def stream(files: tuple[File, ...]) -> str:
    """Return all files as documents of one YAML stream, with their names."""
    return ''.join(f'---\n# {file.name}\n{file.text}' for file in files)


def _config(strategy: kubernetes_plugin.Strategy,
            sharing: kubernetes_plugin.Sharing | None = None
            ) -> dict[str, Any]:
    flags = {'migStrategy': strategy.value}
    if (sharing is not None
            and sharing.method is kubernetes_plugin.Method.MPS):
        # Without mpsRoot the plugin does not start.
        flags['mpsRoot'] = kubernetes_plugin.MPS_ROOT
    config = {'version': 'v1', 'flags': flags}
    if sharing is not None:
        config['sharing'] = sharing.to_dict()
    return config


def _pod(name: str, offered: Iterable[str]) -> dict[str, Any]:
    """Return a pod with one container for each resource."""
    return {
        'apiVersion': 'v1',
        'kind': 'Pod',
        'metadata': {'name': 'gpu-test'},
        'spec': {
            'restartPolicy': 'Never',
            'nodeSelector': {PLUGIN_CONFIG: name},
            'tolerations': [{'key': kubernetes_node.GPU, 'operator': 'Exists',
                             'effect': 'NoSchedule'}],
            'containers': [
                {'name': _container(asked), 'image': SAMPLE_IMAGE,
                 'resources': {'limits': {asked: 1}}}
                for asked in offered],
        },
    }


def _container(asked: str) -> str:
    """Return a container's name: a DNS label, so without dots."""
    return asked[len(kubernetes_node.PREFIX):].replace('.', '-')


def _file(name: str, content: dict[str, Any]) -> File:
    return File(name, content, _dump(content))


def _dump(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False,
                     default_flow_style=False)
