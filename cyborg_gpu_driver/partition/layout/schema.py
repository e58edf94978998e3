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
"""The schema of layout files: mig-parted's own format (api/spec/v1)."""

from __future__ import annotations

from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.partition import names

VERSION = 'v1'
"""The only version of mig-parted's format."""
ROOT = 'mig-configs'
"""The key that holds the entries of a layout file."""
ALL = 'all'
"""For ``devices``: every GPU."""
FORMATS = {'mig-device': names.ProfileName.parse}

_BOARD = schema.matching(
    '0[xX][0-9a-fA-F]{8}', 'PCI device id and vendor id in quotes',
    '"0x233010DE"')
_CHOICE = {
    'devices': {
        'description': 'all, or a list of indices of GPUs',
        'examples': ['[0, 1]'],
        'anyOf': [{'const': ALL}, schema.listing(
            {**schema.integer(0), 'description': 'the index of a GPU, from '
             '0'}, uniqueItems=True)]}}
_FILTER = {
    'device-filter': {
        'description': 'one or a list of "0xDDDDVVVV", '
                       + _BOARD['description'],
        'examples': _BOARD['examples'],
        'anyOf': [_BOARD, schema.listing(_BOARD), {'enum': ['', None]}]}}
DEVICES = schema.mapping(_CHOICE, _FILTER)
"""The keys of an item that select GPUs."""

_ITEM = schema.mapping({**_CHOICE, 'mig-enabled': schema.TRUTH}, {
    **_FILTER,
    'mig-devices': {
        'type': 'object',
        'description': 'names of MIG devices and how many of each',
        'examples': ['{"1g.10gb": 2}'],
        'propertyNames': {'type': 'string', 'format': 'mig-device'},
        'additionalProperties': schema.integer(0)}})
ITEMS = schema.listing(_ITEM, 1)
"""The items of one entry."""
LAYOUT_FILE = schema.mapping({
    'version': {'const': VERSION},
    ROOT: {
        'type': 'object', 'minProperties': 1,
        'description': 'at least one entry, NAME: [...]'}})
"""A layout file. Each entry is checked by itself, with :data:`ITEMS`."""


def place(source: str, path: str = '') -> schema.Place:
    """Return a place in a layout, which raises LayoutError."""
    return schema.Place(source, path, exception.LayoutError)


def check(value: Any, what: schema.Schema, where: schema.Place) -> None:
    """Check a layout file or a part of one.

    :param what: one of the schemas of this module.
    :raises LayoutError: naming the place and what is expected.
    """
    schema.check(value, what, where, FORMATS)
