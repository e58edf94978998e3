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

"""Weights of hosts by how bad their GPUs are. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

IMPOSSIBLE = -10.0
"""The weight of a host that cannot take the request."""


def weights(figures: Sequence[float | None]) -> list[float]:
    """Return the weights of hosts: 0 to 1, and :data:`IMPOSSIBLE`.

    :param figures: how bad each host's best GPU is; infinite if it is
        impossible. An unknown one counts as the mean of the others.
    """
    known = [figure for figure in figures
             if figure is not None and math.isfinite(figure)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    mean = statistics.fmean(known) if known else 0.0
    span = high - low or 1.0
    return [IMPOSSIBLE if figure == math.inf
            else (high - (mean if figure is None else figure)) / span
            for figure in figures]
