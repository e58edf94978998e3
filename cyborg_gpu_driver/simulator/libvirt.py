# SPDX-License-Identifier: Apache-2.0

"""libvirt on a simulated machine, with the interface of its Python module.

Only some calls of a read-only connection exist: those that list domains and
show their XML (libvirt's reference of the Python bindings).
"""

from __future__ import annotations

import os
from typing import Any

_NAME = 'libvirt'


class LibvirtError(Exception):
    """Stands for libvirt.libvirtError. Callers use only its text."""


class Connection:
    """The connection that ``libvirt.openReadOnly`` returns.

    :raises LibvirtError: if the machine has a fault of the name ``libvirt``.
    """

    def __init__(self, machine: Any):
        self._machine = machine
        self._open = True
        machine.faults.wait(_NAME)
        fault = machine.faults.symbol(_NAME, None)
        if fault:
            raise LibvirtError(os.strerror(fault.code))

    def listAllDomains(self, flags: int) -> list[Domain]:
        """Return all domains, running or not."""
        self.getVersion()
        with self._machine.operation():
            return [Domain(self._machine, uuid)
                    for uuid in self._machine.state.domains]

    def getVersion(self) -> int:
        """Return the hypervisor's version; fail on a closed connection."""
        if not self._open:
            raise LibvirtError('invalid connection pointer')
        return 8002000

    def close(self) -> int:
        self._open = False
        return 0


class Domain:
    """A ``virDomain``."""

    def __init__(self, machine: Any, uuid: str):
        self._machine = machine
        self._uuid = uuid

    def XMLDesc(self, flags: int) -> str:
        with self._machine.operation():
            xml = self._machine.state.domains.get(self._uuid)
        if xml is None:
            raise LibvirtError('Domain not found')
        return xml
