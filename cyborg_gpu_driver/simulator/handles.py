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

"""Opaque handles: numbers that stand for things until they are gone."""

from __future__ import annotations

_FIRST = 0x7f5200000000
_STEP = 0x140


class Handles:
    """Handles that one NVML session has given out.

    A key names a thing for as long as it lives (with the serial number of
    an instance, the epoch of a GPU), so that a handle of something gone is
    never taken for its successor. A number is never used again.
    """

    def __init__(self):
        self._values = {}
        self._keys = {}
        self._next = _FIRST

    def value(self, *key: object) -> int:
        """The handle of the thing named by ``key``."""
        if key not in self._values:
            self._values[key] = self._next
            self._keys[self._next] = key
            self._next += _STEP
        return self._values[key]

    def key(self, value: int) -> tuple | None:
        """What a handle stands for, None if it was never given out."""
        return self._keys.get(value)

    def clear(self) -> None:
        """Forget all, as at the end of a session."""
        self._values.clear()
        self._keys.clear()
