# SPDX-License-Identifier: Apache-2.0

"""Check a parsed document against a JSON schema, and say what is wrong.

Schemas are Python dicts in JSON Schema's vocabulary (draft 2020-12, the
library ``jsonschema``), each beside the file format that it describes. The
library finds the faults; the error names the first of them: the file, the
place in it, what was found and what would be right. A schema's
``description`` and ``examples`` say what would be right; the functions below
write it for numbers, text, lists and mappings.

The keywords of a schema are checked in their order, so that the order decides
which fault is reported first.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

from cyborg_gpu_driver import exception

if TYPE_CHECKING:
    from jsonschema import exceptions as errors
    from jsonschema import protocols

Schema = Mapping[str, Any]
Formats = Mapping[str, Callable[[str], Any]]
"""For each ``format`` of a schema, a function that accepts text of the format
and raises InvalidValue for other text."""

TEXT: Schema = {'type': 'string', 'description': 'text'}
TRUTH: Schema = {'type': 'boolean', 'description': 'true or false'}

DEPTH_MAX = 64
"""Maximum levels of nested lists and mappings."""
SIZE_MAX = 1 << 22
"""Maximum values and characters. YAML's aliases can make a short text a huge
value, and jsonschema writes each wrong value into a message of its own."""

_BITS_MAX = 1 << 12
"""Maximum bits of a number: Python refuses to print thousands of digits."""
_INTEGER_BITS = 64
_ONE = {1: 'one'}
_DECIMAL_MAX = 1 << 24
_KEYS_SHOWN = 9
_SHOWN_MAX = 60
_PLAIN_KEY = re.compile(r'[\w.:/+-]+', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Place:
    """A place in a document, such as ``flavors[2].ram``."""

    source: str
    path: str = ''

    def below(self, *parts: str | int) -> Place:
        """The place of a value below this one."""
        path = self.path
        for part in parts:
            name = _key(part)
            if name == part:
                path = f'{path}.{part}' if path else part
            else:
                path = f'{path}[{name}]'
        return dataclasses.replace(self, path=path)

    def error(self, problem: str, expected: str) -> exception.DocumentError:
        """The error to raise."""
        return exception.DocumentError(
            source=self.source, where=self.path or 'top level',
            problem=problem, expected=expected)

    def wrong(self, value: Any, expected: str) -> exception.DocumentError:
        """The error to raise for a value that is not as expected."""
        return self.error(f'found {shown(value)}',
                          f'expected {expected}')


def check(value: Any, schema: Schema, place: Place,
          formats: Formats | None = None) -> None:
    """Check a document, or a part of one.

    Unlike in the standard, 2.0 is not an integer.
    """
    _check_size(value, place)
    found = next(_validator(schema, formats or {}).iter_errors(value), None)
    if found is not None:
        from jsonschema import exceptions as errors
        # The alternative of a schema that the value was meant to be.
        found = errors.best_match([found]) or found
        if found.validator == 'required' and 'properties' not in found.schema:
            found = found.parent or found
        raise place.below(*found.absolute_path).error(*_words(found))


def mapping(required: Mapping[str, Schema],
            optional: Mapping[str, Schema] | None = None,
            closed: bool = True, **others: Any) -> dict[str, Any]:
    """The schema of a mapping.

    A ``version`` is checked first, because another version of a format may
    have other keys.
    """
    known = {**required, **(optional or {})}
    first: dict[str, Any] = {'type': 'object'}
    if len(known) <= _KEYS_SHOWN:
        first['description'] = 'a mapping with keys ' + ', '.join(known)
    if 'version' in known:
        first['allOf'] = [{'properties': {'version': known['version']}}]
    if closed:
        first['additionalProperties'] = False
    return {**first, 'required': list(required), **others,
            'properties': known}


def integer(low: int, high: int | None = None) -> dict[str, Any]:
    """The schema of a whole number from ``low`` to ``high``."""
    return {'type': 'integer', 'minimum': low,
            **({} if high is None else {'maximum': high}),
            'description': f'a whole number from {low} '
            + ('up' if high is None else f'to {high}')}


def matching(pattern: str, description: str, *examples: str
             ) -> dict[str, Any]:
    """The schema of text that matches a regular expression as a whole."""
    return {'type': 'string', 'pattern': rf'^(?:{pattern})\Z',
            'description': description, 'examples': list(examples)}


def listing(items: Schema, least: int = 0, most: int | None = None,
            **others: Any) -> dict[str, Any]:
    """The schema of a list."""
    return {'type': 'array', 'minItems': least,
            **({} if most is None else {'maxItems': most}),
            'items': items, **others,
            'description': f'a list{_length(least, most, "item")}, each '
            + _expected(items)}


def nullable(schema: Schema) -> dict[str, Any]:
    """The schema of a value that may also be null.

    :param schema: a schema with a type. Its ``enum`` must contain None.
    """
    text = _expected(schema)
    return {**schema, 'type': [schema['type'], 'null'], 'examples': [],
            'description': text if 'enum' in schema else f'{text}, or null'}


def _check_size(value: Any, place: Place) -> None:
    size, level = 0, [value]
    for _depth in range(DEPTH_MAX):
        below: list[Any] = []
        for item in level:
            size += 1 + (len(item) if isinstance(item, (str, bytes)) else 0)
            if isinstance(item, int) and item.bit_length() > _BITS_MAX:
                raise place.error(
                    'a number out of range',
                    f'expected at most {_INTEGER_BITS} bits')
            if isinstance(item, dict):
                below += item.keys()
                below += item.values()
            elif isinstance(item, (list, tuple, set)):
                below += item
            if size + len(below) > SIZE_MAX:
                raise place.error('more than can be read', 'expected at most '
                                  f'{SIZE_MAX} values and characters')
        if not below:
            return
        level = below
    raise place.error('nested too deeply',
                      f'expected at most {DEPTH_MAX} levels')


def _validator(schema: Schema, formats: Formats) -> protocols.Validator:
    import jsonschema
    checker = jsonschema.FormatChecker(())
    for name, parse in formats.items():
        checker.checks(name, exception.InvalidValue)(
            functools.partial(_is_of, parse))
    return _validator_class()(schema, format_checker=checker)


def _is_of(parse: Callable[[str], Any], value: Any) -> bool:
    if isinstance(value, str):
        parse(value)
    return True


@functools.cache
def _validator_class() -> type[protocols.Validator]:
    """The validator. jsonschema is imported late: it takes 0.1 seconds."""
    import jsonschema
    from jsonschema import validators
    standard = jsonschema.Draft202012Validator
    return validators.extend(
        standard, {'uniqueItems': _unique_items},
        type_checker=standard.TYPE_CHECKER.redefine(
            'integer', lambda _checker, value: type(value) is int))


def _unique_items(_validator: Any, _value: Any, instance: Any, _schema: Any
                  ) -> Iterator[errors.ValidationError]:
    """Find equal items in linear time; compares only text and integers."""
    from jsonschema import exceptions as errors
    seen = set()
    for number, item in enumerate(instance if isinstance(instance, list)
                                  else ()):
        if isinstance(item, (str, int)):
            if item in seen:
                yield errors.ValidationError('twice', path=[number],
                                             instance=item)
            seen.add(item)


def shown(value: Any) -> str:
    """A value for a message: short, on one line, as YAML writes it."""
    if value is None:
        return 'nothing'
    if isinstance(value, (list, dict)):
        size = '' if value else 'n empty'
        return f'a{size} {"list" if isinstance(value, list) else "mapping"}'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        if value.bit_length() > _INTEGER_BITS:
            return 'a number out of range'
        # YAML reads hexadecimal numbers, too.
        return f'{value} (0x{value:X})' if value > _DECIMAL_MAX else str(value)
    if isinstance(value, str) and len(value) > _SHOWN_MAX:
        return f'{value[:_SHOWN_MAX]!r}... ({len(value)} characters)'
    text = repr(value)
    return (text if len(text) <= _SHOWN_MAX or isinstance(value, str)
            else f'a {type(value).__name__}')


def _key(key: Any) -> str:
    """A mapping's key for a message, in quotes if it is not a plain word."""
    return (key if isinstance(key, str) and len(key) <= _SHOWN_MAX
            and _PLAIN_KEY.fullmatch(key) else shown(key))


