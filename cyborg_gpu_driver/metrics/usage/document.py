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

"""The usages of servers, and the sums that an exporter returns. Pure."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable
from typing import Annotated

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.record import codec

PASSTHROUGH = policy.Mode.PASSTHROUGH.value
"""The profile of a whole GPU."""
VERSION = 1
"""Version of the document."""
SIZE_MAX = 32 << 20
"""Maximum bytes of a document. The audit record keeps about 70,000 binds, and
each takes at most 250 bytes here."""
_SERVER = re.compile('[0-9A-Fa-f-]{32,36}', re.ASCII)
_TEXT_MAX = 1000


@dataclasses.dataclass(frozen=True)
class Usage:
    """One vGPU, slice or whole GPU that a server had."""

    gpu: model.PciAddress
    profile: str
    since: float
    """Seconds of the epoch."""
    until: float | None = None
    """None if the usage continues."""
    handle: str = ''
    """UUID of the attach handle; empty for a whole GPU."""
    server: str = ''
    """UUID of the server, if this host knows it."""
    project: str = ''
    """UUID of the server's project, if this host knows it."""
    function: str = ''
    """Address of the vGPU's function; empty for a whole GPU."""

    def seconds(self, start: float, end: float) -> float:
        """Return how many seconds of the usage are in a period.

        :param end: end of the period, no later than now.
        """
        until = end if self.until is None else self.until
        return max(0.0, min(until, end) - max(self.since, start))


def _printable(text: str) -> str:
    """Return the text, if a terminal shows it unchanged."""
    if len(text) > _TEXT_MAX or not text.isprintable():
        raise ValueError(f'{text[:50]!r} is not a line of text')
    return text


def _server(text: str) -> str:
    if text and not _SERVER.fullmatch(text):
        raise ValueError(f'{text[:50]!r} is not the UUID of a server')
    return text


_Text = Annotated[str, _printable]


@dataclasses.dataclass(frozen=True)
class Sum:
    """What one server had of one profile on one GPU in a period."""

    gpu: model.PciAddress
    profile: _Text
    count: int
    """The number of usages."""
    seconds: float
    server: Annotated[str, _server] = ''
    """Empty if the host does not know it."""
    project: _Text = ''
    """Empty if the host does not know it."""


@dataclasses.dataclass(frozen=True)
class Document:
    """What an exporter returns for a period."""

    version: int
    host: _Text
    """The compute node."""
    start: float
    """Seconds of the epoch; 0 for everything that is recorded."""
    end: float
    """No later than the time of the answer."""
    sums: tuple[Sum, ...] = ()
    missing: tuple[_Text, ...] = ()
    """What is not counted, and why. Empty if nothing is missing."""


def sums(counted: Iterable[tuple[Usage, float]]) -> tuple[Sum, ...]:
    """Return the sums of usages, in order.

    :param counted: usages, each with its seconds in the period.
    """
    counts: collections.Counter[tuple] = collections.Counter()
    seconds: collections.Counter[tuple] = collections.Counter()
    for item, time in counted:
        key = item.gpu, item.profile, item.server, item.project
        counts[key] += 1
        seconds[key] += time  # type: ignore[assignment]
    return tuple(
        Sum(gpu, profile, counts[key], round(seconds[key], 3), server,
            project)
        for key in sorted(counts) for gpu, profile, server, project in [key])


def decode(content: object) -> Document:
    """Return the document that an exporter sent.

    :param content: the decoded JSON.
    :raises ValueError: if it is not such a document; names what is wrong.
    """
    if not isinstance(content, dict) or content.get('version') != VERSION:
        raise ValueError(f'expected a document of version {VERSION}')
    try:
        return codec.decode(Document, content)
    except exception.GpuDriverError as error:
        raise ValueError(str(error)) from error
