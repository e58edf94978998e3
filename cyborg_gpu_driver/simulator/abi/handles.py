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

from collections.abc import Callable

_FIRST = 0x7f5200000000
_STEP = 0x140


class Handles:
    """Handles that one NVML session has given out.

    A key names a thing for as long as it lives: kind, GPU's address, then
    the serial number of an instance, the epoch of a GPU. A number may be
    given out again for another thing of the same kind on the same GPU when
    the first is gone, as memory is: whoever keeps a handle too long must
    not count on an error.
    """

    def __init__(self):
        self._values = {}
        self._keys = {}
        self._next = _FIRST

    def value(self, key: tuple, gone: Callable[[tuple], bool]) -> int:
        """The handle of the thing named by ``key``.

        :param gone: whether the thing of another key is no more.
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
        """What a handle stands for, None if it was never given out."""
        return self._keys.get(value)

    def clear(self) -> None:
        """Forget all, as at the end of a session."""
        self._values.clear()
        self._keys.clear()
