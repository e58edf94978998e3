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


class Code(enum.IntEnum):
    """How it is; the worst one is the command's exit code."""

    SUCCESS = 0
    WARNING = 1
    """It may be wrong, or could not be looked at."""
    FAILURE = 2
    """Servers will fail, or hardware lies idle, until it is put right."""


HOST = 'host'
"""The subject of what concerns no single GPU."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a check has to say."""

    code: Code
    subject: str
    """A GPU's or a virtual function's address, or :data:`HOST`."""
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


def worst(findings: Iterable[Finding]) -> Code:
    """The worst code; success if there are none."""
    return max((finding.code for finding in findings),
               default=Code.SUCCESS)
