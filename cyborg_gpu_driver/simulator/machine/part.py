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

"""What the parts of a simulated machine know of the whole."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyborg_gpu_driver.simulator import fabric
    from cyborg_gpu_driver.simulator import spec
    from cyborg_gpu_driver.simulator import state as state_module
    from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
    from cyborg_gpu_driver.simulator.sysfs import sysfs


class Part:
    """A part of ``machine.Machine``, which defines all of these."""

    host: spec.Host
    gpus: tuple[gpu_module.Gpu, ...]
    drivers: gpu_module.Drivers
    os: sysfs.SimulatedOs
    _fabric_library: fabric.Library

    @property
    def state(self) -> state_module.State:
        raise NotImplementedError

    def operation(self, write: bool = False
                  ) -> contextlib.AbstractContextManager[object]:
        raise NotImplementedError

    def gpu(self, address: str) -> gpu_module.Gpu:
        raise NotImplementedError

    def attach_whole(self, address: str) -> int:
        raise NotImplementedError

    def detach_whole(self, address: str) -> None:
        raise NotImplementedError
