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

"""Runs applications on this machine."""

from __future__ import annotations

import contextlib
import dataclasses

from cyborg_gpu_driver.interference import applications as apps
from cyborg_gpu_driver.interference import memory
from cyborg_gpu_driver.interference import process
from cyborg_gpu_driver.interference import results


@dataclasses.dataclass(frozen=True)
class Machine:
    """This machine, as a :class:`.measuring.Runner`.

    :ivar timeout: seconds that each run may take.
    :ivar gpu_memory: asks how much GPU memory processes have.
    :ivar gpu_memory_mib: memory of the smallest GPU of this machine; None if
        NVML knows no GPU.
    :ivar endings: signals that end the measurement.
    """

    timeout: float
    gpu_memory: memory.GpuMemory = lambda _pids: None
    gpu_memory_mib: int | None = None
    endings: process.Endings | None = None

    def runs(self, application: apps.Application,
             other: apps.Application | None, count: int
             ) -> list[results.Runs]:
        """Run an application ``count`` times, as the calling user.

        :raises InvalidValue: if a command cannot be started.
        """
        found: list[results.Runs] = []
        with contextlib.ExitStack() as stack:
            companion = other and stack.enter_context(
                process.Repeated(other))
            for _ in range(count):
                found.append(process.run(
                    application, companion, self.timeout, self.gpu_memory,
                    self.endings))
                if found[-1].outcome is not results.Outcome.MEASURED:
                    break
        return found
