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

"""The fabric manager of a simulated machine, as an operator manages it."""

from __future__ import annotations

import errno
import os

from cyborg_gpu_driver.simulator.fabric import library
from cyborg_gpu_driver.simulator.fabric import manager
from cyborg_gpu_driver.simulator.machine import part


class FabricService(part.Part):
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
                manager.Manager(self).start(restart)
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

        :param mode: FABRIC_MODE.
        :param socket: FM_CMD_UNIX_SOCKET_PATH.
        :param version: version of the package; empty for the driver's.
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

    def load_fabric_library(self, name: str) -> library.Library:
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
            manager.Manager(self).start(restart=False)
