# SPDX-License-Identifier: Apache-2.0

"""Encode dataclasses as JSON and decode them by their type hints. Pure.

Decoding is strict: a process relies on the files of the process before it,
and their values reach paths, sysfs and NVML. In Python True equals 1 and 1.0
equals 1; here each value must have the type of its hint. An int is a whole
number from 0, and a float is a time in seconds of the epoch, because records
have no others.

A field that has its default value is left out, so a record can get new
fields without a new version. Decoding ignores fields of a later release, and
:func:`carried` writes them again: after an upgrade is rolled back and
repeated, nothing is missing. Hints may be ``Annotated`` with functions that
check a value. They return the value or raise.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import exception

Encoder = Callable[[Any], Any]
"""Turns a value into one that JSON can represent."""
Decoder = Callable[[Any], Any]
"""Turns a JSON value into the value that was encoded; raises ValueError."""

_LAST = 253402300800
"""Seconds of the epoch at which the year 10000 begins. Times from then on
cannot be shown as a date."""


def encode(value: Any) -> Any:
    """Turn a dataclass or the value of a field into a JSON value."""
    kind: Any = type(value)
    return _encoder(kind)(value)


@functools.cache
def _encoder(kind: type) -> Encoder:
    """The encoder of a type; cached, as a bind encodes hundreds of values.
    """
    if issubclass(kind, enum.Enum):
        return lambda value: value.value
    if _is_text(kind):
        return str
    if dataclasses.is_dataclass(kind):
        return functools.partial(_written, tuple(
            (field.name, _default(field))
            for field in dataclasses.fields(kind)))
    if issubclass(kind, collections.abc.Mapping):
        return lambda value: {str(key): encode(item)
                              for key, item in value.items()}
    if issubclass(kind, frozenset):
        return lambda value: [encode(item) for item in sorted(value)]
    if issubclass(kind, (tuple, list)):
        return lambda value: [encode(item) for item in value]
    return lambda value: value


def _written(fields: Iterable[tuple[str, Any]], value: Any
             ) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    content = {}
    for name, default in fields:
        item = getattr(value, name)
        if item != default:
            content[name] = encode(item)
    return content


def decode(kind: Any, content: Any) -> Any:
    """The value of type ``kind`` that :func:`encode` wrote.

    Fields that this release does not know are ignored at every level.

    :raises ValueError: if ``content`` is anything else, naming the field.
    """
    return _decoded(kind, content)


def parts(kind: type, content: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of a dataclass that can be decoded, and what is wrong.

    :returns: the value by field, and the problem of each other field.
    :raises ValueError: if ``content`` has no fields.
    """
    values, problems = {}, {}
    for name, hint in _known(kind, content).items():
        try:
            values[name] = _decoded(hint, content[name])
        except ValueError as error:
            problems[name] = str(error)
    return values, problems


def carried(kind: Any, before: Any, after: Any) -> Any:
    """Encoded content with the fields that only a later release knows.

    Members of a list belong together if their first fields are equal.

    :param before: the content that ``after`` replaces.
    """
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = typing.get_args(kind)[0]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if type(before) is not type(after) or type(after) not in (dict, list):
        return after
    if origin is collections.abc.Mapping:
        return {key: carried(args[1], before.get(key), item)
                for key, item in after.items()}
    if (origin in (tuple, frozenset) and dataclasses.is_dataclass(args[0])
            and not hasattr(args[0], 'parse')):
        first = dataclasses.fields(args[0])[0].name
        return [carried(args[0], next((
            old for old in before if type(old) is dict
            and old.get(first) == item.get(first)), None), item)
                for item in after]
    if not dataclasses.is_dataclass(kind) or type(after) is not dict:
        return after
    hints = _hints(typing.cast(type, kind))
    return {**{name: item for name, item in before.items()
               if name not in hints},
            **{name: carried(hints[name], before.get(name), item)
               for name, item in after.items()}}


