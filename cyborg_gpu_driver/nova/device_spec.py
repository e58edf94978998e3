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


"""Which PCI functions a ``[pci] device_spec`` of Nova matches: pure.

It matches as nova/pci/devspec.py of Nova 34 does; a test compares the two.
This is a separate implementation, because Nova need not be installed where
cyborg-agent runs.
"""

from __future__ import annotations

import dataclasses
import json
import re
import string
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_utils import strutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model

_ANY = '*'
_PARTS = ('domain', 'bus', 'slot', 'function')
_LIMITS = {'domain': 0xffff, 'bus': 0xff, 'slot': 0x1f, 'function': 0x7}
_HEX = frozenset(string.hexdigits)
_EXPECTED = ('expected a JSON object, or a list of them, with vendor_id, '
             'product_id and address as the help of [pci] device_spec '
             'describes')


@dataclasses.dataclass(frozen=True)
class Function:
    """A PCI function as Nova gets it from libvirt."""

    address: model.PciAddress
    vendor_id: str
    product_id: str
    parent: model.PciAddress | None = None
    """The GPU, if this is a virtual function."""


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    """One entry of ``[pci] device_spec``."""

    text: str
    """The entry as written in nova.conf."""
    tags: Mapping[str, Any]
    """All other keys of the entry."""
    vendor_id: str = _ANY
    product_id: str = _ANY
    address: Mapping[str, str | re.Pattern[str]] | None = None
    """A pattern for each part of the address. None matches no function: the
    entry names a network interface."""

    @property
    def managed(self) -> bool:
        """Whether libvirt rebinds the function; Nova's default is yes."""
        return strutils.bool_from_string(self.tags.get('managed', True))

    @property
    def live_migratable(self) -> bool:
        """Whether Nova may live-migrate a server that has the function."""
        return strutils.bool_from_string(
            self.tags.get('live_migratable', False))

    @property
    def traits(self) -> frozenset[str]:
        """The traits that the entry names."""
        return frozenset(filter(None, (
            name.strip() for name
            in str(self.tags.get('traits') or '').split(','))))

    def matches(self, function: Function) -> bool:
        """Whether this entry lets Nova give ``function`` to servers."""
        if (self.address is None
                or self.vendor_id not in (_ANY, function.vendor_id)
                or self.product_id not in (_ANY, function.product_id)):
            return False
        # An entry that names a GPU covers its virtual functions too.
        by_parent = (function.parent is not None and self._is_plain
                     and self._matches(function.parent))
        return by_parent or self._matches(function.address)

    @property
    def _is_plain(self):
        texts = [value if isinstance(value, str) else value.pattern
                 for value in (self.address or {}).values()]
        return all(text and set(text) <= _HEX for text in texts)

    def _matches(self, address):
        patterns = self.address
        return patterns is not None and all(
            _matches_part(patterns[part], value) for part, value
            in zip(_PARTS, _parts(address), strict=True))


def parse(texts: Sequence[str]) -> tuple[DeviceSpec, ...]:
    """Return the entries of the option.

    :raises InvalidValue: if Nova would refuse an entry; names that entry.
    """
    return tuple(spec for text in texts for spec in _parse(text))


def _parse(text):
    try:
        found = json.loads(text)
        entries = [found] if isinstance(found, dict) else found
        if not isinstance(entries, list):
            raise ValueError('neither an object nor a list')
        for entry in entries:
            yield _spec(text, dict(entry))
    except (ValueError, TypeError, AttributeError, re.error) as error:
        raise exception.InvalidValue(
            what='[pci] device_spec', value=text,
            expected=f'{_EXPECTED}: {error}') from error


def _spec(text, entry):
    vendor, product = (
        _hex(entry.pop(name, _ANY), 0xffff)
        for name in ('vendor_id', 'product_id'))
    interface = entry.pop('devname', None)
    address = entry.pop('address', None)
    return DeviceSpec(
        text=text, tags=entry, vendor_id=vendor, product_id=product,
        address=None if interface else _address(address))


def _address(value):
    """Return the pattern of each part, from a glob or regular expressions."""
    if isinstance(value, dict):
        return {part: re.compile(value.get(part, '.*')) for part in _PARTS}
    rest, _, function = (value or '').partition('.')
    fields = rest.split(':') if rest else []
    fields = [_ANY] * (3 - len(fields)) + fields
    return {part: _hex(field.strip() or _ANY, _LIMITS[part])
            for part, field in zip(_PARTS, (*fields, function),
                                   strict=True)}


def _hex(value, limit):
    value = value.strip()
    if value == _ANY:
        return value
    number = int(value, 16)
    if number > limit:
        raise ValueError(f'{value} is more than {limit:x}')
    return f'{number:0{len(f"{limit:x}")}x}'


def _parts(address):
    return (f'{address.domain:04x}', f'{address.bus:02x}',
            f'{address.device:02x}', f'{address.function:x}')


def _matches_part(pattern, value):
    if isinstance(pattern, str):
        return pattern in (_ANY, value)
    return pattern.match(value) is not None
