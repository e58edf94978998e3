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


"""Strict YAML for layout files: what is not understood is an error.

A misspelt key that is passed over in silence would leave a GPU as it is,
or empty it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import yaml

from cyborg_gpu_driver import exception

VERSION = 'v1'
"""The only version of mig-parted's format."""
ROOT = 'mig-configs'
"""The key that holds the entries of a layout file."""
_BITS = 63
"""Of the greatest number; Python does not even print one of thousands."""
_NOT_YAML = (yaml.YAMLError, RecursionError, ValueError, LookupError,
             TypeError, AttributeError, OverflowError)
"""What PyYAML raises; all but the first for values that are not what their
tag says (``!!int ''``, ``!!bool x``, ``!!timestamp x``)."""


class _Loader(yaml.SafeLoader):
    """Plain values only, and no key twice."""


def _mapping(loader, node):
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
                None, None, f'key {key!r} is there twice: leave one',
                key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _integer(loader, node):
    value = loader.construct_yaml_int(node)
    if value.bit_length() > _BITS:
        raise yaml.constructor.ConstructorError(
            None, None, 'a number is out of all bounds', node.start_mark)
    return value


_Loader.add_constructor('tag:yaml.org,2002:int', _integer)
_Loader.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


class Flow(list):
    """A list that is written on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes like people do: lists indented below their key."""

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data):
        return True


_Dumper.add_representer(Flow, lambda dumper, value: (
    dumper.represent_sequence('tag:yaml.org,2002:seq', value,
                              flow_style=True)))


@dataclasses.dataclass(frozen=True)
class Where:
    """A place in a layout file, for complaints."""

    source: str
    """The file's name."""
    path: str = 'top level'

    def below(self, *parts: object) -> Where:
        """The place of an entry below this one."""
        return dataclasses.replace(self, path=' '.join(map(str, parts)))

    def item(self, number: int) -> Where:
        """The place of an item of the list that stands here."""
        return self.below(f'{self.path}, item {number}')

    def error(self, problem: str, expected: str) -> exception.LayoutError:
        """The complaint; raise it."""
        return exception.LayoutError(
            source=self.source, where=self.path, problem=problem,
            expected=expected)

    def mapping(self, value: Any, required: Collection[str],
                optional: Collection[str] = ()) -> dict[str, Any]:
        """``value``, which must have these keys and no others.

        :raises LayoutError: if it is anything else.
        """
        known = [*required, *optional]
        if not isinstance(value, dict):
            raise self.error(f'{kind(value)} stands there',
                             'expected keys: ' + ', '.join(known))
        for key in value:
            if key not in known:
                raise self.error(f'unknown key {key!r}',
                                 'known are ' + ', '.join(known))
        for key in required:
            if key not in value:
                raise self.error(f'key {key!r} is missing',
                                 'expected keys: ' + ', '.join(known))
        return value


def plain(text: str, where: Where) -> Any:
    """What YAML or JSON says: plain values, and no key of a mapping twice.

    :param where: whose ``error`` is raised if it is not YAML.
    """
    try:
        # A subclass of SafeLoader: plain values only.
        return yaml.load(text, Loader=_Loader)  # noqa: S506
    except _NOT_YAML as error:
        raise where.error(f'not YAML: {error}'.replace('\n', ' '),
                          'correct it there') from error


def load(text: str, where: Where) -> dict[str, Any]:
    """The entries of a layout file, by name; JSON is YAML too.

    :returns: lists that are not empty, whose items are not looked at.
    :raises LayoutError: if the file is not one.
    """
    content = where.mapping(plain(text, where), ('version', ROOT))
    if content['version'] != VERSION:
        raise where.error(f'unknown version {content["version"]!r}',
                          f'this reads version: {VERSION}')
    entries = content[ROOT]
    where = where.below(ROOT)
    if not isinstance(entries, dict) or not entries:
        raise where.error(f'{kind(entries)} stands there',
                          'expected at least one entry, NAME: [...]')
    for name, items in entries.items():
        if not isinstance(items, list) or not items:
            raise where.below(ROOT, name).error(
                f'{kind(items)} stands there', 'expected a list of at '
                'least one item, each with the key devices')
    return entries


def dump(content: dict[str, Any]) -> str:
    """A layout file's text."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False,
                     default_flow_style=False)


def choose(entries: Sequence[Any], name: str | None, where: Where) -> Any:
    """The entry of that name; without one, the only one there is.

    :param entries: each with a ``name``.
    :raises LayoutError: listing those that there are.
    """
    for entry in entries:
        if entry.name == name or (name is None and len(entries) == 1):
            return entry
    raise where.error(
        'an entry must be chosen' if name is None
        else f'no entry {name!r}',
        'there are ' + ', '.join(entry.name for entry in entries))


def kind(value: Any) -> str:
    """What a value is, for a complaint."""
    if value is None or value in ({}, []):
        return 'nothing'
    if isinstance(value, dict):
        return 'a mapping'
    return 'a list' if isinstance(value, list) else f'{value!r}'


def counts(value: Any, where: Where, example: str) -> dict[str, int]:
    """A mapping of names to how many; 0 is a number too.

    :param example: an entry that would be right.
    :raises LayoutError: if it is anything else, or all of it is 0.
    """
    if not isinstance(value, dict):
        raise where.error(f'{kind(value)} stands there',
                          f'expected names and counts, such as {example}')
    for name, count in value.items():
        if isinstance(count, bool) or not isinstance(count, int) \
                or count < 0:
            raise where.error(
                f'{name}: {count!r} is not a count',
                f'expected a whole number from 0 up, such as {example}')
    if value and not any(value.values()):
        raise where.error('all counts are 0', 'give {} for none at all')
    return value