def _decoded(kind: Any, content: Any) -> Any:
    try:
        return _decoder(kind)(content)
    except exception.InvalidValue as error:
        raise ValueError(str(error)) from error


@functools.cache
def _decoder(kind: Any) -> Decoder:
    """The decoder of a type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return functools.partial(_checked, _decoder(args[0]),
                                 kind.__metadata__)
    if origin in (typing.Union, types.UnionType):
        return functools.partial(_one_of, args)
    if origin is tuple and args[-1] is not Ellipsis:
        return functools.partial(_fixed, tuple(map(_decoder, args)))
    if origin in (tuple, frozenset):
        return functools.partial(_several, origin, _decoder(args[0]))
    if origin is collections.abc.Mapping:
        return functools.partial(_mapping, *map(_decoder, args))
    if kind in _PLAIN:
        return _PLAIN[kind]
    if issubclass(kind, enum.Enum):
        return kind
    if _is_text(kind):
        return lambda content: kind.parse(_text(content))
    return functools.partial(_fields, kind)


def _fields(kind: type, content: Any) -> Any:
    values = {}
    for name, hint in _known(kind, content).items():
        try:
            values[name] = _decoded(hint, content[name])
        except ValueError as error:
            raise ValueError(f'{name}: {error}') from error
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f'{kind.__name__}: {error}') from error


def _known(kind: type, content: Any) -> dict[str, Any]:
    """The hints of the fields that ``content`` has."""
    if type(content) is not dict:
        raise ValueError(f'{content!r} is not a {kind.__name__}')
    hints = _hints(kind)
    return {name: hints[name] for name in content if name in hints}


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    # Only with the module's names: a field may have the name of a module.
    return typing.get_type_hints(
        kind, vars(sys.modules[kind.__module__]), {}, include_extras=True)


def _is_text(kind: type) -> bool:
    """Whether values are written with ``str()`` and read with ``parse()``."""
    return hasattr(kind, 'parse')


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _checked(decoded: Decoder, checks: Iterable[Decoder], content: Any
             ) -> Any:
    value = decoded(content)
    for check in checks:
        value = check(value)
    return value


def _one_of(kinds: Iterable[Any], content: Any) -> Any:
    problem: ValueError | None = None
    for kind in kinds:
        try:
            return _decoded(kind, content)
        except ValueError as error:
            # The first error is of the dataclass or list, and says most. The
            # error of None says nothing.
            problem = problem or error
    raise problem or ValueError(f'{content!r} is of an unknown kind')


def _fixed(decoders: tuple[Decoder, ...], content: Any) -> tuple:
    if type(content) is not list or len(content) != len(decoders):
        raise ValueError(f'{content!r} is not a list of {len(decoders)}')
    return tuple(decoded(item) for decoded, item
                 in zip(decoders, content, strict=True))


def _several(origin: Callable, decoded: Decoder, content: Any) -> Any:
    if type(content) is not list:
        raise ValueError(f'{content!r} is not a list')
    return origin(map(decoded, content))


def _mapping(key: Decoder, value: Decoder, content: Any) -> dict:
    if type(content) is not dict:
        raise ValueError(f'{content!r} is not a mapping')
    return {key(name): value(item) for name, item in content.items()}


def _number(content: Any) -> int:
    if type(content) is not int or content < 0:
        raise ValueError(f'{content!r} is not a number from 0')
    return content


def _exactly(kind: type, words: str) -> Decoder:
    def decoded(content: Any) -> Any:
        if type(content) is not kind:
            raise ValueError(f'{content!r} is not {words}')
        return content

    return decoded


def _time(content: Any) -> float:
    if type(content) not in (int, float) or not 0 <= content < _LAST:
        raise ValueError(f'{content!r} is not a time')
    return float(content)


_text = _exactly(str, 'text')
_PLAIN: dict[Any, Decoder] = {
    int: _number, float: _time, str: _text,
    bool: _exactly(bool, 'true or false'),
    type(None): _exactly(type(None), 'null')}
