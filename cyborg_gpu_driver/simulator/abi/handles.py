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

"""Opaque handles: numbers that stand for objects while these exist."""

from __future__ import annotations

from collections.abc import Callable

_FIRST = 0x7f5200000000
_STEP = 0x140


class Handles:
    """The handles that one NVML session has returned.

    A key names an object while the object exists: its kind, the GPU's
    address, then the serial number of an instance or the epoch of a GPU.
    Like memory, a number may be reused for another object of the same kind
    on the same GPU when the first object is gone. So a caller that keeps a
    handle too long cannot rely on an error.
    """

    def __init__(self):
        self._values = {}
        self._keys = {}
        self._next = _FIRST

    def value(self, key: tuple, gone: Callable[[tuple], bool]) -> int:
        """Return the handle of the object that ``key`` names.

        :param gone: whether the object of another key does not exist any
            more.
        """
        if key not in self._values:
            value = self._free(key, gone)
            self._values[key] = value
            self._keys[value] = key
        return self._values[key]

    def _free(self, key, gone):
        for value, other in self._keys.items():
            if other[:2] == key[:2] and gone(other):
                del self._values[other]
                return value
        self._next += _STEP
        return self._next

    def key(self, value: int) -> tuple | None:
        """Return the key of a handle; None if it was never returned."""
        return self._keys.get(value)

    def clear(self) -> None:
        """Forget all handles, as at the end of a session."""
        self._values.clear()
        self._keys.clear()
