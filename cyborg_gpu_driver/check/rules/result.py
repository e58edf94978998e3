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


"""What a check finds: one value, in the manner of oslo.upgradecheck."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable


class Code(enum.Enum):
    """How it is."""

    SUCCESS = 0
    WARNING = 1
    """There may be a problem."""
    FAILURE = 2
    """Servers will fail, or hardware is unused, until this is fixed."""
    SKIPPED = 3
    """It was not looked at."""


HOST = 'host'
"""The subject of what concerns no single GPU."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a check has to say."""

    code: Code
    subject: str
    """A GPU's or a virtual function's address, another host's name, or
    :data:`HOST`."""
    details: str
    advice: str = ''
    """What to do; empty if nothing is to be done."""


def success(subject: object, details: str) -> Finding:
    """All is well."""
    return Finding(Code.SUCCESS, str(subject), details)


def warning(subject: object, details: str, advice: str) -> Finding:
    """Worth a look."""
    return Finding(Code.WARNING, str(subject), details, advice)


def failure(subject: object, details: str, advice: str) -> Finding:
    """To be put right."""
    return Finding(Code.FAILURE, str(subject), details, advice)


def skipped(subject: object, why: str, advice: str = '') -> Finding:
    """Not looked at.

    :param advice: how it can be; empty if that was asked for.
    """
    return Finding(Code.SKIPPED, str(subject), f'not checked: {why}', advice)


def exit_code(findings: Iterable[Finding]) -> int:
    """The command's: 2 with a failure, 1 with a warning, else 0.

    What was skipped counts as a warning if something can be done so that it
    is checked.
    """
    return max((bool(finding.advice) if finding.code is Code.SKIPPED
                else finding.code.value for finding in findings), default=0)
