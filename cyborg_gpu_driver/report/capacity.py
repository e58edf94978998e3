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

"""Which inventory each provider of a GPU should have now. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.partition.offer import offers as partition_offers
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names


def inventories(offers: Iterable[partition_offers.Offer],
                owned: Mapping[str, int], hostname: str,
                withheld: bool = False, cordoned: bool = False
                ) -> tuple[reserved.Inventory, ...]:
    """The inventories of one GPU, with the ``reserved`` that is ours.

    A whole GPU excludes nothing; it is reserved while processes of this
    machine use it, and while it is withheld.

    :param offers: the offers of one GPU.
    :param owned: how many of each profile are bound through Cyborg.
    :param hostname: as the providers are named by.
    :param withheld: nothing may be promised on this GPU now, whatever it
        could make.
    :param cordoned: it gets no new server. All is reserved, as Cyborg itself
        does when a device is disabled, whatever is bound: what a server gives
        back must not be promised for a moment either.
    """
    return tuple(
        reserved.Inventory(
            provider=names.provider_uuid(
                names.provider_name(hostname, offer)),
            resource_class=names.resource_class(offer), total=offer.total,
            reserved=offer.total if cordoned else build.reserved(
                offer.total, owned.get(offer.profile, 0),
                0 if withheld else offer.creatable))
        for offer in offers if build.reportable(offer))
