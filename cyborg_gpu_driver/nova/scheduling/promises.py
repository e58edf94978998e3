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
"""What this scheduler has just chosen, and Placement may not show yet.

Requests that come at the same time see the same state. By that alone all of
them choose the GPU that is best, also for its last slice, and Nova tries no
second candidate on a host.
"""

from __future__ import annotations

import dataclasses
import time

from cyborg_gpu_driver.nova.weighing import published

KEEP = 5.0
"""Seconds after which a choice counts no more: its claim was made and read,
or failed."""


@dataclasses.dataclass
class _Chosen:
    used: int
    """Units in use, as they were read."""
    times: list[float]
    """When units were chosen that do not show in ``used``."""


class Promises:
    """Counts choices by provider.

    Threads may share one; a choice that is lost between two of them costs
    no more than knowing nothing of it.
    """

    def __init__(self):
        self._chosen: dict[str, _Chosen] = {}

    def add(self, offer: published.Offer, amount: int) -> None:
        """Somebody is about to claim some of an offer."""
        chosen = self._chosen.setdefault(
            offer.provider, _Chosen(offer.used, []))
        chosen.times += [time.monotonic()] * amount

    def left(self, offer: published.Offer) -> int:
        """What is free and not chosen by anybody."""
        chosen = self._chosen.get(offer.provider)
        if chosen is None:
            return offer.free
        now_shown = max(0, offer.used - chosen.used)
        late = time.monotonic() - KEEP
        chosen.used = offer.used
        chosen.times = [when for when in chosen.times[now_shown:]
                        if when > late]
        if not chosen.times:
            self._chosen.pop(offer.provider, None)
        return offer.free - len(chosen.times)
