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

from typing import Any

import yaml

from cyborg_gpu_driver import schema

_BITS = 63
"""Of the greatest number; Python does not even print one of thousands."""
_NOT_YAML = (yaml.YAMLError, RecursionError, ValueError, LookupError,
             TypeError, AttributeError, OverflowError)
"""What PyYAML raises; all but the first for values that are not what their
tag says (``!!int ''``, ``!!bool x``, ``!!timestamp x``)."""


class _Loader(yaml.SafeLoader):
    """Plain values only, and no key twice."""


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
                None, None, f'key {key!r} appears twice: leave one',
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
    """A list that is written on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes like people do: lists indented below their key."""

    def increase_indent(self, flow: bool=False, indentless: bool=False
                        ) -> None:
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(Flow, lambda dumper, value: (
    dumper.represent_sequence('tag:yaml.org,2002:seq', value,
                              flow_style=True)))


def plain(text: str, place: schema.Place) -> Any:
    """What YAML or JSON says: plain values, and no key of a mapping twice.

    :param place: of the text.
    :raises DocumentError: of the place's type, if it is not YAML.
    """
    try:
        # A subclass of SafeLoader: plain values only.
        return yaml.load(text, Loader=_Loader)  # noqa: S506
    except _NOT_YAML as error:
        raise place.error(f'not YAML: {error}'.replace('\n', ' '),
                          'correct it there') from error


def dump(content: dict[str, Any]) -> str:
    """A layout file's text."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False,
                     default_flow_style=False)