def _words(error: errors.ValidationError) -> tuple[str, str]:
    """The problem, and what would be right."""
    schema: Any = error.schema
    problem = f'found {shown(error.instance)}'
    match error.validator:
        case 'required':
            key = next(key for key in error.validator_value
                       if key not in error.instance)
            return (f'key {key!r} is missing',
                    f'expected {_expected(schema["properties"][key])}')
        case 'additionalProperties':
            known = list(schema['properties'])
            key = next(key for key in error.instance if key not in known)
            return (f'unknown key {shown(key)}',
                    'known keys: ' + ', '.join(known))
        case 'uniqueItems':
            return f'{shown(error.instance)} appears twice', 'keep one'
        case 'maxItems' | 'minItems' if error.instance:
            problem = f'found {len(error.instance)} items'
        case 'oneOf' | 'maxProperties' if error.instance:
            problem = 'found keys ' + ', '.join(
                map(_key, [*error.instance][:_KEYS_SHOWN]))
    if 'propertyNames' in error.relative_schema_path:
        problem = f'found key {shown(error.instance)}'
    if isinstance(error.cause, exception.InvalidValue):
        return problem, str(error.cause.kwargs['expected'])
    quotes = (', in quotes' if 'string' in schema.get('type', ())
              and isinstance(error.instance, (int, float)) else '')
    return problem, f'expected {_expected(schema)}{quotes}'


def _expected(schema: Any) -> str:
    """The values that a schema accepts, for messages."""
    if 'description' in schema:
        examples = ' or '.join(map(str, schema.get('examples', ())))
        return schema['description'] + (f', such as {examples}' if examples
                                        else '')
    if 'const' in schema:
        return str(schema['const'])
    if 'enum' in schema:
        *others, last = ('null' if value is None else str(value)
                         for value in schema['enum'])
        return f'{", ".join(others)} or {last}' if others else last
    if 'anyOf' in schema:
        return ', or '.join(map(_expected, schema['anyOf']))
    text = {'string': 'text', 'object': 'a mapping', 'array': 'a list',
            'number': 'a number', 'integer': 'a whole number'}.get(
                schema.get('type'), 'something else')
    kind, unit = (('Length', 'character') if text == 'text'
                  else ('Properties', 'key'))
    return text + _length(schema.get(f'min{kind}'), schema.get(f'max{kind}'),
                          unit)


def _length(least: int | None, most: int | None, unit: str) -> str:
    if most is not None:
        return (f' of {least} to {most} {unit}s' if least
                else f' of at most {most} {unit}s')
    return f' of at least {_ONE.get(least, least)} {unit}' if least else ''
