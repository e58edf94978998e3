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

"""How much applications slow each other down on one GPU. Pure.

Memory and utilisation alone do not predict which applications can share a GPU
well. The measured slowdown of each pair does: the run time together divided
by the run time alone. The slowdown is not symmetric.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception

_LEAST, _MOST = 0.1, 1000
"""The limits of a slowdown. A value a little below 1 is measurement noise. A
value outside the limits is an error, such as seconds instead of a ratio."""
_FORM = ('expected {"slowdown": {"A": {"B": 1.25}}} with numbers from '
         f'{_LEAST} to {_MOST}, or null for two that do not fit together')


class Matrix:
    """Measured slowdowns.

    A pair that was not measured counts as the mean of all measured pairs
    that fit together; without any, as no slowdown.

    :param slowdowns: by the application that is slowed down, then by the one
        that causes it. Infinite if the two do not fit together.
    """

    def __init__(self, slowdowns: Mapping[str, Mapping[str, float]]):
        self._slowdowns = slowdowns
        known = [value for row in slowdowns.values()
                 for value in row.values() if math.isfinite(value)]
        self._mean = statistics.fmean(known) if known else 1.0

    def slowdown(self, application: str, beside: Iterable[str]) -> float:
        """Return the run time beside others, relative to that alone.

        Each of the others adds its share. An empty application is unknown.
        """
        return 1 + sum(self._pair(application, other) - 1
                       for other in beside)

    def interference(self, application: str, beside: Iterable[str]) -> float:
        """Return by how much all would run longer if application joins."""
        return sum(self._pair(application, other)
                   + self._pair(other, application) - 2 for other in beside)

    def _pair(self, application, other):
        return self._slowdowns.get(application, {}).get(other, self._mean)


def parse(document: Any) -> Matrix:
    """Return the matrix in a JSON document.

    :raises InvalidValue: the document has another form.
    """
    rows = (document.get('slowdown') if isinstance(document, dict)
            else None)
    if not isinstance(rows, dict):
        raise exception.InvalidValue(
            what='document', value=document, expected=_FORM)
    return Matrix({application: _row(application, row)
                   for application, row in rows.items()})


def _row(application, row):
    if not isinstance(row, dict):
        raise exception.InvalidValue(
            what=f'slowdown of {application}', value=row, expected=_FORM)
    return {other: _number(application, other, value)
            for other, value in row.items()}


def _number(application, other, value):
    if value is None:
        return math.inf
    if (isinstance(value, bool) or not isinstance(value, int | float)
            or not _LEAST <= value <= _MOST):
        raise exception.InvalidValue(
            what=f'slowdown of {application} beside {other}', value=value,
            expected=_FORM)
    return float(value)
