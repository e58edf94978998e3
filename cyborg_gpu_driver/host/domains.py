# SPDX-License-Identifier: Apache-2.0

"""The virtual machines of this host, as libvirt shows them to any user.

libvirt has a separate read-only socket, which any user may open unless the
host is configured otherwise (``unix_sock_ro_perms`` in libvirtd.conf and
virtqemud.conf). This module uses libvirt's Python module, which Nova needs on
each host with its libvirt driver.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import domain

LOG = logging.getLogger(__name__)

URI = 'qemu:///system'
MODULE = 'libvirt'
TIMEOUT = 10.0
"""Seconds that libvirt may take for all virtual machines."""
_OWNER = 'libvirt'
_ACTIVE, _INACTIVE = 1, 2
"""VIR_CONNECT_LIST_DOMAINS_ACTIVE and _INACTIVE (libvirt-domain.h)."""


def connect() -> Any:
    """Open a read-only connection with libvirt's Python module."""
    module = importlib.import_module(MODULE)
    # Without a handler, libvirt prints each error.
    module.registerErrorHandler(lambda _context, _error: None, None)
    return module.openReadOnly(URI)


class DomainReader:
    """Reads all virtual machines, running or not."""

    def __init__(self, connect: Callable[[], Any], timeout: float = TIMEOUT):
        self._connect = connect
        self._timeout = timeout

    def read(self) -> tuple[domain.Domain, ...]:
        """Return all virtual machines, except those that cannot be parsed."""
        try:
            texts = deadline.run(_OWNER, self._timeout, 'listAllDomains',
                                 self._texts)
        except exception.NvmlNotAnswering as error:
            raise exception.UsageUnknown(
                'the servers of this host are not known from libvirt: '
                f'{error}') from error
        except Exception as error:
            # libvirt.libvirtError, from a module that may not be installed.
            raise exception.UsageUnknown(
                'the servers of this host are not known from libvirt: '
                f'{error}') from error
        found = []
        for text in texts:
            try:
                found.append(domain.parse(text))
            except ValueError as error:
                LOG.debug('Skipped a domain of libvirt: %s', error)
        return tuple(found)

    def _texts(self) -> list[str]:
        """Return the XML of each domain, over a separate connection."""
        connection = self._connect()
        try:
            found = []
            for item in connection.listAllDomains(_ACTIVE | _INACTIVE):
                try:
                    found.append(item.XMLDesc(0))
                except Exception:
                    # Either the domain is gone, or the next call fails too.
                    connection.getVersion()
            return found
        finally:
            connection.close()
