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

"""Decide which GPUs a report sends in full, and which it sends as stubs.

Cyborg's conductor reads and writes its database for each provider and each
attach handle of a device, whether the device has changed or not
(drv_device_make_diff in cyborg/conductor/manager.py). A stub says that the
device is unchanged, and costs nothing but the list that the conductor reads
anyway. So a GPU is sent in full when it has changed, and from time to time.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import values

_TIMES = 2
"""How often a change is sent: a report can get lost, and the agent does not
learn of it."""
_REQUESTS = 18
"""Requests to Placement that the conductor needs to create one provider;
counted with Cyborg 17 (get_placement_needed_info_and_report)."""
_SHARE = 4
"""The conductor may spend one part in this many of the RPC timeout on new
providers. After the timeout, the next report would begin while the conductor
still works on this one."""
INTERVAL = 600.0
"""Seconds after which the agent reports a GPU in full although nothing about
it has changed. That restores what somebody has deleted from Cyborg's database;
a report that says only that the GPU is unchanged costs the database a sixth of
the queries."""


@dataclasses.dataclass(frozen=True)
class Report:
    """All GPUs in full, and what decides which of them are sent in full."""

    devices: tuple[values.ReportedDevice, ...]
    there: Collection[str] | None
    """UUIDs of the providers that Placement has; None if that is not
    known."""
    leaving: Collection[model.PciAddress] = ()
    """GPUs with providers to withdraw. They are sent in full until Cyborg has
    deleted those providers."""


@dataclasses.dataclass(frozen=True)
class _Sent:
    """The last full report of one GPU."""

    device: values.ReportedDevice
    times: int
    """How many full reports in a row were equal."""
    at: float


class Steady:
    """Remembers what was sent for each GPU since the agent has started.

    :param interval: seconds after which an unchanged GPU is sent in full; 0
        sends all GPUs in full in each report.
    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, interval: float,
                 clock: Callable[[], float] = time.monotonic):
        self._interval = interval
        self._clock = clock
        self._sent: dict[model.PciAddress, _Sent] = {}

    def thin(self, report: Report, room: int
             ) -> tuple[values.ReportedDevice, ...]:
        """The report's devices, with stubs for those not sent in full.

        :param room: how many new providers the report may contain. The first
            GPU with new providers is always sent in full.
        """
        thinned = []
        brought = 0
        for device in report.devices:
            if device.stub:
                thinned.append(build.stub_device(device.address))
                continue
            missing = 0 if report.there is None else sum(
                item.provider_uuid not in report.there
                for item in device.deployables)
            if missing:
                is_full = not brought or brought + missing <= room
                brought += missing if is_full else 0
            else:
                is_full = (device.address in report.leaving
                           or self._is_due(device))
            if is_full:
                self._note(device)
                thinned.append(device)
            else:
                thinned.append(build.stub_device(device.address))
        return tuple(thinned)

    def _is_due(self, device: values.ReportedDevice) -> bool:
        known = self._sent.get(device.address)
        return (known is None
                or known.device != _compared(device)
                or known.times < _TIMES
                or self._clock() >= known.at + self._interval)

    def _note(self, device: values.ReportedDevice) -> None:
        known = self._sent.get(device.address)
        compared = _compared(device)
        times = known.times if known and known.device == compared else 0
        self._sent[device.address] = _Sent(compared, times + 1,
                                           self._clock())


def room(timeout: float, latency: float) -> int:
    """How many new providers one report may contain.

    :param timeout: seconds that the agent waits for the conductor
        (``[DEFAULT] rpc_response_timeout``).
    :param latency: seconds that Placement needs for one request.
    """
    return int(timeout / _SHARE / (_REQUESTS * latency))


def _compared(device: values.ReportedDevice) -> values.ReportedDevice:
    """The part of a device that Cyborg gets, without ``busy``."""
    return dataclasses.replace(device, busy='')
