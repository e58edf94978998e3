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

The chart takes mig-parted's file as one text, so the values of a second layout
would replace those of the first. Therefore one file of values has all layouts.
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
"""The layout that resets a node. The operator's own file has it, and the file
of this module replaces that file (chart, migManager.config.create)."""
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
"""The chart's values that this module reads; the chart has more."""


@dataclasses.dataclass(frozen=True)
class Values:
    """The current values of a cluster.

    :ivar content: the values, from YAML.
    :ivar source: the file with the values, for error messages.
    """

    content: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: str = 'values'

    @classmethod
    def parse(cls, text: str, source: str) -> Values:
        """Read a file of values.

        Values that this module does not write are kept unchanged.

        :raises DocumentError: if a value that this module writes has another
            form.
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
        """The common MIG strategy of all nodes; None if it is not set."""
        found = self._below('mig').get('strategy')
        return found and kubernetes_strategy.Strategy(found)

    def layouts(self) -> tuple[layout_file.Entry, ...]:
        """Return the layouts in mig-parted's file.

        :raises LayoutError: if it is not a file of mig-parted.
        """
        text = self._below('migManager', 'config', 'data').get(_MIG_FILE)
        if text is None:
            return ()
        source = f'{self.source}, migManager.config.data.{_MIG_FILE}'
        file = layout_file.LayoutFile.parse(text, source)
        entries = tuple(map(file.entry, file.names))
        for entry in entries:
            if entry.name == DISABLED and any(
                    section.mig_enabled for section in entry.sections):
                raise layout_schema.place(source, f'entry {DISABLED}').error(
                    'it turns MIG mode on', 'rename it: this name is reserved '
                    'for resetting a node')
        return entries

    def _below(self, *keys):
        """Return a nested mapping; empty if it does not exist."""
        found = self.content
        for key in keys:
            found = found.get(key) or {}
        return found


def choose_strategy(asked: kubernetes_strategy.Strategy | None,
                    suited: Sequence[kubernetes_strategy.Strategy],
                    values: Values) -> kubernetes_strategy.Strategy:
    """Return the MIG strategy of all nodes; the operator has only one.

    :param asked: the strategy that the caller wants; None for any.
    :param suited: the strategy that suits each layout best.
    :raises InvalidValue: if the cluster has another strategy.
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
    """Return mig-parted's file: new layouts after the existing ones.

    A new layout replaces an existing one of the same name. The file always
    has :data:`DISABLED`.
    """
    entries = {entry.name: entry for entry in (
        layout_file.Entry(_SOURCE, DISABLED, (layout_file.Section(
            layout_devices.Devices(), False),)),
        *values.layouts(), *layouts)}
    return layout_file.LayoutFile(tuple(entries.values()), _SOURCE)


def merged(values: Values, strategy: kubernetes_strategy.Strategy,
           default: str, configs: Mapping[str, str],
           parted: layout_file.LayoutFile | None) -> dict[str, Any]:
    """Return the values with new layouts.

    The operator passes the strategy to the plugin in its environment, which
    overrides the file. Nodes without the labels of :mod:`.labels` get the
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
    """Return a part's ``config``; create it if it is missing."""
    found[part] = dict(found.get(part) or {})
    found[part]['config'] = {**defaults, **(found[part].get('config') or {})}
    return found[part]['config']
