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

"""The table of C symbols that the simulated library has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Symbol:
    function: Callable
    writes: bool
    """Whether the function can change the machine."""
    privileged: bool
    """Whether the function needs root."""
    before: Callable | None = None
    """Waits before the call, while the machine is not held. It is called with
    the same arguments."""


TABLE: dict[str, Symbol] = {}


def symbol(*names: str, writes: bool = False, privileged: bool = False,
           before: Callable | None = None):
    """Register a function as C symbols.

    The function gets the library, then the C function's arguments. It returns
    nothing for NVML_SUCCESS and raises ``Refused`` otherwise.
    """
    def register(function):
        for name in names:
            TABLE[name] = Symbol(function, writes, privileged, before)
        return function
    return register
