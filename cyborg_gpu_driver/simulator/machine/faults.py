# SPDX-License-Identifier: Apache-2.0

"""Hardware faults of a simulated machine's GPUs."""

from __future__ import annotations

import errno
import os
from typing import Any

from cyborg_gpu_driver.simulator import fabric as simulator_fabric
from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.machine import users

_OFF_THE_BUS = 79
_KEPT_XIDS = 99


class HardwareFaults(users.Part):
    """The part of a machine that simulates hardware faults."""

    def lose_gpu(self, address: str) -> None:
        """Let a GPU fall off the bus: NVML returns GPU_IS_LOST for it."""
        with self.operation(write=True):
            self.gpu(address).state.lost = True
            self.raise_xid(address, _OFF_THE_BUS)

    def find_gpu(self, address: str) -> None:
        """Bring a lost GPU back in its former state."""
        with self.operation(write=True):
            self.gpu(address).state.lost = False

    def hang_gpu(self, address: str, hung: bool = True) -> None:
        """Block all NVML calls about a GPU, as when its firmware hangs."""
        with self.operation(write=True):
            self.gpu(address).state.hung = hung

    def change_gpu(self, address: str, **fields: Any) -> None:
        """Set fields of a GPU's state (:class:`.state.Gpu`).

        A guest that has a whole GPU of Ampere can turn ``mig`` and
        ``pending`` on, which the InfoROM keeps for the next guest (MIG User
        Guide, "Enable MIG Mode"; NVIDIA/gpu-admin-tools#2). It can turn
        ``confidential`` on, which stays over resets until gpu-admin-tools,
        which need only the PCI function, change it (their README).
        """
        with self.operation(write=True):
            state = self.gpu(address).state
            for name, value in fields.items():
                if not hasattr(state, name):
                    raise self.wrong(f'no such fact: {name}')
                setattr(state, name, value)

    def set_remapped_rows(self, address: str, corrected: int = 0,
                          uncorrected: int = 0, pending: bool = False,
                          failed: bool = False) -> None:
        """Set the memory faults of a GPU (nvmlDeviceGetRemappedRows)."""
        with self.operation(write=True):
            self.gpu(address).state.remapped = [
                corrected, uncorrected, int(pending), int(failed)]

    def raise_xid(self, address: str, xid: int | None,
                  instance: int | None = None,
                  compute: int | None = None) -> None:
        """Let the driver report an error to processes that wait for events.

        :param xid: None for a double-bit error of the memory's ECC.
        :param instance: id of the GPU instance to which the error is limited.
        """
        with self.operation(write=True):
            state = self.state
            state.xids = [*state.xids[-_KEPT_XIDS:], state_module.Xid(
                state.number(), self.gpu(address).address, xid, instance,
                compute)]

    def set_confidential_computing(self, mode: str) -> None:
        """Set the mode, as gpu-admin-tools do: on, devtools, or empty."""
        with self.operation(write=True):
            self.state.confidential_computing = mode

    def set_health(self, address: str, **facts: Any) -> None:
        """As :meth:`change_gpu`; also ``uncorrected`` ECC errors."""
        with self.operation(write=True):
            if 'uncorrected' in facts:
                self.gpu(address).state.ecc[1] = facts.pop('uncorrected')
            self.change_gpu(address, **facts)


# The fabric manager of a simulated machine, as an operator manages it.

class FabricService(users.Part):
    """The part of a machine that runs nv-fabricmanager."""

    @property
    def fabric_manager_runs(self) -> bool:
        """Whether nv-fabricmanager runs."""
        with self.operation():
            return bool(self.state.fabric_manager)

    def start_fabric_manager(self, restart: bool = False) -> None:
        """Start nv-fabricmanager.

        :param restart: with its option ``--restart``: NVLinks of active
            partitions stay up, and the fabric manager waits for the list of
            active partitions.
        """
        with self.operation(write=True):
            if self.host.has_switches:
                simulator_fabric.Manager(self).start(restart)
            self.state.fabric_manager = True

    def stop_fabric_manager(self) -> None:
        """Stop nv-fabricmanager. NVLinks of active partitions stay up."""
        with self.operation(write=True):
            self.state.fabric_manager = False

    def remove_fabric_manager(self) -> None:
        """Uninstall nv-fabricmanager and its library."""
        with self.operation(write=True):
            self.state.fabric_manager = None

    def configure_fabric_manager(self, mode: int | None = None,
                                 socket: str | None = None,
                                 version: str | None = None) -> None:
        """Change the fabric manager's configuration for its next start.

        See the fields of :class:`.state.Fabric`.
        """
        with self.operation(write=True):
            fabric = self.state.fabric
            if mode is not None:
                fabric.configured = mode
            if socket is not None:
                fabric.socket = socket
            if version is not None:
                fabric.version = version

    @property
    def active_partitions(self) -> tuple[int, ...]:
        """Ids of the partitions whose NVLinks are up."""
        with self.operation():
            return tuple(sorted(map(int, self.state.fabric.active)))

    def fabric_config(self) -> str:
        """Return the text of fabricmanager.cfg.

        :raises FileNotFoundError: if the fabric manager is not installed.
        """
        with self.operation():
            if self.state.fabric_manager is None:
                raise FileNotFoundError(errno.ENOENT,
                                        os.strerror(errno.ENOENT))
            fabric = self.state.fabric
            return (f'# FABRIC_MODE=0\nFABRIC_MODE={fabric.configured}\n'
                    'FM_CMD_BIND_INTERFACE=127.0.0.1\n'
                    'FM_CMD_PORT_NUMBER=6666\n'
                    f'FM_CMD_UNIX_SOCKET_PATH={fabric.socket}\n')

    def load_fabric_library(self, name: str) -> simulator_fabric.Library:
        """Return what ctypes.CDLL returns for libnvfm, one in each process.

        :raises OSError: if the library is not installed.
        """
        with self.operation():
            if self.state.fabric_manager is None:
                raise OSError(f'{name}: cannot open shared object file: '
                              'No such file or directory')
        return self._fabric_library

    def _boot_fabric(self):
        """Set the state at a start of the machine, with the machine held."""
        self.state.fabric.active.clear()
        self.state.fabric.waiting = False
        if self.state.fabric_manager and self.host.has_switches:
            simulator_fabric.Manager(self).start(restart=False)
