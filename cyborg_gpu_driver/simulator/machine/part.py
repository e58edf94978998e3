# SPDX-License-Identifier: Apache-2.0

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
