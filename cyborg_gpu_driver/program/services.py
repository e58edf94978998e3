# SPDX-License-Identifier: Apache-2.0

"""The interface between a host and the cloud's services."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.partition.offer import offers


class Services:
    """Cyborg and Placement, as seen by one host.

    This class does not contact them: it knows nothing and writes nothing.
    The agent and the doctor override its methods.
    """

    def requests(self) -> reconcile.Requests | None:
        """Cyborg's requests for this host; None if they are unknown."""
        return None

    def usages(self, looked: Mapping[model.PciAddress,
                                     Sequence[offers.Offer]]
               ) -> Mapping[model.PciAddress,
                            tuple[reconcile.Usage, ...]] | None:
        """What Placement has for the providers of GPUs; None if unknown."""
        return None

    def claimed(self, address: model.PciAddress) -> str:
        """Why a GPU may have servers that leave no trace on this host."""
        return ''

    def mixed(self, address: model.PciAddress, handle: str) -> str:
        """Why an attach handle must not be bound on a GPU.

        :returns: empty if all servers on the GPU would be of one project, or
            if the GPU may have servers of several projects.
        """
        return ''

    def allocated(self, item: offer.Offer) -> Mapping[str, int] | None:
        """How many units of an offer each server has in Placement.

        :returns: by a text that names the server and the provider; None if
            that is unknown.
        """
        return None

    @contextlib.contextmanager
    def partitioning(self, address: model.PciAddress) -> Iterator[str]:
        """Let no server get a GPU as a whole while its role may change.

        For a GPU in mode auto. The caller does not hold its lock.

        :returns: a context manager. It yields why a server has or may have
            the whole GPU; empty if no server has it or can get it.
        """
        yield ''

    def publish(self, address: model.PciAddress) -> None:
        """Write the free capacity of a GPU to Placement.

        The caller does not hold the GPU's lock. Never raises.
        """

    def settle(self, address: model.PciAddress) -> bool:
        """Like :meth:`publish`; wait for earlier writes too.

        :returns: whether the state is written and no older one can be.
        """
        return True

    def publish_soon(self, address: model.PciAddress) -> None:
        """Like :meth:`publish`, without waiting: for the event thread."""
