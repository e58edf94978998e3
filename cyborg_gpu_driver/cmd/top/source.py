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


"""Reads the GPUs and the records that ``cyborg-gpu top`` shows.

It changes nothing. It closes NVML after each reading. It does not open a GPU
that is offered for passthrough, and uses the GPU's record instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.context import host_view
from cyborg_gpu_driver.cmd.top import frame
from cyborg_gpu_driver.cmd.top import load
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.metrics import sampler
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

_NVML_LIMIT = 5.0
"""Seconds that one NVML call may take, because the user is waiting."""


class Source:
    """Reads one host repeatedly.

    :param view: the host.
    :param clock: returns the time of day, in seconds of the epoch.
    """

    def __init__(self, view: host_view.HostView,
                 clock: Callable[[], float] = time.time):
        self._view = view
        self._clock = clock
        self._records = store.of(view.state_path)
        self._nvml = view.platform.nvml
        self._nvml.gate.stays_open = False
        self._nvml.timeout = min(self._nvml.timeout, _NVML_LIMIT)
        self._sampler = sampler.Sampler(view.platform, view.state_path)

    @gate.series
    def read(self) -> frame.Frame:
        """Return the current state of the host.

        Hardware errors and unreadable records raise no exception.

        :raises GpuDriverError: if the host cannot be read at all.
        """
        host = self._view.reader.snapshot(links=False)
        messages = [*host.problems]
        if not host.gpus:
            messages.insert(0, 'No NVIDIA GPU was found on this machine.')
        if host.nvml_problem:
            messages.insert(0, f'NVML: {host.nvml_problem}')
        owners = self._owners(messages)
        self._sampler.round()
        samples = self._sampler.take()
        return frame.Frame(
            self._view.conf.host, self._clock(), tuple(
                frame.block(gpu, choice.index(host, gpu),
                            self._view.mode(gpu),
                            self._record(gpu.address, messages), owners,
                            load.Loads(samples[gpu.address].values
                                       if gpu.address in samples else ()))
                for gpu in host.gpus), tuple(messages))

    def _owners(self, messages):
        try:
            known = state.read(self._view.state_path)
        except exception.JournalError as error:
            messages.append(str(error))
            known = None
        return known.owners if known else {}

    def _record(self, address, messages):
        try:
            return self._records.read(address)
        except exception.JournalError as error:
            messages.append(str(error))
            return gpu_record.GpuRecord()
