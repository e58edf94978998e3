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

"""Values out of a ramdisk, each of which is what it should be.

They come over the network from a program that is not ours to trust, and
end in Ironic's database and in computations of its conductor. So all of it
is bounded, and text has nothing in it that cannot be shown.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model

TEXT_MAX = 255
LIST_MAX = 64

Reader = Callable[[Any, str], Any]
"""Of a value and of where it stands, for complaints; gives the value as it
is kept.
"""


def error(where: str, problem: str, expected: str
          ) -> exception.InventoryError:
    """The complaint; raise it."""
    return exception.InventoryError(where=where, problem=problem,
                                    expected=expected)


def _refused(where, value, expected):
    return error(where, f'{_shown(value)} stands there', expected)


def _shown(value):
    """A value for a complaint, however large it is."""
    if isinstance(value, str):
        return repr(value[:40])
    if value is None or isinstance(value, bool):
        return repr(value)
    return {dict: 'an object', list: 'a list'}.get(type(value), 'a number')


def text(value: Any, where: str) -> str:
    """Text of 1 to 255 characters that can be shown, on one line.

    Blanks around it, and several between words, are not kept.
    """
    if (not isinstance(value, str) or not 0 < len(value) <= TEXT_MAX
            or not value.isprintable() or value.isspace()):
        raise _refused(where, value, 'expected 1 to '
                       f'{TEXT_MAX} printable characters')
    return ' '.join(value.split())


def tidy(value: str | None) -> str | None:
    """Any text as :func:`text` takes it, cut short where it is longer."""
    if value is None:
        return None
    words = ' '.join(value.split())
    plain = ''.join(letter if letter.isprintable() else '?'
                    for letter in words)
    return plain[:TEXT_MAX] or None


def truth(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _refused(where, value, 'expected true or false')
    return value


def number(low: int, high: int) -> Reader:
    """A whole number from ``low`` to ``high``."""
    def read(value, where):
        if type(value) is not int or not low <= value <= high:
            raise _refused(where, value,
                           f'expected a whole number, {low} to {high}')
        return value
    return read


def choice(*words: str) -> Reader:
    """One of several words."""
    def read(value, where):
        if value not in words:
            raise _refused(where, value, 'expected ' + ', '.join(words))
        return value
    return read


def address(value: Any, where: str) -> model.PciAddress:
    """A PCI address."""
    try:
        return model.PciAddress.parse(value)
    except exception.InvalidPciAddress:
        raise _refused(where, value, 'expected a PCI address such as '
                       '0000:3b:00.0') from None


def pci_id(value: Any, where: str) -> str:
    """Four hexadecimal digits."""
    if (not isinstance(value, str) or len(value) != 4
            or not set(value) <= set('0123456789abcdef')):
        raise _refused(where, value, 'expected four lower-case hexadecimal '
                       'digits')
    return value


def optional(read: Reader) -> Reader:
    """None, or what ``read`` takes."""
    return lambda value, where: None if value is None else read(value, where)


def several(read: Reader) -> Reader:
    """A list of at most 64, each of which ``read`` takes."""
    def read_all(value, where):
        if not isinstance(value, list) or len(value) > LIST_MAX:
            raise error(where, 'no list' if not isinstance(value, list)
                        else f'{len(value)} items stand there',
                        f'expected a list of at most {LIST_MAX}')
        return tuple(read(item, f'{where}[{number}]')
                     for number, item in enumerate(value))
    return read_all


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise _refused(where, value, 'expected an object')
    return value


def record(made: Callable[..., Any], readers: Mapping[str, Reader],
           later: Mapping[str, Reader] | None = None) -> Reader:
    """An object that has at least these keys.

    Others are passed over: a later release may say more of the same.

    :param made: of the values, by key.
    :param later: keys that earlier releases did not send; None is the value
        of one that is missing.
    """
    later = {key: optional(reader) for key, reader in (later or {}).items()}

    def read(value, where):
        value = mapping(value, where)
        for key in readers:
            if key not in value:
                raise error(where, f'key {key!r} is missing',
                            'expected keys: ' + ', '.join(readers))
        return made(**{key: reader(value.get(key), f'{where}.{key}')
                       for key, reader in {**readers, **later}.items()})
    return read
