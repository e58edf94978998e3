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
"""Several tries for one host.

Nova claims the first allocation candidate of a host. If somebody else was
faster, it goes on to the next host and never tries another candidate
(``_schedule`` in nova/scheduler/manager.py of Nova 34). So a host that has
several candidates stands in Nova's list several times.
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
"""Is told the attempt and the UUID of the server."""


class Attempt(host_manager.HostState):
    """A host with some of its allocation candidates.

    All else is the host's own, and changes with it.

    :param claimed: is called when Nova has claimed the first candidate.
    """

    __slots__ = ('_candidates', '_claimed')

    def __init__(self, host: host_manager.HostState,
                 candidates: Sequence[Mapping[str, Any]], claimed: Claimed):
        # Not super().__init__(), which would start anew.
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
    """One attempt for each candidate in turn; the last has the rest.

    :param most: how many attempts there may be.
    """
    candidates = host.allocation_candidates
    for number in range(min(most, len(candidates)) - 1):
        yield Attempt(host, candidates[number:number + 1], claimed)
    yield Attempt(host, candidates[min(most, len(candidates)) - 1:], claimed)


def identity(host: host_manager.HostState) -> Hashable:
    """The same for all attempts at a host."""
    return id(host.__dict__)
