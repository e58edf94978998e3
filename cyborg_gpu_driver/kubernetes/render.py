# SPDX-License-Identifier: Apache-2.0

"""The files that configure the GPU nodes of a Kubernetes cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import yaml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.kubernetes import node as kubernetes_node
from cyborg_gpu_driver.kubernetes import plugin as kubernetes_plugin
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

DISABLED = 'all-disabled'
"""The layout that resets a node. The operator's own file has it, and the file
of this module replaces that file (chart, migManager.config.create)."""
DEFAULT = 'default'
"""The plugin's configuration for nodes without a label."""
_PLUGIN_MAP = 'cyborg-gpu-device-plugin'
_MIG_MAP = 'cyborg-gpu-mig-parted'
_MIG_FILE = 'config.yaml'
_SOURCE = 'rendered layout'

PLUGIN = 'device-plugin.yaml'
MIG_PARTED = 'mig-parted.yaml'
LABELS = 'node-labels.yaml'
POD = 'test-pod.yaml'
OPERATOR = 'gpu-operator-values.yaml'
PLUGIN_CONFIG = kubernetes_plugin.PREFIX + 'device-plugin.config'
"""A node's label: its configuration of the device plugin."""
MIG_CONFIG = kubernetes_plugin.PREFIX + 'mig.config'
"""A node's label: its layout, for the GPU operator's MIG manager."""

SAMPLE_IMAGE = 'nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0'
"""The program adds two vectors and ends (README of the device plugin)."""


class _Dumper(layout_yaml.Dumper):
    """Writes multi-line text as a block, too."""


_Dumper.add_representer(str, lambda dumper, value: dumper.represent_scalar(
    'tag:yaml.org,2002:str', value, style='|' if '\n' in value else None))


@dataclasses.dataclass(frozen=True)
class Rendered:
    """The result of :func:`render`."""

    allocatable: dict[str, int]
    """What pods can request, by resource."""
    files: dict[str, dict[str, Any]]
    """The plain values of each file, by its name."""
    notes: tuple[str, ...]
    """What a person should know, one sentence each."""


def render(node: kubernetes_node.Node, strategy: kubernetes_plugin.Strategy,
           sharing: kubernetes_plugin.Sharing | None = None) -> Rendered:
    """Return all files for nodes with a layout.

    There is no file of mig-parted if no GPU supports MIG.

    :raises InvalidValue: if the device plugin would fail or find nothing.
    """
    _check_name(node)
    offered = kubernetes_plugin.allocatable(
        kubernetes_plugin.resources(node, strategy), sharing)
    config = _config(strategy, sharing)
    files = {
        PLUGIN: config,
        LABELS: {'metadata': {'labels': {
            PLUGIN_CONFIG: node.name,
            **({MIG_CONFIG: node.name} if node.has_mig else {})}}},
        POD: _pod(node.name, offered)}
    if node.has_mig:
        files[MIG_PARTED] = _mig_parted(node)
    files[OPERATOR] = _operator_values(strategy, {node.name: config},
                                       files.get(MIG_PARTED))
    return Rendered(offered, files, (
        *kubernetes_plugin.notes(node, strategy),
        *([kubernetes_plugin.NOTES[sharing.method]] if sharing else ())))


def dump(content: dict[str, Any]) -> str:
    """Return a file's text."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False,
                     default_flow_style=False)


def _check_name(node: kubernetes_node.Node) -> None:
    reason = ''
    if node.name == DEFAULT:
        reason = 'this is the configuration of nodes without a layout'
    elif node.name == DISABLED and node.with_mig:
        reason = ('this name is reserved for the layout that turns MIG mode '
                  'off on all GPUs')
    if reason:
        raise exception.InvalidValue(
            what='layout name', value=node.name,
            expected=f'{reason}; rename the entry')


def _mig_parted(node: kubernetes_node.Node) -> dict[str, Any]:
    """Return mig-parted's file, which always has :data:`DISABLED`."""
    entries = {entry.name: entry for entry in (
        layout_file.Entry(_SOURCE, DISABLED, (layout_file.Section(
            layout_file.Devices(), False),)),
        kubernetes_node.mig_entry(node))}
    return layout_file.LayoutFile(
        tuple(entries.values()), _SOURCE).to_dict()


def _operator_values(strategy: kubernetes_plugin.Strategy,
                     configs: Mapping[str, dict[str, Any]],
                     parted: dict[str, Any] | None) -> dict[str, Any]:
    """Return the values of the GPU operator's chart.

    The operator passes the strategy to the plugin in its environment, which
    overrides the file. Nodes without labels get the plugin's default
    configuration, without sharing, and no layout.

    :param configs: the plugin's configurations by layout.
    :param parted: mig-parted's file; None if no GPU supports MIG.
    """
    values: dict[str, Any] = {
        'mig': {'strategy': strategy.value},
        'devicePlugin': {'config': {
            'create': True, 'name': _PLUGIN_MAP, 'default': DEFAULT,
            'data': {name: dump(config) for name, config in {
                DEFAULT: _config(strategy), **configs}.items()}}}}
    if parted is not None:
        values['migManager'] = {'config': {
            'create': True, 'name': _MIG_MAP, 'default': '',
            'data': {_MIG_FILE: dump(parted)}}}
    return values


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
            'tolerations': [{'key': kubernetes_plugin.GPU,
                             'operator': 'Exists', 'effect': 'NoSchedule'}],
            'containers': [
                # A container's name is a DNS label, so without dots.
                {'name': asked[len(kubernetes_plugin.PREFIX):].replace(
                    '.', '-'), 'image': SAMPLE_IMAGE,
                 'resources': {'limits': {asked: 1}}}
                for asked in offered],
        },
    }
