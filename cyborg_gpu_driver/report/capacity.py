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

"""The inventory that each provider of a GPU should have now. Pure."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers as partition_offers
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names


def owned(claims: Iterable[gpu_record.Claim], hostname: str
          ) -> Mapping[str, int]:
    """How many units of each provider are bound through Cyborg.

    :param hostname: the host name in the providers' names.
    """
    return collections.Counter(
        names.provider_uuid(names.provider_name(
            hostname, partition_offers.Offer(
                claim.gpu, '', policy.Mode.VGPU, claim.profile, 1)))
        for claim in claims if claim.is_owned)


def inventories(offers: Iterable[partition_offers.Offer],
                owned: Mapping[str, int], hostname: str,
                withheld: bool = False, cordoned: bool = False
                ) -> tuple[reserved.Inventory, ...]:
    """The inventories of one GPU, with the ``reserved`` to write.

    A whole GPU excludes no other offer. It is reserved while processes of
    this machine use it, and while it is withheld.

    :param offers: the offers of one GPU.
    :param owned: how many of each profile are bound through Cyborg.
    :param hostname: the host name in the providers' names.
    :param withheld: whether Placement must not promise anything on this GPU
        now, even if the GPU has room.
    :param cordoned: whether the GPU gets no new server. Then everything is
        reserved, whatever is bound, as Cyborg itself does when a device is
        disabled: what a server releases must not be promised even for a
        moment.
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
