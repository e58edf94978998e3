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

"""Which server had what, and when, to the second. Pure.

The audit record has the usages that have ended, the records of the GPUs those
that have not. A bind and an unbind write their time into the record of the
GPU, and a claim is removed from that record only after its line is in the
audit record. So each claim is always in one of the two, even if a process is
killed.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics.usage import document
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.record import gpu as gpu_record

_SINCE = 'since'
_UNTIL = 'until'


@dataclasses.dataclass(frozen=True)
class Account:
    """All known usages, oldest first."""

    usages: tuple[document.Usage, ...]
    lost: tuple[document.Usage, ...] = ()
    """Usages whose end was not recorded, for example in a lost record."""


def build(lines: Iterable[audit.Record],
          records: Mapping[model.PciAddress, gpu_record.GpuRecord]
          ) -> Account:
    """Return the account of the audit lines and the records together.

    :param lines: lines of the audit record, oldest first. Read them after
        ``records``: they then have what left the records meanwhile.
    :param records: records of all GPUs.
    """
    lines = tuple(lines)
    ended, open_lines = _of_handles(lines)
    last = {item.handle: item.since for item in open_lines}
    found = {}
    for claim in (claim for record in records.values()
                  for claim in record.claims):
        if not claim.leads:
            continue
        since = (last.get(claim.handle) if claim.since is None
                 else claim.since)
        if since is None or claim.phase is gpu_record.Phase.BINDING:
            continue
        until = (claim.until if claim.phase is gpu_record.Phase.UNBINDING
                 else None)
        found[claim.handle, since] = document.Usage(
            claim.gpu, claim.profile, since, until, claim.handle,
            function=str(claim.function))
    # A claim may remain in the record after a process was killed. If the
    # audit record has its end, it has ended.
    found.update(ended)
    lost = tuple(item for item in open_lines
                 if (item.handle, item.since) not in found)
    usages = _assigned(found, lines)
    wholes, lost_wholes = _of_wholes(lines, records)
    return Account(tuple(sorted([*usages, *wholes], key=_order)),
                   tuple(sorted([*lost, *lost_wholes], key=_order)))


def _assigned(found: Mapping[tuple[str, float], document.Usage],
              lines: Iterable[audit.Record]) -> list[document.Usage]:
    """Return the usages, with server and project if a line names them.

    Cyborg gives a handle to one server after another. So a line has the time
    of the bind; without it, the time of the line counts.
    """
    begins: dict[str, list[float]] = {}
    for handle, since in sorted(found):
        begins.setdefault(handle, []).append(since)
    usages = dict(found)
    for line in lines:
        if line.what != 'assigned' or line.subject not in begins:
            continue
        times = begins[line.subject]
        index = bisect.bisect_right(times, _number(
            line, _SINCE, line.time.timestamp()) or 0.0)
        if index == 0:
            continue
        key = line.subject, times[index - 1]
        usages[key] = dataclasses.replace(
            usages[key], server=str(line.evidence.get('server', '')),
            project=str(line.evidence.get('project', '')))
    return list(usages.values())


def _order(usage: document.Usage) -> tuple:
    return usage.since, usage.gpu, usage.handle, usage.server


def _of_handles(lines: Iterable[audit.Record]
                ) -> tuple[dict[tuple[str, float], document.Usage],
                           list[document.Usage]]:
    """Return the ended usages, by handle and begin, and the open ones.

    A handle has several open usages if a line about an end is missing.
    """
    ended: dict[tuple[str, float], document.Usage] = {}
    begun: dict[tuple[str, float], document.Usage] = {}
    last: dict[str, float] = {}
    for line in lines:
        if line.what == 'bound':
            item = _usage(line, _number(line, _SINCE,
                                        line.time.timestamp()))
            begun[item.handle, item.since] = item
            last[item.handle] = item.since
        elif line.what == 'unbound':
            since = _number(line, _SINCE, last.get(line.subject))
            if since is None:
                continue
            begun.pop((line.subject, since), None)
            until = max(since, _number(line, _UNTIL,
                                       line.time.timestamp()) or since)
            earlier = ended.get((line.subject, since))
            if earlier is not None and earlier.until is not None:
                until = min(until, earlier.until)
            ended[line.subject, since] = dataclasses.replace(
                _usage(line, since), until=until)
    return ended, list(begun.values())


def _usage(line: audit.Record, since: float) -> document.Usage:
    return document.Usage(
        line.gpu, str(line.evidence.get('profile', '')), since,
        handle=line.subject, function=str(line.evidence.get('function', '')))


def _number(line: audit.Record, name: str, default: float | None
            ) -> float | None:
    value = line.evidence.get(name)
    return float(value) if type(value) in (int, float) else default


def _of_wholes(lines: Iterable[audit.Record],
               records: Mapping[model.PciAddress, gpu_record.GpuRecord]
               ) -> tuple[list[document.Usage], list[document.Usage]]:
    """Return the usages of whole GPUs, by the reports of the agent.

    A report that was killed may have written its lines twice.

    :returns: the usages that are fully known, and those that have ended at
        an unknown time.
    """
    found: list[document.Usage] = []
    begun: dict[model.PciAddress, dict[str, document.Usage]] = {}
    for line in lines:
        if line.what not in ('given', 'returned'):
            continue
        before = begun.get(line.gpu, {})
        tenants = () if line.what == 'returned' else (
            line.evidence.get('tenants') or [line.subject])
        now = line.time.timestamp()
        found += (dataclasses.replace(usage, until=max(now, usage.since))
                  for server, usage in before.items()
                  if server not in tenants)
        begun[line.gpu] = {
            server: before.get(server) or document.Usage(
                line.gpu, document.PASSTHROUGH, now, server=server)
            for server in map(str, tenants)}
    lost = []
    for address, usages in begun.items():
        known = records[address].tenancy if address in records else None
        goes_on = known is None or known.state is cleaning.State.USED
        (found if goes_on else lost).extend(usages.values())
    return found, lost
