# SPDX-License-Identifier: Apache-2.0

"""Which GPU a server prefers: placement policies. Pure."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Mapping

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost

PLACEMENT = 'gpu:strategy'
"""Extra spec of a flavor: one of :class:`Placement`."""
APPLICATION = 'gpu:application'
"""Extra spec of a flavor: the application that its servers run, as the
interference file names it."""
NAME = r'[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}'
"""Pattern of the name of an application."""

_TIE = 1e-3
"""The weight of emptiness relative to interference: it only decides between
GPUs that are about equal."""


class Placement(enum.Enum):
    """What makes one GPU better than another."""

    PACK = 'pack'
    """The request leaves most of what could still be created."""
    SPREAD = 'spread'
    """The GPU is empty."""
    STANDALONE = 'standalone'
    """Only servers of the same project are on it."""
    QUIET = 'quiet'
    """Servers slow each other down little."""

    @property
    def is_strict(self) -> bool:
        """Whether the policy rules GPUs out, instead of only ranking them."""
        return self is Placement.STANDALONE


@dataclasses.dataclass(frozen=True)
class Wish:
    """What a flavor says about the choice of a GPU."""

    placement: Placement | None = None
    """None: the flavor does not say."""
    application: str = ''


@dataclasses.dataclass(frozen=True)
class Company:
    """Who is on the GPUs that a request would take."""

    neighbours: int = 0
    """Slices or vGPUs in use on these GPUs."""
    strangers: int = 0
    """Those that belong, or may belong, to another project."""
    interference: float | None = None
    """By how much all servers would run longer, as a sum of shares of their
    run times; infinite if they do not fit together. None: not known."""


def wish(extra_specs: Mapping[str, str], flavor: str) -> Wish:
    """Return what a flavor says about the choice of a GPU.

    :raises InvalidValue: an extra spec of the weigher has another form.
    """
    found = extra_specs.get(PLACEMENT)
    words = [item.value for item in Placement]
    if found is not None and found not in words:
        raise _wrong(PLACEMENT, flavor, found,
                     f'expected one of {", ".join(words)}')
    application = extra_specs.get(APPLICATION, '')
    if application and not re.fullmatch(NAME, application):
        raise _wrong(APPLICATION, flavor, application,
                     'expected letters, digits and any of . _ + - , at most '
                     '64 characters')
    return Wish(None if found is None else Placement(found), application)


def _wrong(key: str, flavor: str, value: str, expected: str
           ) -> exception.InvalidValue:
    return exception.InvalidValue(
        what=f'Extra spec {key} of flavor {flavor}:', value=value,
        expected=expected)


def figure(policy: Placement, cost: weigher_cost.Cost, company: Company
           ) -> float:
    """Return how bad a GPU is: the least is best, infinite is impossible."""
    if policy is Placement.PACK:
        return cost.packing
    if policy is Placement.SPREAD:
        return -cost.spreading
    if policy is Placement.STANDALONE:
        return _standalone(cost, company)
    # Without measured slowdowns, slices and vGPUs in use count.
    trouble = (company.neighbours if company.interference is None
               else company.interference)
    return trouble - _TIE * cost.spreading


def _standalone(cost: weigher_cost.Cost, company: Company) -> float:
    if company.strangers or math.isinf(cost.loss):
        return math.inf
    # GPUs that the project uses already come first; ties are broken as by
    # pack, whose term is below 1 here.
    return (not company.neighbours) + cost.packing / (1 + cost.packing)
