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

"""Messages about values that do not follow a JSON schema.

A schema's ``description`` and ``examples`` say what would be right. Without
them, its type and bounds do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

from cyborg_gpu_driver import exception

if TYPE_CHECKING:
    from jsonschema import exceptions as errors

INTEGER_BITS = 64
_DECIMAL_MAX = 1 << 24
_KEYS_SHOWN = 9
_SHOWN_MAX = 60
_PLAIN_KEY = re.compile(r'[\w.:/+-]+', re.ASCII)
_ONE = {1: 'one'}
_TYPES = {'array': 'a list', 'boolean': 'true or false', 'null': 'null',
          'number': 'a number', 'object': 'a mapping'}


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
        return _shown_integer(value)
    if isinstance(value, str) and len(value) > _SHOWN_MAX:
        return f'{value[:_SHOWN_MAX]!r}... ({len(value)} characters)'
    text = repr(value)
    return (text if len(text) <= _SHOWN_MAX or isinstance(value, str)
            else f'a {type(value).__name__}')


def name(key: Any) -> str:
    """A mapping's key for a message, in quotes if it is not a plain word."""
    return (key if isinstance(key, str) and len(key) <= _SHOWN_MAX
            and _PLAIN_KEY.fullmatch(key) else shown(key))


def _shown_integer(value: int) -> str:
    """An integer; a large one also in hexadecimal, which YAML reads too."""
    if value.bit_length() > INTEGER_BITS:
        return 'a number out of range'
    return f'{value} (0x{value:X})' if value > _DECIMAL_MAX else str(value)


def meant(error: errors.ValidationError) -> errors.ValidationError:
    """The fault in the alternative that the value was meant to be.

    That is the only alternative of the value's type. If there is none, or
    more than one, the fault remains one of the value as a whole.
    """
    while error.validator in ('anyOf', 'oneOf') and error.context:
        first: dict[Any, errors.ValidationError] = {}
        for inner in error.context:
            first.setdefault(inner.relative_schema_path[0], inner)
        likely = [inner for inner in first.values() if inner.relative_path
                  or inner.validator not in ('const', 'enum', 'type')]
        if len(likely) != 1:
            break
        error = likely[0]
    return error


def words(error: errors.ValidationError) -> tuple[str, str]:
    """The problem, and what would be right."""
    schema: Any = error.schema
    if error.validator == 'required':
        return _missing(error, schema)
    if error.validator == 'additionalProperties':
        return _unknown(error.instance, schema)
    if error.validator == 'uniqueItems':
        return f'{shown(error.instance)} appears twice', 'keep one'
    if error.validator == 'maxProperties':
        return ('both ' + ' and '.join(map(name, [*error.instance][:3])),
                'keep one')
    if error.validator == 'oneOf' and _choice(schema):
        return _not_one(error.instance, _choice(schema))
    problem = f'found {shown(error.instance)}'
    if 'propertyNames' in error.relative_schema_path:
        problem = f'found key {shown(error.instance)}'
    if isinstance(error.cause, exception.InvalidValue):
        return problem, str(error.cause.kwargs['expected'])
    if error.validator in ('maxItems', 'minItems') and error.instance:
        problem = f'found {len(error.instance)} items'
    quotes = (', in quotes' if _type(schema) == 'string'
              and isinstance(error.instance, (int, float)) else '')
    return problem, f'expected {_expected(schema)}{quotes}'


def _missing(error: errors.ValidationError, schema: Any) -> tuple[str, str]:
    key = next(key for key in error.validator_value
               if key not in error.instance)
    return (f'key {key!r} is missing',
            f'expected {_expected(schema["properties"][key])}')


def _unknown(value: Any, schema: Any) -> tuple[str, str]:
    known = list(schema['properties'])
    key = next(key for key in value if key not in known)
    near = difflib.get_close_matches(str(key)[:_SHOWN_MAX], known, 1, 0.75)
    hint = f' (did you mean {near[0]}?)' if near else ''
    return (f'unknown key {shown(key)}{hint}',
            'known keys: ' + ', '.join(known))


def _choice(schema: Any) -> list[str]:
    """The keys of which a mapping needs one; empty for another oneOf."""
    if all(set(branch) == {'required'} for branch in schema['oneOf']):
        return [branch['required'][0] for branch in schema['oneOf']]
    return []


def _not_one(value: Any, keys: list[str]) -> tuple[str, str]:
    there = [key for key in keys if key in value]
    return ('both ' + ' and '.join(there) if there
            else 'neither ' + ' nor '.join(keys),
            'give one of ' + ' and '.join(keys))


def _expected(schema: Any) -> str:
    """The values that a schema accepts, for messages."""
    text = schema.get('description') or _by_keywords(schema)
    examples = schema.get('examples')
    if examples:
        text += f', such as {_joined(examples, "or")}'
    return f'{text}, or null' if isinstance(schema.get('type'), list) else text


def _type(schema: Any) -> Any:
    """A schema's type, without the null that may stand beside it."""
    found = schema.get('type')
    return found[0] if isinstance(found, list) else found


def _by_keywords(schema: Any) -> str:
    if 'const' in schema:
        return _value(schema['const'])
    if 'enum' in schema:
        return _joined(schema['enum'], 'or')
    if 'anyOf' in schema:
        return ', or '.join(map(_expected, schema['anyOf']))
    if _type(schema) == 'integer':
        return 'a whole number' + _bounds(schema)
    if _type(schema) == 'string':
        return 'text' + _length(schema, 'Length', 'character')
    if _type(schema) == 'array':
        return ('a list' + _length(schema, 'Items', 'item')
                + f', each {_expected(schema["items"])}')
    known = schema.get('properties', ())
    if 0 < len(known) <= _KEYS_SHOWN:
        return 'a mapping with keys ' + ', '.join(known)
    return (_TYPES.get(_type(schema), 'something else')
            + _length(schema, 'Properties', 'entry'))


def _bounds(schema: Any) -> str:
    if 'maximum' in schema:
        return f' from {schema["minimum"]} to {schema["maximum"]}'
    return f' from {schema["minimum"]} up' if 'minimum' in schema else ''


def _length(schema: Any, kind: str, unit: str) -> str:
    least, most = schema.get(f'min{kind}'), schema.get(f'max{kind}')
    if most is not None:
        return (f' of {least} to {most} {unit}s' if least
                else f' of at most {most} {unit}s')
    return f' of at least {_ONE.get(least, least)} {unit}' if least else ''


def _joined(values: Iterable[Any], word: str) -> str:
    *others, last = map(_value, values)
    return f'{", ".join(others)} {word} {last}' if others else last


def _value(value: Any) -> str:
    """A value as a person writes it into a file."""
    if isinstance(value, (str, list)):
        return str(value)
    return 'null' if value is None else shown(value)
