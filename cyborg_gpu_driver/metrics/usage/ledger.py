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

"""What was used in a period, from the records of this host."""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.metrics.usage import account
from cyborg_gpu_driver.metrics.usage import document
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.record import store


@dataclasses.dataclass(frozen=True)
class Period:
    """What was used in a period."""

    counted: tuple[tuple[document.Usage, float], ...]
    """Each usage with its seconds in the period, oldest first."""
    missing: tuple[str, ...] = ()
    """What is not counted, and why."""


def read(state_path: str, start: float, end: float) -> Period:
    """Return what was used in a period.

    :param state_path: ``[gpu] state_path``.
    :param start: seconds of the epoch.
    :param end: no later than now.
    :raises JournalUnreadable: if the records cannot be read at all.
    """
    missing = []
    records = {}
    known = store.of(state_path)
    for address in known.addresses():
        try:
            records[address] = known.read(address)
        except exception.JournalError as error:
            missing.append(f'{error}. The vGPUs and slices that are in use '
                           f'on GPU {address} now are not counted.')
    # After the records: see account.build().
    reading = audit.read(state_path)
    if reading.bad:
        missing.append(f'{reading.bad} line(s) of the audit record cannot be '
                       'read and are not counted.')
    if not reading.whole and reading.records and (
            reading.records[0].time.timestamp() > start):
        missing.append('Older lines of the audit record were dropped: what '
                       'ended before '
                       f'{reading.records[0].time.isoformat()} is not '
                       'counted.')
    found = account.build(reading.records, records)
    missing += [f'{item.profile} on GPU {item.gpu} of '
                f'{item.handle or item.server} is not counted: its end was '
                'not recorded.' for item in found.lost]
    return Period(tuple(
        (item, item.seconds(start, end)) for item in found.usages
        if item.since <= end
        and (item.until is None or item.until >= start)), tuple(missing))


def tell(state_path: str, host: str, start: float, end: float
         ) -> document.Document:
    """Return the sums of a period, to send to a client.

    :param host: the compute node's name, used until the agent has written
        its own.
    :raises JournalError: as :func:`read`.
    """
    period = read(state_path, start, end)
    known = state.read(state_path)
    return document.Document(
        document.VERSION, known.hostname if known else host, max(0.0, start),
        end, document.sums(period.counted), period.missing)
