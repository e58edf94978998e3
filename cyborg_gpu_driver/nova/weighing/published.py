# SPDX-License-Identifier: Apache-2.0

"""GPUs as the agents have published them in Placement. Pure."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import statistics
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import os_resource_classes as orc
import os_traits

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import names as partition_names
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.report.content import names

TRAIT = os_traits.OWNER_CYBORG
"""Every resource provider of Cyborg has it."""

_ATTRIBUTE = re.compile(r'(?<=gb)\.', re.ASCII)
"""The dot that stands for a plus in the label of a profile."""
_OURS = names.custom(names.VENDOR) + '_'


@functools.lru_cache(maxsize=4096)
def _shared(traits: tuple[str, ...]) -> frozenset[str]:
    """Return one shared set for equal traits, which most providers have."""
    return frozenset(traits)


@dataclasses.dataclass(frozen=True)
class Offer:
    """One provider: a profile of one GPU."""

    provider: str
    """UUID."""
    profile: str
    """``passthrough``, ``1g.10gb+me``, ``T4-2B``."""
    resource_class: str
    used: int
    free: int
    """Neither used nor reserved."""
    traits: frozenset[str] = frozenset()
    """Traits of the provider."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU and all that it offers."""

    host: str
    """UUID of the provider of the compute node."""
    address: str
    """PCI address."""
    offers: tuple[Offer, ...]
    """In the order of their profiles."""


@functools.lru_cache(maxsize=1024)
def role_of(profile: str) -> policy.Mode:
    """Return the role of a GPU while a server uses this profile."""
    if profile == policy.Mode.PASSTHROUGH.value:
        return policy.Mode.PASSTHROUGH
    try:
        named = partition_names.VgpuTypeName.parse(profile)
    except exception.InvalidValue:
        # A GPU instance profile, or a type of unknown form on a MIG GPU.
        return policy.Mode.MIG
    return policy.Mode.VGPU if named.slices is None else policy.Mode.MIG


def _exclusive(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers of one GPU; one role excludes the others.

    Between an allocation and the moment when the agent learns of it,
    Placement still has the offers of the other roles.
    """
    taken = {role_of(offer.profile) for offer in offers if offer.used}
    if not taken:
        return tuple(offers)
    return tuple(offer if role_of(offer.profile) in taken
                 else dataclasses.replace(offer, free=0) for offer in offers)


def is_gpu(resource_class: str) -> bool:
    """Whether a resource class can be that of a GPU of this driver."""
    return resource_class == orc.PGPU or resource_class.startswith(_OURS)


def nameless(summaries: Mapping[str, Any], known: Mapping[str, str]) -> bool:
    """Whether the summaries have a Cyborg provider whose name is unknown."""
    return any(provider not in known and TRAIT in summary['traits']
               for provider, summary in summaries.items())


def gpus(summaries: Mapping[str, Any], known: Mapping[str, str]
         ) -> tuple[Gpu, ...]:
    """Return the GPUs among the provider summaries of candidates.

    Providers that do not belong to a GPU of this driver are left out.

    :param summaries: ``provider_summaries`` of Placement's answer.
    :param known: names of providers by UUID.
    """
    found: dict[tuple[str, str], list[Offer]] = {}
    for provider, summary in summaries.items():
        name = names.parse_provider_name(known.get(provider, ''))
        if name is None:
            continue
        for resource_class, amount in summary['resources'].items():
            found.setdefault(
                (summary['root_provider_uuid'], name.gpu), []).append(Offer(
                    provider, _ATTRIBUTE.sub('+', name.label, count=1),
                    resource_class, amount['used'],
                    max(0, amount['capacity'] - amount['used']),
                    _shared(tuple(sorted(summary['traits'])))))
    return tuple(Gpu(host, address, _exclusive(sorted(
        offers, key=lambda offer: offer.profile)))
        for (host, address), offers in sorted(found.items()))


def sold_out(found: Iterable[Gpu], resource_class: str) -> tuple[Gpu, ...]:
    """Return the GPUs of a host that has no more of a resource class."""
    return tuple(dataclasses.replace(gpu, offers=tuple(
        dataclasses.replace(offer, free=0)
        if offer.resource_class == resource_class else offer
        for offer in gpu.offers)) for gpu in found)


def claimed(offers: tuple[Offer, ...], amounts: Mapping[str, int]
            ) -> tuple[Offer, ...]:
    """Return what a GPU offers once claims have been made.

    Until the bind, Placement shows only the claims. But a GPU has one role
    at a time, and an idle GPU takes its type from its first vGPU. Therefore
    what the claims rule out is not free.

    :param amounts: units claimed, by provider.
    """
    was_idle = not any(offer.used for offer in offers)
    is_used = any(amounts.get(offer.provider) for offer in offers)

    def after(offer: Offer) -> Offer:
        amount = amounts.get(offer.provider, 0)
        has_no_type = (was_idle and is_used and not amount
                       and role_of(offer.profile) is policy.Mode.VGPU)
        return dataclasses.replace(
            offer, used=offer.used + amount,
            free=0 if has_no_type else max(0, offer.free - amount))

    return _exclusive(tuple(map(after, offers)))


# How much applications slow each other down on one GPU. Pure.
#
# Memory and utilisation alone do not predict which applications can share a
# GPU well. The measured slowdown of each pair does: the run time together
# divided by the run time alone. The slowdown is not symmetric.

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

    def _pair(self, application: str, other: str) -> float:
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


def _row(application: str, row: Any) -> dict[str, float]:
    if not isinstance(row, dict):
        raise exception.InvalidValue(
            what=f'slowdown of {application}', value=row, expected=_FORM)
    return {other: _number(application, other, value)
            for other, value in row.items()}


def _number(application: str, other: str, value: Any) -> float:
    if value is None:
        return math.inf
    if (isinstance(value, bool) or not isinstance(value, int | float)
            or not _LEAST <= value <= _MOST):
        raise exception.InvalidValue(
            what=f'slowdown of {application} beside {other}', value=value,
            expected=_FORM)
    return float(value)
