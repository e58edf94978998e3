# SPDX-License-Identifier: Apache-2.0

"""Strict YAML for layout files: whatever is not understood is an error.

If a misspelt key were ignored silently, a GPU would stay as it is or be
emptied.
"""

from __future__ import annotations

from typing import Any

import yaml

from cyborg_gpu_driver import schema
from cyborg_gpu_driver.partition import names

_BITS = 63
"""Bits of the largest number; Python refuses to print far larger ones."""
_NOT_YAML = (yaml.YAMLError, RecursionError, ValueError, LookupError,
             TypeError, AttributeError, OverflowError)
"""The errors that PyYAML raises. All but the first are for values that do
not match their tag (``!!int ''``, ``!!bool x``, ``!!timestamp x``)."""


class _Loader(yaml.SafeLoader):
    """A loader of plain values that refuses a repeated key."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode
             ) -> dict[str, Any]:
    loader.flatten_mapping(node)
    seen = set()
    for key_node, _value in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f'key {key!r} is not text: put it in quotes',
                key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f'key {key!r} appears twice: keep one',
                key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    value = loader.construct_yaml_int(node)
    if value.bit_length() > _BITS:
        raise yaml.constructor.ConstructorError(
            None, None, 'a number is out of range', node.start_mark)
    return value


_Loader.add_constructor('tag:yaml.org,2002:int', _integer)
_Loader.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


class Flow(list):
    """A list that the dumper writes on one line."""


class Dumper(yaml.SafeDumper):
    """A dumper that indents lists below their key, as people do."""

    def increase_indent(self, flow: bool=False, indentless: bool=False
                        ) -> None:
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


Dumper.add_representer(Flow, lambda dumper, value: (
    dumper.represent_sequence('tag:yaml.org,2002:seq', value,
                              flow_style=True)))


def plain(text: str, place: schema.Place) -> Any:
    """Return the plain values of YAML or JSON; refuse a repeated key.

    :raises DocumentError: of the place's type, if it is not YAML.
    """
    try:
        # A subclass of SafeLoader: plain values only.
        return yaml.load(text, Loader=_Loader)  # noqa: S506
    except _NOT_YAML as error:
        raise place.error(f'not YAML: {error}'.replace('\n', ' '),
                          'correct it there') from error


def dump(content: dict[str, Any]) -> str:
    """Return a layout file's text."""
    return yaml.dump(content, Dumper=Dumper, sort_keys=False,
                     default_flow_style=False)


# The schema of layout files: mig-parted's own format (api/spec/v1).

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


def place_in(source: str, path: str = '') -> schema.Place:
    """Return a place in a layout, which raises DocumentError."""
    return schema.Place(source, path)


def check(value: Any, what: schema.Schema, where: schema.Place) -> None:
    """Check a layout file or a part of one.

    :raises DocumentError: naming the place and what is expected.
    """
    schema.check(value, what, where, FORMATS)
