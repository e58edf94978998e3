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
"""The findings of ``cyborg-gpu doctor``: one type for all problems."""

from __future__ import annotations

import dataclasses
import enum
import logging
import re
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import TypeVar

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health as partition_health
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.program import health

LOG = logging.getLogger(__name__)

NOT_LOOKED_AT = 'not-looked-at'
"""Code of a finding that something could not be examined."""
_NOT_A_WORD = re.compile('[^a-z0-9]+')
_ACT, _UNKNOWN = 1, 2

_Answer = TypeVar('_Answer')


class Section(enum.Enum):
    """A part of the diagnosis, in the order in which it is made."""

    HOST = 'host'
    """The configuration, the host and its services: ``check``."""
    HEALTH = 'health'
    """The health of the GPUs: ``health show``."""
    GPUS = 'gpus'
    """Differences between the records and the GPUs."""
    RECORDS = 'records'
    """Damaged records, and changes that did not finish."""
    CLOUD = 'cloud'
    """Differences between this host and Placement or Cyborg."""


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = 'error'
    """Servers fail, or hardware is idle, until the operator acts."""
    WARNING = 'warning'
    """The problem is possible or temporary, or the agent repairs it."""
    UNKNOWN = 'unknown'
    """Something could not be examined."""


_SECTIONS = {
    **dict.fromkeys(reconcile.Kind, Section.GPUS),
    **dict.fromkeys((reconcile.Kind.BAD_RECORD, reconcile.Kind.UNFINISHED,
                     reconcile.Kind.LAYOUT_CHANGE), Section.RECORDS),
    **dict.fromkeys((reconcile.Kind.NO_REQUEST, reconcile.Kind.NOT_RECORDED,
                     reconcile.Kind.ALLOCATED, reconcile.Kind.NOT_ALLOCATED,
                     reconcile.Kind.RESERVED, reconcile.Kind.EARLIER_DRIVER),
                    Section.CLOUD)}
_CODES = {result.Code.FAILURE: Severity.ERROR,
          result.Code.WARNING: Severity.WARNING,
          result.Code.SKIPPED: Severity.UNKNOWN}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One problem, or one thing that could not be examined."""

    section: Section
    code: str
    """The kind of problem, in lower case with hyphens."""
    severity: Severity
    message: str
    action: str
    """What the operator should do."""
    gpu: str | None = None
    """PCI address of the GPU or virtual function; None for the host."""
    subject: str | None = None
    """The affected handle, instance or provider of the GPU, if any."""
    safe: bool = False
    """Whether ``doctor --repair`` repairs it."""


def of_check(found: Iterable[tuple[str, result.Finding]]
             ) -> Iterator[Finding]:
    """Yield the findings of the checks.

    A skipped check is a finding if it has advice how to make the check.
    Several checks that were skipped for one reason are one finding.
    """
    skipped = set()
    for name, item in found:
        if item.code is result.Code.SUCCESS or not item.advice:
            continue
        code = _NOT_A_WORD.sub('-', name.lower())
        if item.code is result.Code.SKIPPED:
            if item in skipped:
                continue
            skipped.add(item)
            code = NOT_LOOKED_AT
        yield Finding(
            Section.HOST, code, _CODES[item.code], item.details, item.advice,
            None if item.subject == result.HOST else item.subject)


def of_health(statuses: Iterable[health.Status]) -> Iterator[Finding]:
    """Yield the GPUs and instances that are or may be unhealthy."""
    for status in statuses:
        address = str(status.gpu.address)
        if status.verdict.is_unhealthy:
            yield Finding(
                Section.HEALTH, 'unhealthy-gpu', Severity.ERROR,
                _conditions(status.verdict), _heal(status), address)
        elif condition.is_failed(status.gpu):
            yield _unread(Section.HEALTH, status.gpu)
        for place, verdict in status.instances.items():
            yield Finding(
                Section.HEALTH, 'unhealthy-instance', Severity.ERROR,
                _conditions(verdict),
                'delete the server that has the instance; an instance that '
                'is created in its place is healthy', address, str(place))


def of_differences(found: Iterable[reconcile.Difference]
                   ) -> Iterator[Finding]:
    """Yield the differences between the sources of ownership data."""
    for item in found:
        yield Finding(
            _SECTIONS[item.kind], item.kind.value,
            Severity.WARNING if item.may_pass or item.by_report
            else Severity.ERROR,
            item.text, item.remedy, str(item.gpu), item.subject, item.safe)


def of_unread(host: model.Host) -> Iterator[Finding]:
    """Yield the GPUs that could not be compared with their records."""
    for gpu in host.gpus:
        if condition.is_failed(gpu):
            yield _unread(Section.GPUS, gpu)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 without findings, 1 with an error or a warning, and 2 if all
    findings say that something could not be examined.
    """
    severities = {item.severity for item in findings}
    return (_ACT if severities - {Severity.UNKNOWN}
            else _UNKNOWN if severities else 0)


def unknown(section: Section, reason: str) -> Finding:
    """Return a finding that a section or a part of it was not examined."""
    return Finding(section, NOT_LOOKED_AT, Severity.UNKNOWN, reason,
                   'correct the problem and run "cyborg-gpu doctor --only '
                   f'{section.value}"')


def section(name: Section, seconds: float,
            look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a section, or one that says why it has none.

    :param seconds: as in :func:`attempt`.
    """
    found = attempt(name, seconds, lambda: list(look()))
    return [found] if isinstance(found, Finding) else found


def attempt(section: Section, seconds: float,
            look: Callable[[], _Answer]) -> _Answer | Finding:
    """Return the result of ``look``, or a finding that says why it has none.

    :param seconds: how long ``look`` may take. After that, it continues in
        its thread, which ends with the process.
    """
    answers: list[_Answer] = []
    errors: list[Exception] = []

    def run():
        try:
            answers.append(look())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if answers:
        return answers[0]
    if not errors:
        return unknown(section, f'it took longer than {seconds:g} seconds')
    (error,) = errors
    if isinstance(error, exception.GpuDriverError):
        return unknown(section, str(error))
    LOG.debug('The section %s failed', section.value, exc_info=error)
    return unknown(section, f'{type(error).__name__}: {error}')


def _unread(section, gpu):
    return dataclasses.replace(
        unknown(section, ': '.join(filter(None, (
            condition.state(gpu), '; '.join(gpu.problems))))),
        gpu=str(gpu.address))


def _heal(status):
    if status.verdict.state is partition_health.State.PERMANENT:
        return 'replace the board'
    return ('reset the GPU while it is idle, or restart the host; then run '
            f'"cyborg-gpu health clear {status.gpu.address}"')


def _conditions(verdict):
    return f'{verdict.state.value}: ' + '; '.join(verdict.reasons)
