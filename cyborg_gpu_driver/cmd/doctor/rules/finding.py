# SPDX-License-Identifier: Apache-2.0

"""What the doctor finds: one type for all problems of a host."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

NOT_EXAMINED = 'not-examined'
"""Code of a finding that something could not be examined."""
_ACT, _UNKNOWN = 1, 2


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = 'error'
    """Servers fail, or hardware is idle, until the operator acts."""
    WARNING = 'warning'
    """The problem is possible or temporary, or the agent repairs it."""
    UNKNOWN = 'unknown'
    """Something could not be examined."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One problem, or one thing that could not be examined."""

    severity: Severity
    gpu: str | None
    """PCI address of the GPU or virtual function; None for the host."""
    message: str
    action: str
    """What the operator should do."""
    code: str = NOT_EXAMINED
    """The kind of problem, in lower case with hyphens."""
    subject: str | None = None
    """The affected handle, instance or provider of the GPU, if any."""
    safe: bool = False
    """Whether ``doctor --repair`` repairs it."""

    def named(self, code: str) -> Finding:
        """Return this finding with the code of the check that made it."""
        return (self if self.severity is Severity.UNKNOWN
                else dataclasses.replace(self, code=code))


def error(gpu: object, message: str, action: str) -> Finding:
    """Return a problem that the operator must solve; no GPU: of the host."""
    return _of(Severity.ERROR, gpu, message, action)


def warning(gpu: object, message: str, action: str) -> Finding:
    """Return a possible problem."""
    return _of(Severity.WARNING, gpu, message, action)


def unknown(gpu: object, message: str, action: str) -> Finding:
    """Return what could not be examined, and how to examine it."""
    return _of(Severity.UNKNOWN, gpu, message, action)


def _of(severity: Severity, gpu: object, message: str, action: str
        ) -> Finding:
    return Finding(severity, None if gpu is None else str(gpu), message,
                   action)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 without findings, 1 with an error or a warning, and 2 if all
    findings say that something could not be examined.
    """
    severities = {item.severity for item in findings}
    return (_ACT if severities - {Severity.UNKNOWN}
            else _UNKNOWN if severities else 0)
