# SPDX-License-Identifier: Apache-2.0

"""The server of a GPU, vGPU or slice, as far as this host knows it.

The sources are Cyborg, if the agent may ask it (``[gpu_cloud]``), and
libvirt, by the devices of its virtual machines. An answer that is older than
the bind is not used: handles and functions are given to one server after
another. Nova stops a server before its accelerators are unbound, and defines a
server after they are bound.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import domains as host_domains
from cyborg_gpu_driver.metrics import sampler
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.record import gpu as gpu_record

LOG = logging.getLogger(__name__)


Labels = tuple[str, str, str, str]
"""The server, request, project and flavor of a device; what this host does not
know is empty."""


@dataclasses.dataclass(frozen=True)
class Listing:
    """The virtual machines of the host."""

    begun: float = 0.0
    """When libvirt was asked, in seconds of the epoch."""
    domains: tuple[host_domains.Domain, ...] = ()


class Watch:
    """Asks libvirt for its virtual machines, independently of scrapes."""

    def __init__(self, reader: host_domains.DomainReader,
                 clock: Callable[[], float] = time.time):
        self._reader = reader
        self._clock = clock
        self._listing = Listing()
        self._said = log_once.LogOnce()

    def start(self) -> None:
        """Start to ask libvirt regularly, in a separate thread."""
        sampler.repeat(self.round, 'virtual machines')

    def round(self) -> None:
        """Ask libvirt once; log a failure once."""
        begun = self._clock()
        try:
            self._listing = Listing(begun, self._reader.read())
        except exception.UsageUnknown as error:
            if self._said.is_new(str(error)):
                LOG.warning('%s', error)
            return
        self._said.over()

    def take(self) -> Listing:
        """Return the latest listing; an empty one if it is too old."""
        listing = self._listing
        if self._clock() - listing.begun >= sampler.STALE:
            return Listing()
        return listing


class Owners:
    """Finds the owners of devices, at the moment of a scrape.

    :param cyborg: the owners that Cyborg reported, by handle.
    """

    def __init__(self, cyborg: Mapping[str, state.Owner], listing: Listing):
        self._cyborg = cyborg
        self._asked = listing.begun
        self._by_uuid = {item.uuid: item for item in listing.domains}
        self._by_device: dict[str, str] = {}
        twice: set[str] = set()
        for item in listing.domains:
            twice |= item.devices & self._by_device.keys()
            self._by_device.update(dict.fromkeys(item.devices, item.uuid))
        for device in twice:
            # The definition of a stopped server may still have the device.
            del self._by_device[device]

    def of_claim(self, claim: gpu_record.Claim) -> Labels:
        """Return the owner of a vGPU, slice or group of GPUs."""
        known = (state.owner_of(claim, self._cyborg)
                 or state.Owner('', ''))
        return self.of_server(known.server or self._by_libvirt(claim),
                              known.arq)

    def of_server(self, server: str, arq: str = '') -> Labels:
        """Return what is known of a server; its UUID may be empty."""
        found = self._by_uuid.get(server)
        return (server, arq, found.project if found else '',
                found.flavor if found else '')

    def _by_libvirt(self, claim: gpu_record.Claim) -> str:
        if self._asked < (claim.since or 0.0):
            return ''
        return self._by_device.get(
            claim.handle if claim.is_mdev
            else str(claim.gpu if claim.members else claim.function), '')
