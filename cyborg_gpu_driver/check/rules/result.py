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


"""The result of a check, modelled on oslo.upgradecheck."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable


class Code(enum.Enum):
    """The outcome of a check."""

    SUCCESS = 0
    WARNING = 1
    """There may be a problem."""
    FAILURE = 2
    """Servers will fail, or hardware is unused, until this is fixed."""
    SKIPPED = 3
    """The check was not made."""


HOST = 'host'
"""The subject of a finding that concerns no single GPU."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One statement of a check about one subject."""

    code: Code
    subject: str
    """The address of a GPU or a virtual function, the name of another host,
    or :data:`HOST`."""
    details: str
    advice: str = ''
    """What the operator should do; empty if nothing."""


def success(subject: object, details: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(Code.SUCCESS, str(subject), details)


def warning(subject: object, details: str, advice: str) -> Finding:
    """Return a finding of a possible problem."""
    return Finding(Code.WARNING, str(subject), details, advice)


def failure(subject: object, details: str, advice: str) -> Finding:
    """Return a finding of a problem that the operator must fix."""
    return Finding(Code.FAILURE, str(subject), details, advice)


def skipped(subject: object, why: str, advice: str = '') -> Finding:
    """Return the finding of a check that was not made.

    :param advice: how to make the check; empty if the operator chose to
        skip it.
    """
    return Finding(Code.SKIPPED, str(subject), f'not checked: {why}', advice)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the command's exit code: 2 with a failure, 1 with a warning.

    Otherwise 0. A skipped check counts as a warning if it has advice how to
    make the check.
    """
    return max((bool(finding.advice) if finding.code is Code.SKIPPED
                else finding.code.value for finding in findings), default=0)
