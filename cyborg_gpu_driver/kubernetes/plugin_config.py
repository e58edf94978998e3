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
"""The configuration file of NVIDIA's device plugin, version v1, strictly.

GPU feature discovery reads the same file. The plugin silently ignores unknown
keys, for example a misspelt one. Here an unknown key is an error.
"""

from __future__ import annotations

from typing import Any

from cyborg_gpu_driver import schema
from cyborg_gpu_driver.kubernetes import plugin_schema
from cyborg_gpu_driver.kubernetes import resource
from cyborg_gpu_driver.kubernetes import sharing
from cyborg_gpu_driver.kubernetes import strategy
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml

VERSION = plugin_schema.VERSION


def parse(text: str, source: str) -> dict[str, Any]:
    """Read a file's text.

    :param source: its name, for messages.
    :returns: its plain values, all of which the plugin knows.
    :raises DocumentError: names the file and the place.
    """
    place = schema.Place(source)
    value = layout_yaml.plain(text, place)
    schema.check(value, plugin_schema.PLUGIN_CONFIG, place,
                 {plugin_schema.RESOURCE_NAME: resource.full_name})
    shared = value.get('sharing', {})
    mixed = value.get('flags', {}).get(
        'migStrategy') == strategy.Strategy.MIXED.value
    if mixed and sharing.Method.MPS.key in shared:
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
        name = resource.full_name(item['name'])
        if name in seen:
            raise place.below(number).error(f'{name} appears twice',
                                            'keep one')
        seen.add(name)
