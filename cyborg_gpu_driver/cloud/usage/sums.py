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

"""Sum the GPU-hours of many hosts. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.metrics.usage import document

KEYS = ('project', 'profile', 'server', 'host', 'gpu')
"""The keys to sum by. The address of a GPU is unique only on its host."""


@dataclasses.dataclass(frozen=True)
class Sum:
    """The usage for one combination of keys.

    :ivar keys: the value of each key, by the names of :data:`KEYS`; an unknown
        value is empty.
    """

    keys: Mapping[str, str]
    count: int
    seconds: float


def unknown(found: Iterable[document.Document]) -> frozenset[str]:
    """Return the servers whose projects the hosts do not know."""
    return frozenset(item.server for host in found for item in host.sums
                     if item.server and not item.project)


def total(found: Iterable[document.Document], by: Iterable[str],
          projects: Mapping[str, str], project: str | None = None
          ) -> tuple[Sum, ...]:
    """Return the sums of the hosts' usage, sorted by their keys.

    :param by: some of :data:`KEYS`.
    :param projects: of the servers that :func:`unknown` returns, as far as
        they are known.
    :param project: UUID of the project to count; None for all projects, ''
        for usage without a known project.
    """
    by = tuple(by)
    counts: dict[tuple[str, ...], int] = collections.defaultdict(int)
    seconds: dict[tuple[str, ...], float] = collections.defaultdict(float)
    for host in found:
        for item in host.sums:
            facts = {
                'project': item.project or projects.get(item.server, ''),
                'profile': item.profile, 'server': item.server,
                'host': host.host, 'gpu': str(item.gpu)}
            if project is not None and facts['project'] != project:
                continue
            key = tuple(facts[name] for name in by)
            counts[key] += item.count
            seconds[key] += item.seconds
    return tuple(Sum(dict(zip(by, key, strict=True)), counts[key],
                     round(seconds[key], 3)) for key in sorted(counts))
