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

"""Fields of the files that this library keeps: each is what it should be.

Python takes True for 1 and 1.0 for 1; a file that says so was not written
by us, and is not believed.
"""

from __future__ import annotations

from typing import Any

_LAST = 253402300800
"""Seconds of the epoch at which the year 10000 begins."""


def number(value: Any) -> int:
    """``value``, if it is a whole number from 0.

    :raises ValueError: if not.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f'{value!r} is not a number from 0')
    return value


def optional_number(value: Any) -> int | None:
    """``value``, if it is a whole number from 0 or None.

    :raises ValueError: if not.
    """
    return None if value is None else number(value)


def text(value: Any) -> str:
    """``value``, if it is text.

    :raises ValueError: if not.
    """
    if type(value) is not str:
        raise ValueError(f'{value!r} is not text')
    return value


def truth(value: Any) -> bool:
    """``value``, if it is true or false.

    :raises ValueError: if not.
    """
    if type(value) is not bool:
        raise ValueError(f'{value!r} is neither true nor false')
    return value


def time(value: Any) -> float:
    """``value``, if it is a time that people can be shown as a date.

    :param value: seconds of the epoch.
    :raises ValueError: if not.
    """
    if type(value) not in (int, float) or not 0 <= value < _LAST:
        raise ValueError(f'{value!r} is not a time')
    return float(value)
