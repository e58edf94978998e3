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

"""Put a simulated library under the real pynvml, and remove it again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pynvml

_POINTERS = pynvml._nvmlGetFunctionPointer_cache


class Patch:
    """One replacement of ``pynvml.nvmlLib``. Undo them in reverse order."""

    def __init__(self, machine):
        self._machine = machine
        self._before = None

    def apply(self) -> Patch:
        with pynvml.libLoadLock:
            self._before = _saved()
            # pynvml caches each function that it has looked up.
            _POINTERS.clear()
            pynvml.nvmlLib = self._machine.library
            pynvml._LoadNvmlLibrary = self._load
            pynvml._nvmlLib_refcount = 0
        return self

    def undo(self) -> None:
        with pynvml.libLoadLock:
            _restore(self._before)

    def _load(self):
        """Replaces the function of pynvml that loads libnvidia-ml.so.1."""
        with self._machine.operation():
            code = self._machine.state.nvml
        if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            raise pynvml.NVMLError(code)


def replace(before: Any, after: Any) -> None:
    """Replace one library by another, if pynvml uses the first one."""
    with pynvml.libLoadLock:
        if pynvml.nvmlLib is before:
            _POINTERS.clear()
            pynvml.nvmlLib = after
            pynvml._nvmlLib_refcount = 0


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restore at exit what pynvml uses at entry."""
    with pynvml.libLoadLock:
        before = _saved()
    try:
        yield
    finally:
        with pynvml.libLoadLock:
            _restore(before)


def _saved():
    return (pynvml.nvmlLib, pynvml._LoadNvmlLibrary,
            pynvml._nvmlLib_refcount, dict(_POINTERS))


def _restore(before):
    (pynvml.nvmlLib, pynvml._LoadNvmlLibrary, pynvml._nvmlLib_refcount,
     pointers) = before
    _POINTERS.clear()
    _POINTERS.update(pointers)
