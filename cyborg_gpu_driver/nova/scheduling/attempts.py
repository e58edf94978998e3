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
"""Several claim attempts for one host.

Nova claims the first allocation candidate of a host. If another request was
faster, Nova continues with the next host and never tries another candidate
(``_schedule`` in nova/scheduler/manager.py of Nova 34). Therefore the filter
lists a host that has several candidates several times.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from nova.scheduler import host_manager

Claimed = Callable[['Attempt', str], None]
"""Receives the attempt and the UUID of the server."""


class Attempt(host_manager.HostState):
    """A host with some of its allocation candidates.

    All other attributes are those of the host, and change with the host.

    :param claimed: called when Nova has claimed the first candidate.
    """

    __slots__ = ('_candidates', '_claimed')

    def __init__(self, host: host_manager.HostState,
                 candidates: Sequence[Mapping[str, Any]], claimed: Claimed):
        # super().__init__() would reset the state of the host.
        object.__setattr__(self, '__dict__', host.__dict__)
        self._candidates = list(candidates)
        self._claimed = claimed

    @property
    def allocation_candidates(self) -> list[Mapping[str, Any]]:
        return self._candidates

    @allocation_candidates.setter
    def allocation_candidates(self, value):
        self._candidates = value

    def consume_from_request(self, spec_obj):
        super().consume_from_request(spec_obj)
        self._claimed(self, spec_obj.instance_uuid)


def split(host: host_manager.HostState, most: int, claimed: Claimed
          ) -> Iterator[Attempt]:
    """Yield one attempt per candidate; the last has all that remain.

    :param most: the maximum number of attempts.
    """
    candidates = host.allocation_candidates
    for number in range(min(most, len(candidates)) - 1):
        yield Attempt(host, candidates[number:number + 1], claimed)
    yield Attempt(host, candidates[min(most, len(candidates)) - 1:], claimed)


def identity(host: host_manager.HostState) -> Hashable:
    """Return a value that all attempts at a host have in common."""
    return id(host.__dict__)
