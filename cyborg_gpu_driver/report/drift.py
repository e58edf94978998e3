# SPDX-License-Identifier: Apache-2.0

"""Read what Placement has for this host's providers, and compare it.

Placement has no request for the usages of a whole tree. But each new
allocation and each write changes its provider's generation, so one request for
the tree tells which of them have changed. The deletion of an allocation
changes no generation (delete_all in placement/objects/allocation.py), so a
provider in use is asked each time.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.partition.offer import offers as partition_offers
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names

LOG = logging.getLogger(__name__)


class Drift:
    """Reads the usages of the GPUs' offers, and ``reserved`` if asked to.

    :param with_reserved: whether ``reserved`` is read. The agent need not
        know it, because each report writes what is right.
    """

    def __init__(self, tree: publishing.ProviderTree, hostname: str,
                 with_reserved: bool = False):
        self._tree = tree
        self._hostname = hostname
        self._with_reserved = with_reserved
        self._said = log_once.LogOnce()
        self._generations: dict[str, int] = {}

    def take_generations(self) -> dict[str, int]:
        """Generation of each provider of this host's tree, read just now.

        They can be taken once after each :meth:`read`.

        :returns: empty if Placement did not answer or nothing was read.
        """
        taken, self._generations = self._generations, {}
        return taken

    def read(self, looked: Mapping[
            model.PciAddress, Sequence[partition_offers.Offer]],
             inventories: Mapping[
                 model.PciAddress, Iterable[reserved.Inventory]]
             ) -> dict[model.PciAddress, tuple[reconcile.Usage, ...]] | None:
        """Usages of the providers that Placement has, by GPU.

        :returns: None if Placement did not answer, which is logged once.
        """
        self._generations = {}
        wanted = {address: self._of_parts(offers, inventories[address])
                  for address, offers in looked.items()}
        try:
            self._generations = self._tree.generations([
                inventory.provider for pairs in wanted.values()
                for _, inventory in pairs])
            found = {address: tuple(filter(None, (
                self._usage(offer, inventory) for offer, inventory in pairs)))
                for address, pairs in wanted.items()}
        except Exception as error:
            self._generations = {}
            reason = exception.steady(error)
            if self._said.is_new(reason):
                LOG.warning('Placement cannot be compared with the binds of '
                            'this host: %s', reason)
            return None
        self._said.over()
        return found

    def _of_parts(self, offers: Iterable[partition_offers.Offer],
                  inventories: Iterable[reserved.Inventory]
                  ) -> list[tuple[partition_offers.Offer, reserved.Inventory]]:
        """The offers of parts of a GPU, with their inventories."""
        parts = {names.provider_uuid(names.provider_name(
            self._hostname, offer)): offer for offer in offers
            if offer.mode is not policy.Mode.PASSTHROUGH}
        return [(parts[inventory.provider], inventory)
                for inventory in inventories
                if inventory.provider in parts]

    def _usage(self, offer: partition_offers.Offer,
               inventory: reserved.Inventory) -> reconcile.Usage | None:
        """The usage of a provider; None if Placement does not have it."""
        generation = self._generations.get(inventory.provider)
        usages = None if generation is None else self._tree.usages(
            inventory.provider, generation)
        if usages is None:
            return None
        found = inventory.reserved
        if self._with_reserved:
            there = self._tree.get(
                f'/resource_providers/{inventory.provider}/inventories/'
                f'{inventory.resource_class}')
            if there is None:
                return None
            found = there['reserved']
        return reconcile.Usage(
            inventory.provider, offer.profile, offer.vgpu_type_id or '',
            usages.get(inventory.resource_class, 0), found,
            inventory.reserved,
            names.provider_name(self._hostname, offer))


# Decide which GPUs a report sends in full, and which it sends as stubs.
#
# Cyborg's conductor reads and writes its database for each provider and each
# attach handle of a device, whether the device has changed or not
# (drv_device_make_diff in cyborg/conductor/manager.py). A stub says that the
# device is unchanged, and costs nothing but the list that the conductor reads
# anyway. So a GPU is sent in full when it has changed, and from time to time.

_TIMES = 2
"""How often a change is sent: a report can get lost, and the agent does not
learn of it."""
_REQUESTS = 18
"""Requests to Placement that the conductor needs to create one provider;
counted with Cyborg 17 (get_placement_needed_info_and_report)."""
_SHARE = 4
"""The conductor may spend one part in this many of the RPC timeout on new
providers. After the timeout, the next report would begin while the conductor
still works on this one."""
INTERVAL = 600.0
"""Seconds after which the agent reports a GPU in full although nothing about
it has changed. That restores what somebody has deleted from Cyborg's database;
a report that says only that the GPU is unchanged costs the database a sixth of
the queries."""


@dataclasses.dataclass(frozen=True)
class _Sent:
    """The last full report of one GPU."""

    device: names.ReportedDevice
    times: int
    """How many full reports in a row were equal."""
    at: float


class Steady:
    """Remembers what was sent for each GPU since the agent has started.

    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._sent: dict[model.PciAddress, _Sent] = {}

    def thin(self, devices: Iterable[names.ReportedDevice],
             there: Collection[str] | None, room: int
             ) -> tuple[names.ReportedDevice, ...]:
        """The devices, with stubs for those not sent in full.

        :param there: UUIDs of the providers that Placement has; None if that
            is not known.
        :param room: how many new providers the report may contain. The first
            GPU with new providers is always sent in full.
        """
        thinned = []
        brought = 0
        for device in devices:
            if device.stub:
                thinned.append(build.stub_device(device.address))
                continue
            missing = 0 if there is None else sum(
                item.provider_uuid not in there
                for item in device.deployables)
            if missing:
                is_full = not brought or brought + missing <= room
                brought += missing if is_full else 0
            else:
                is_full = self._is_due(device)
            if is_full:
                self._note(device)
                thinned.append(device)
            else:
                thinned.append(build.stub_device(device.address))
        return tuple(thinned)

    def _is_due(self, device: names.ReportedDevice) -> bool:
        known = self._sent.get(device.address)
        return (known is None
                or known.device != _compared(device)
                or known.times < _TIMES
                or self._clock() >= known.at + INTERVAL)

    def _note(self, device: names.ReportedDevice) -> None:
        known = self._sent.get(device.address)
        compared = _compared(device)
        times = known.times if known and known.device == compared else 0
        self._sent[device.address] = _Sent(compared, times + 1,
                                           self._clock())


def room(timeout: float, latency: float) -> int:
    """How many new providers one report may contain.

    :param timeout: seconds that the agent waits for the conductor
        (``[DEFAULT] rpc_response_timeout``).
    :param latency: seconds that Placement needs for one request.
    """
    return int(timeout / _SHARE / (_REQUESTS * latency))


def _compared(device: names.ReportedDevice) -> names.ReportedDevice:
    """The part of a device that Cyborg gets, without ``busy``."""
    return dataclasses.replace(device, busy='')
