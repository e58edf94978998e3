# SPDX-License-Identifier: Apache-2.0

"""What all parts of a simulated machine use."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator import spec
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as driver_gpu
from cyborg_gpu_driver.simulator.machine import opens
from cyborg_gpu_driver.simulator.machine import store

if TYPE_CHECKING:
    from cyborg_gpu_driver.simulator import fabric
    from cyborg_gpu_driver.simulator.sysfs import sysfs


class Part:
    """The GPUs and the state of ``machine.Machine``.

    :param state: file that keeps the machine's state, which processes may
        share; None keeps the state in memory.
    """

    os: sysfs.SimulatedOs
    _fabric_library: fabric.Library

    def __init__(self, host: spec.Host, state: str | None = None):
        self.host = host
        self.allowed = True
        self._store = store.Store(host, state)
        self.opens = opens.Opens(state)
        self.gpus = tuple(driver_gpu.Gpu(self, gpu) for gpu in host.gpus)
        self._by_address = {gpu.address: gpu for gpu in self.gpus}
        self.drivers = driver_gpu.Drivers(self)

    @property
    def state(self) -> state_module.State:
        """The state; use it only within :meth:`operation`."""
        return self._store.state

    def operation(self, write: bool = False
                  ) -> contextlib.AbstractContextManager[object]:
        """Hold the machine, so that nothing else changes it meanwhile."""
        return self._store.operation(write)

    def gpu(self, address: str) -> driver_gpu.Gpu:
        """Return the GPU at an address, which is written as in sysfs.

        :raises HostUnusable: if there is no GPU at the address.
        """
        try:
            return self._by_address[str(address)]
        except KeyError:
            raise self.wrong(f'no GPU at {address}; the GPUs are '
                             + ', '.join(self._by_address)) from None

    def wrong(self, reason: str) -> exception.HostUnusable:
        """Return the error that something cannot be done to the machine."""
        return exception.HostUnusable(
            f'simulated machine {self.host.name!r}: {reason}')
