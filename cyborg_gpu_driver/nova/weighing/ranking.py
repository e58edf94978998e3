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
from collections.abc import Hashable
from collections.abc import Sequence

FURTHER = 10.0
"""How far further attempts at the same host are below all others. Nova takes
the next host in its order if a claim fails, or if the server fails to build:
that should be another host, as long as there is one."""


def weights(figures: Sequence[float | None], hosts: Sequence[Hashable]
            ) -> list[float]:
    """Return the weights: 0 to 1 for the best attempt at each host.

    Further attempts at the same host are below those, in their own order, and
    impossible attempts are below all others.

    :param figures: how bad each attempt is; infinite if it is impossible. An
        unknown one counts as the mean of the others.
    :param hosts: the host of each attempt.
    """
    known = [figure for figure in figures
             if figure is not None and math.isfinite(figure)]
    mean = statistics.fmean(known) if known else 0.0
    filled = [mean if figure is None else figure for figure in figures]
    order = sorted(range(len(filled)), key=lambda number: (
        filled[number], figures[number] is None))
    first: dict[Hashable, int] = {}
    for number in order:
        first.setdefault(hosts[number], number)
    best = [filled[number] for number in first.values()
            if math.isfinite(filled[number])]
    low, high = min(best, default=0.0), max(best, default=0.0)
    found = [0.0] * len(filled)
    for position, number in enumerate(order):
        if not math.isfinite(filled[number]):
            found[number] = -2 * FURTHER
        elif first[hosts[number]] != number:
            found[number] = -FURTHER - position / len(order)
        elif high > low:
            found[number] = (high - filled[number]) / (high - low)
    return found
