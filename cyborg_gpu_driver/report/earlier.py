# SPDX-License-Identifier: Apache-2.0

"""GPUs that servers still have through Cyborg's own driver.

Cyborg's own driver reports a whole GPU, or the vGPUs of one, as one
deployable named ``<host>_<address>`` (_generate_dep_list in
cyborg/accelerator/drivers/gpu/nvidia/sysinfo.py), and Cyborg derives the
provider's UUID from the name. If a report lacks the deployable, the conductor
tries to delete it. While a server has its attach handle, that fails, and the
report of the whole host fails with it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from collections.abc import Mapping

from oslo_log import log as logging

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report.content import names

LOG = logging.getLogger(__name__)

_NAME = re.compile(
    r'.+_(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])', re.ASCII)


class Earlier:
    """Asks Placement for such providers in each report, until none is left.

    Only Cyborg's own driver makes such providers, and it ends before this
    driver starts. So once they are gone, no new one appears while the agent
    runs.

    :param tree: the providers of this host.
    :param hostname: name of the compute node's provider.
    """

    def __init__(self, tree: publishing.ProviderTree, hostname: str):
        self._tree = tree
        self._hostname = hostname
        self._known: tuple[reconcile.Earlier, ...] | None = None
        self._are_gone = False

    @property
    def known(self) -> tuple[reconcile.Earlier, ...] | None:
        """The providers that servers have; None until Placement answers."""
        return self._known

    def update(self, host: model.Host) -> None:
        """Ask Placement; keep its last answer while it does not answer."""
        if self._are_gone:
            return
        try:
            there = _providers(self._tree, self._hostname, host)
            self._known = _in_use(self._tree, there)
            self._are_gone = not there
        except Exception as error:
            # The report logs which GPUs it leaves alone because of this.
            LOG.debug("Providers of Cyborg's own driver are unknown: %s",
                      error)

    def draining(self, ignored: Collection[model.PciAddress]
                 ) -> tuple[reserved.Inventory, ...]:
        """The inventories that Placement must not promise any more.

        A bind would reach this driver, which did not report them.

        :param ignored: GPUs that this driver ignores.
        :raises Exception: what the client raises.
        """
        return tuple(
            reserved.Inventory(uuid, name, inventory['total'],
                               inventory['total'])
            for uuid in (names.provider_uuid(item.provider)
                         for item in self._known or ()
                         if item.gpu not in ignored)
            for name, inventory in self._tree.inventories(uuid).items())


def read(tree: publishing.ProviderTree, hostname: str, host: model.Host
         ) -> tuple[reconcile.Earlier, ...]:
    """The providers of Cyborg's own driver that servers have.

    :param tree: the providers of this host.
    :param hostname: name of the compute node's provider.
    :raises Exception: what the client raises.
    """
    return _in_use(tree, _providers(tree, hostname, host))


def _in_use(tree: publishing.ProviderTree,
            there: Mapping[str, reconcile.Earlier]
            ) -> tuple[reconcile.Earlier, ...]:
    """The providers that servers have, with those servers."""
    found = []
    for uuid, item in there.items():
        answer = tree.get(f'/resource_providers/{uuid}/allocations')
        if answer and answer['allocations']:
            found.append(dataclasses.replace(
                item, servers=tuple(sorted(answer['allocations']))))
    return tuple(found)


def _providers(tree: publishing.ProviderTree, hostname: str,
               host: model.Host) -> Mapping[str, reconcile.Earlier]:
    """The providers of Cyborg's own driver for GPUs of a host, by UUID.

    Nova names the providers of its PCI devices in the same way, but their
    UUIDs do not follow from the names.
    """
    gpus = {function: gpu.address for gpu in host.gpus for function
            in (gpu.address, *(vf.address for vf in gpu.vfs))}
    found = {}
    for item in tree.of_host(hostname):
        match = _NAME.fullmatch(item['name'])
        if (match is None
                or item['uuid'] != names.provider_uuid(item['name'])):
            continue
        function = model.PciAddress.parse(match['address'])
        if function in gpus:
            found[item['uuid']] = reconcile.Earlier(
                gpus[function], function, item['name'])
    return found
