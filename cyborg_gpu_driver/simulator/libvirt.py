# SPDX-License-Identifier: Apache-2.0

"""libvirt on a simulated machine, with the interface of its Python module.

Only some calls of a read-only connection exist: those that list domains and
show their XML (libvirt's reference of the Python bindings).
"""

from __future__ import annotations

import errno
import os
from typing import Any

_NAME = 'libvirt'
_ACTIVE, _INACTIVE = 1, 2
"""VIR_CONNECT_LIST_DOMAINS_ACTIVE and _INACTIVE (libvirt-domain.h)."""


class LibvirtError(Exception):
    """Stands for libvirt.libvirtError. Callers use only its text."""


class Connection:
    """The connection that ``libvirt.openReadOnly`` returns.

    :param machine: the simulated machine.
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
        """Return all domains, running or not.

        :param flags: 0, or both flags; both mean all domains.
        """
        self.getVersion()
        if flags not in (0, _ACTIVE | _INACTIVE):
            raise LibvirtError(os.strerror(errno.EINVAL))
        with self._machine.operation():
            return [Domain(self._machine, uuid)
                    for uuid in self._machine.state.domains]

    def getVersion(self) -> int:
        """Return the hypervisor's version; fail on a closed connection."""
        if not self._open:
            raise LibvirtError('invalid connection pointer')
        return 8002000

    def close(self) -> int:
        """Close the connection."""
        self._open = False
        return 0


class Domain:
    """A ``virDomain``."""

    def __init__(self, machine: Any, uuid: str):
        self._machine = machine
        self._uuid = uuid

    def XMLDesc(self, flags: int) -> str:
        """Return the domain's XML; with flags of 0 it has no secrets."""
        with self._machine.operation():
            xml = self._machine.state.domains.get(self._uuid)
        if xml is None or flags:
            raise LibvirtError('Domain not found')
        return xml
