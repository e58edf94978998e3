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


"""Removes from a record what identifies a single board."""

from __future__ import annotations

import re
from typing import Any

_UUID = re.compile('[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}')
_SECRET_CALLS = frozenset({'nvmlDeviceGetSerial'})
"""Calls whose answers are replaced wherever the answers occur."""
_PROGRAMS = ('nvidia', 'nv-', 'nvsm', 'dcgm', 'qemu', 'python', 'cyborg',
             'libvirt', 'virtqemud', 'nova', 'Xorg', 'Xwayland')
"""Prefixes of the process names of well-known programs."""
_SOMEBODY = 'another program'


def anonymise(document: Any) -> Any:
    """Return the document without identities.

    Each UUID and serial number is replaced by a made-up one. Equal values get
    the same replacement, so that references remain valid. Among processes
    that hold a GPU, only well-known programs keep their names, and no process
    keeps its id.

    :param document: a value that :func:`json.dumps` accepts.
    """
    return _Replacement(_secrets(document)).of(_without_people(document))


def _without_people(value):
    """Return a value without process ids and names of private programs."""
    if isinstance(value, list):
        return [_without_people(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {'pid', 'name'}:
        known = value['pid'] == 0 or str(value['name']).startswith(_PROGRAMS)
        return {'pid': value['pid'] and None,
                'name': value['name'] if known else _SOMEBODY}
    return {key: _without_people(item) for key, item in value.items()}


def _secrets(value):
    """Return the answers that are secret as a whole, in order."""
    if isinstance(value, dict):
        if (value.get('call') in _SECRET_CALLS
                and isinstance(value.get('result'), str)):
            return [value['result']]
        serial = value.get('serial')
        if isinstance(serial, str) and serial:
            return [serial, *_secrets([item for key, item in value.items()
                                       if key != 'serial'])]
        value = list(value.values())
    if isinstance(value, list):
        return [secret for item in value for secret in _secrets(item)]
    return []


class _Replacement:
    def __init__(self, secrets):
        self._uuids = {}
        self._words = {secret: f'SERIAL-{number}' for number, secret
                       in enumerate(dict.fromkeys(secrets), 1)}
        longest_first = sorted(self._words, key=len, reverse=True)
        self._pattern = re.compile(
            r'(?<![0-9A-Za-z])(?:' + '|'.join(map(re.escape, longest_first))
            + r')(?![0-9A-Za-z])') if longest_first else None

    def of(self, value):
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(key): self.of(item)
                    for key, item in value.items()}
        if isinstance(value, list):
            return [self.of(item) for item in value]
        return value

    def _text(self, text):
        text = _UUID.sub(self._uuid, text)
        if self._pattern is not None:
            text = self._pattern.sub(
                lambda match: self._words[match.group()], text)
        return text

    def _uuid(self, match):
        found = match.group().lower()
        number = self._uuids.setdefault(found, len(self._uuids) + 1)
        return f'00000000-0000-4000-8000-{number:012x}'
