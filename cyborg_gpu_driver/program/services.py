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

"""What the cloud's services say of a host, and what they are told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.partition.offer import offers


class Services:
    """Cyborg and Placement, as the parts of one host know them.

    Here nobody asks them: nothing is known, and nothing is written. The
    agent and the doctor ask.
    """

    def requests(self) -> reconcile.Claims | None:
        """Cyborg's accelerator requests for this host.

        :returns: None if they are not known.
        """
        return None

    def usages(self, looked: Mapping[model.PciAddress,
                                     Sequence[offers.Offer]]
               ) -> Mapping[model.PciAddress,
                            tuple[reconcile.Usage, ...]] | None:
        """What Placement has of the providers of GPUs.

        :param looked: the offers of each GPU.
        :returns: None if it is not known.
        """
        return None

    def earlier(self, host: model.Host) -> Iterable[reconcile.Earlier]:
        """What servers have through Cyborg's own driver."""
        return ()

    def claimed(self, address: model.PciAddress) -> str:
        """Why a GPU may have servers that leave no trace on this host.

        :returns: empty if it has none.
        """
        return ''

    def mixed(self, address: model.PciAddress, handle: str) -> str:
        """Why a GPU must not get what an attach handle stands for.

        :returns: empty if all servers on it are then of one project, or
            need not be.
        """
        return ''

    @contextlib.contextmanager
    def partitioning(self, address: model.PciAddress) -> Iterator[str]:
        """Let nobody have a GPU as a whole while its role may change.

        For a GPU in mode auto. The caller does not hold its lock.

        :returns: a context manager of why somebody has it, or may have it,
            as a whole; empty if nobody has, and nobody can get it.
        """
        yield ''

    def publish(self, address: model.PciAddress) -> None:
        """Write to Placement what can still be made on a GPU.

        The caller does not hold the GPU's lock. Never raises.
        """

    def settle(self, address: model.PciAddress) -> bool:
        """The same; whether it is written, and nothing older can be."""
        return True

    def publish_soon(self, address: model.PciAddress) -> None:
        """The same, without waiting: for the thread of events."""

    def health_changed(self, address: model.PciAddress,
                       placement: model.Placement | None,
                       before: health.Verdict, after: health.Verdict
                       ) -> None:
        """Announce that a GPU's health is another one; does not wait.

        :param placement: of the GPU instance concerned; None for the GPU.
        """

    def drift_found(self, difference: reconcile.Difference) -> None:
        """Announce a new difference; does not wait."""

    def drift_resolved(self, difference: reconcile.Difference) -> None:
        """Announce that a difference is gone; does not wait."""
