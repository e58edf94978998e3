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


"""What fits if everything that runs may be moved."""

from __future__ import annotations

from collections.abc import Sequence

PROFILES = ('1g', '2g', '3g', '4g', '7g')
"""What is counted, in this order."""


def fits(counts: Sequence[int], gpus: int) -> bool:
    """Whether instances fit on GPUs with the 8-unit grid, moved at will.

    Exact for GPUs that are alike and profiles that may start where NVIDIA's
    MIG user guide shows them for the A100: 1g at 0 to 6, 2g at 0, 2 and 4,
    3g at 0 and 4, 4g and 7g at 0. A GPU has two halves. The left one takes
    a 4g, a 3g, or 2g and 1g on its four units; the right one no 4g, and of
    its four units small instances reach three and a 2g two of those.

    :param counts: how many of each, as :data:`PROFILES`.
    """
    one, two, three, four, seven = counts
    rest = gpus - seven
    if rest < 0 or four > rest:
        return False
    left, right = rest - four, rest
    # A 3g wastes least where small ones waste a unit anyway.
    in_right = min(three, right)
    right -= in_right
    left -= three - in_right
    return (left >= 0 and two <= 2 * left + right
            and one <= 4 * left + 3 * right - 2 * two)


class Repacking:
    """Takes whatever fits when all else may be moved for it."""

    def __init__(self, gpus: int):
        self._gpus = gpus
        self._counts = [0] * len(PROFILES)

    def request(self, profile: int) -> int | None:
        """Take one more, given as its number among :data:`PROFILES`.

        :returns: what :meth:`remove` wants, None if it does not fit.
        """
        self._counts[profile] += 1
        if fits(self._counts, self._gpus):
            return profile
        self._counts[profile] -= 1
        return None

    def remove(self, profile: int) -> None:
        """One has ended."""
        self._counts[profile] -= 1
