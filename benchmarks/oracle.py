# SPDX-License-Identifier: Apache-2.0


"""Which instances fit if every running instance may be moved."""

from __future__ import annotations

from collections.abc import Sequence

PROFILES = ('1g', '2g', '3g', '4g', '7g')
"""The profiles that are counted, in this order."""


def fits(counts: Sequence[int], gpus: int) -> bool:
    """Whether instances fit on GPUs with the 8-unit grid, if moved freely.

    The result is exact for GPUs of one kind and for the starts that NVIDIA's
    MIG user guide shows for the A100: 1g at 0 to 6, 2g at 0, 2 and 4, 3g at
    0 and 4, 4g and 7g at 0. A GPU has two halves. The left half takes a 4g,
    a 3g, or 2g and 1g on its four units. The right half takes no 4g. Small
    instances can use three of its four units, and a 2g two of those three.

    :param counts: the number of instances of each of :data:`PROFILES`.
    """
    one, two, three, four, seven = counts
    rest = gpus - seven
    if rest < 0 or four > rest:
        return False
    left, right = rest - four, rest
    # A 3g wastes least in the right half, where small instances waste a unit.
    in_right = min(three, right)
    right -= in_right
    left -= three - in_right
    return (left >= 0 and two <= 2 * left + right
            and one <= 4 * left + 3 * right - 2 * two)


class Repacking:
    """A cluster that accepts all that fits if other instances may be moved."""

    def __init__(self, gpus: int):
        self._gpus = gpus
        self._counts = [0] * len(PROFILES)

    def request(self, profile: int) -> int | None:
        """Place one more instance, given by its index in :data:`PROFILES`.

        :returns: the argument for :meth:`remove`, None if it does not fit.
        """
        self._counts[profile] += 1
        if fits(self._counts, self._gpus):
            return profile
        self._counts[profile] -= 1
        return None

    def remove(self, profile: int) -> None:
        """Remove an instance."""
        self._counts[profile] -= 1
