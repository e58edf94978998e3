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

"""Values for the GPU operator's chart: all layouts of one cluster.

The chart takes mig-parted's file as one text, so that the values of a second
layout would replace the first. Hence one file of values has all of them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.kubernetes import plugin_config
from cyborg_gpu_driver.kubernetes import strategy as kubernetes_strategy
from cyborg_gpu_driver.partition.layout import devices as layout_devices
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import schema as layout_schema
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

DISABLED = 'all-disabled'
"""The layout that sets a node back. The operator's own file has it, and a
file of ours replaces that one (chart, migManager.config.create)."""
DEFAULT = 'default'
"""The plugin's configuration for nodes without a label."""
_PLUGIN_MAP = 'cyborg-gpu-device-plugin'
_MIG_MAP = 'cyborg-gpu-mig-parted'
_MIG_FILE = 'config.yaml'
_SOURCE = 'rendered layouts'


def _section(**keywords):
    return schema.nullable({'type': 'object', **keywords})


def _data(**keywords):
    return _section(properties={'config': _section(properties={
        'data': _section(**keywords)})})


VALUES = _section(properties={
    'mig': _section(properties={'strategy': {'enum': [
        None, *(item.value for item in kubernetes_strategy.Strategy)]}}),
    'devicePlugin': _data(additionalProperties=schema.TEXT),
    'migManager': _data(properties={
        _MIG_FILE: schema.nullable(schema.TEXT)})})
"""What of the chart's values is read here; there is more."""


@dataclasses.dataclass(frozen=True)
class Values:
    """Values that a cluster has already.

    :ivar content: as YAML has them.
    :ivar source: the file that they are from, for complaints.
    """

    content: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: str = 'values'

    @classmethod
    def parse(cls, text: str, source: str) -> Values:
        """Read a file of values.

        Values of the chart that are not ours are kept as they are.

        :raises DocumentError: if what this module writes there is not what
            it writes.
        """
        place = layout_schema.place(source)
        content = layout_yaml.plain(text, place)
        schema.check(content, VALUES, place)
        values = cls(content if content is not None else {}, source)
        for name, config in values.configs.items():
            plugin_config.parse(config, f'{source}, configuration {name}')
        values.layouts()
        return values

    @property
    def configs(self) -> Mapping[str, str]:
        """The device plugin's configurations, by name."""
        return self._below('devicePlugin', 'config', 'data')

    @property
    def strategy(self) -> kubernetes_strategy.Strategy | None:
        """The one MIG strategy of all nodes; None if there is none."""
        found = self._below('mig').get('strategy')
        return found and kubernetes_strategy.Strategy(found)

    def layouts(self) -> tuple[layout_file.Entry, ...]:
        """The layouts in mig-parted's file.

        :raises LayoutError: if it is none.
        """
        text = self._below('migManager', 'config', 'data').get(_MIG_FILE)
        if text is None:
            return ()
        source = f'{self.source}, migManager.config.data.{_MIG_FILE}'
        entries = layout_file.LayoutFile.parse(text, source).entries
        for entry in entries:
            if entry.name == DISABLED and any(
                    section.mig_enabled for section in entry.sections):
                raise layout_schema.place(source, f'entry {DISABLED}').error(
                    'it turns MIG mode on', 'rename it: this name is reserved '
                    'for resetting a node')
        return entries

    def _below(self, *keys):
        """A mapping, empty where there is none."""
        found = self.content
        for key in keys:
            found = found.get(key) or {}
        return found


def choose_strategy(asked: kubernetes_strategy.Strategy | None,
                    suited: Sequence[kubernetes_strategy.Strategy],
                    values: Values) -> kubernetes_strategy.Strategy:
    """The MIG strategy of all nodes, of which the operator has one.

    :param asked: what the caller wants; None leaves it open.
    :param suited: what suits each layout best.
    :raises InvalidValue: if the cluster has another one.
    """
    plainest = list(kubernetes_strategy.Strategy)
    wanted = asked or max(suited, key=plainest.index)
    there = values.strategy
    if there in (None, wanted) or (
            asked is None and wanted is kubernetes_strategy.Strategy.NONE):
        return there or wanted
    raise exception.InvalidValue(
        what='strategy', value=wanted.value,
        expected='the GPU operator uses one strategy for all nodes, and '
        f'{values.source} has {there.value}: give --strategy {there.value}, '
        f'or render its layouts again with --strategy {wanted.value}')


def mig_parted(layouts: Sequence[layout_file.Entry],
               values: Values) -> layout_file.LayoutFile:
    """mig-parted's file: new layouts after those that are there.

    A layout of a name that is there takes its place. :data:`DISABLED` is
    always among them.
    """
    entries = {entry.name: entry for entry in (
        layout_file.Entry(_SOURCE, DISABLED, (layout_file.Section(
            layout_devices.Devices(), False),)),
        *values.layouts(), *layouts)}
    return layout_file.LayoutFile(tuple(entries.values()), _SOURCE)


def merged(values: Values, strategy: kubernetes_strategy.Strategy,
           default: str, configs: Mapping[str, str],
           parted: layout_file.LayoutFile | None) -> dict[str, Any]:
    """The values with new layouts.

    The operator gives the strategy to the plugin in its environment, which
    outweighs the file. Nodes without the labels of :mod:`.labels` get the
    configuration ``default``, without sharing, and no layout.

    :param default: the plugin's configuration for nodes without a label, if
        there is none yet.
    :param configs: the plugin's configurations by layout.
    :param parted: mig-parted's file; None if no node has MIG.
    """
    found = copy.deepcopy(dict(values.content))
    found['mig'] = {**(found.get('mig') or {}), 'strategy': strategy.value}
    plugin = _config(found, 'devicePlugin', {
        'create': True, 'name': _PLUGIN_MAP, 'default': DEFAULT})
    plugin['data'] = {DEFAULT: default, **(plugin.get('data') or {}),
                      **configs}
    if parted is not None:
        manager = _config(found, 'migManager', {
            'create': True, 'name': _MIG_MAP, 'default': ''})
        manager['data'] = {**(manager.get('data') or {}),
                           _MIG_FILE: parted.dump()}
    return found


def _config(found, part, defaults):
    """A part's ``config``, made where it is missing."""
    found[part] = dict(found.get(part) or {})
    found[part]['config'] = {**defaults, **(found[part].get('config') or {})}
    return found[part]['config']
