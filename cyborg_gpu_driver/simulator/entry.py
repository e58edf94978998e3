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

"""Reading a YAML mapping strictly: every key known, every value checked.

A complaint names the file, the place in it and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
from typing import NoReturn

from cyborg_gpu_driver import exception

REQUIRED = object()
_ADDRESS = re.compile('[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f][.][0-7]')


class Entry:
    """One mapping of a file, whose keys are taken out one by one.

    :param source: the file, for messages.
    :param place: where in the file, such as ``gpus[2]``.
    :raises SimulationError: on creation if ``value`` is no mapping.
    """

    def __init__(self, source: str, place: str, value: Any):
        self.source = source
        self.place = place
        if not isinstance(value, dict):
            self.refuse('', value, 'a mapping')
        self._left = dict(value)

    def refuse(self, key: Any, value: Any, expected: str) -> NoReturn:
        """Complain about one value."""
        place = '.'.join(str(part) for part in (self.place, key)
                         if part != '')
        raise exception.SimulationError(
            name=self.source,
            reason=f'{place or "the file"}: {value!r} is not right, '
                   f'expected {expected}')

    def done(self) -> None:
        """Refuse keys that nobody took."""
        for key in self._left:
            raise exception.SimulationError(
                name=self.source,
                reason=f'{self.place or "the file"}: unknown key {key!r}')

    def take(self, key: Any, check: Callable[[Any], bool], expected: str,
             default: Any = REQUIRED) -> Any:
        """The value of ``key``; ``default`` where it is absent.

        :raises SimulationError: if it is missing or fails ``check``.
        """
        if key not in self._left:
            if default is REQUIRED:
                raise exception.SimulationError(
                    name=self.source,
                    reason=f'{self.place or "the file"}: {key!r} is '
                           f'missing, expected {expected}')
            return default
        value = self._left.pop(key)
        if not check(value):
            self.refuse(key, value, expected)
        return value

    def integer(self, key: Any, default: Any = REQUIRED,
                minimum: int = 0) -> Any:
        return self.take(
            key, lambda value: is_integer(value) and value >= minimum,
            f'an integer of at least {minimum}', default)

    def boolean(self, key: str, default: Any = REQUIRED) -> Any:
        return self.take(key, lambda value: isinstance(value, bool),
                         'true or false', default)

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        return self.take(
            key, lambda value: isinstance(value, str) and value != '',
            'a text, in quotes if it could be a number', default)

    def choice(self, key: str, choices: Iterable[str],
               default: Any = REQUIRED) -> Any:
        choices = tuple(choices)
        return self.take(key, lambda value: value in choices,
                         'one of ' + ', '.join(choices), default)

    def digits(self, key: str, length: int,
               default: Any = REQUIRED) -> Any:
        """Hexadecimal digits. Unquoted, YAML may make a number of them."""
        return self.take(
            key, lambda value: isinstance(value, str) and re.fullmatch(
                f'[0-9a-f]{{{length}}}', value) is not None,
            f'{length} lower-case hexadecimal digits in quotes', default)

    def address(self, key: str, default: Any = REQUIRED) -> Any:
        return self.take(key, is_address, ADDRESS_EXPECTED, default)

    def integers(self, key: str, default: Any = REQUIRED) -> Any:
        value = self.take(
            key, lambda items: isinstance(items, list) and all(
                is_integer(item) and item >= 0 for item in items),
            'a list of integers', default)
        return value if value is default else tuple(value)

    def entry(self, key: str) -> Entry | None:
        """A mapping within, None where it is absent or null."""
        value = self._left.pop(key, None)
        if value is None:
            return None
        return Entry(self.source, f'{self.place}.{key}'.strip('.'), value)

    def entries(self, key: str) -> list[Entry]:
        """A list of mappings, empty where it is absent."""
        value = self.take(key, lambda items: isinstance(items, list),
                          'a list', [])
        place = f'{self.place}.{key}'.strip('.')
        return [Entry(self.source, f'{place}[{number}]', item)
                for number, item in enumerate(value)]


ADDRESS_EXPECTED = "a PCI address in quotes, such as '0000:3b:00.0'"


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_address(value: Any) -> bool:
    """Whether it is a PCI address as sysfs spells it."""
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None
