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
"""Why a request does not schedule: one word for each reason."""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Iterable
from typing import Any


class Reason(enum.Enum):
    """Why a server gets no accelerator; the names are in the JSON output."""

    # The request itself.
    PROFILE_UNKNOWN = 'Cyborg has no such device profile'
    PROFILE_BY_UUID = 'the flavor names a device profile by its UUID'
    NO_PROFILE = 'the flavor names no device profile'
    GROUP_EMPTY = 'a group of the device profile requests nothing'
    CLASS_IGNORED = 'Nova does not know a resource class'
    GROUP_MIXED = 'a group requests several resource classes from one provider'
    GROUP_POLICY = 'several groups of a flavor need a group_policy'
    CLASS_NOWHERE = 'no provider of the cloud has a resource class'
    TRAIT_UNKNOWN = 'Placement does not know a trait'
    TRAIT_NOWHERE = 'no provider of a resource class has the trait'
    FLAVOR_DISABLED = 'the flavor is disabled'
    FLAVOR_ACCESS = 'the project has no access to the flavor'
    QUOTA = 'a limit of the project would be exceeded'
    # A host.
    HOST_DISABLED = 'the compute service is disabled'
    SERVICE_DOWN = 'nova-compute is down'
    NO_COMPUTE = 'Nova has no compute node for this provider'
    NO_ACCELERATORS_TRAIT = ("the compute node's virt driver does not "
                             'support accelerators')
    ROOT_TRAIT = 'the compute node lacks a trait'
    HOST_RESOURCES = 'the compute node has too little free capacity'
    HOST_TRAIT = 'the host lacks a trait that the flavor requires'
    ZONE = 'the host is in another availability zone'
    PROJECT_ISOLATED = 'an aggregate reserves the host for other projects'
    AGGREGATE_SPECS = "the flavor's extra specs match no aggregate"
    CLASS_ELSEWHERE = 'only other hosts have a resource class'
    NOT_REPORTED = 'no agent reports accelerators of the host'
    GROUPS_TOGETHER = 'each group fits, but not all of them together'
    COUNT_SPLIT = 'enough in total, but not on one GPU'
    # A provider: a profile on a GPU.
    TRAIT_MISSING = 'a required trait is missing'
    TRAIT_FORBIDDEN = 'the provider has a forbidden trait'
    TOO_MANY = 'no provider has that many, even when empty'
    UNIT = 'the inventory does not allow the amount'
    USED = 'servers use all of it'
    RESERVED_SIBLING = 'servers with other profiles hold the GPU'
    RESERVED_FRAGMENTED = 'the free space has no room for another'
    RESERVED_UNHEALTHY = 'the GPU is unhealthy'
    RESERVED_CORDONED = 'the GPU is cordoned'
    GPU_ISOLATED = 'the GPU has servers, and accepts one project only'
    RESERVED_UNUSED = 'reserved although no server uses the GPU'
    # Placement gives it, and the bind fails.
    STALE_PROVIDER = 'Cyborg does not know the provider'
    CYBORG_NO_DEVICES = 'Cyborg has no device on the host'
    HANDLES_TAKEN = 'accelerator requests use the attach handles'
    # Hints.
    DEVICE_DISABLED = 'a device is disabled in Cyborg'
    SAME_GPU = 'groups may land on one GPU and exclude each other there'
    BIND_FAILED = 'Cyborg could not bind'
    HOST_MISMATCH = 'Nova and Cyborg name the host differently'
    SERVICE_TOKEN = 'Nova sends Cyborg no service token'
    NO_NETWORK = 'the server was created without a network'
    NO_VALID_HOST = 'no host accepted the server'
    SERVER_FAULT = 'the server failed for another reason'
    DISAGREES = 'Placement contradicts this result'
    REFUSED = 'Placement refuses the request'


PASSES = frozenset({
    Reason.USED, Reason.RESERVED_SIBLING, Reason.RESERVED_FRAGMENTED,
    Reason.RESERVED_UNUSED, Reason.RESERVED_CORDONED, Reason.HOST_RESOURCES,
    Reason.GROUPS_TOGETHER, Reason.SERVICE_DOWN, Reason.HOST_DISABLED})
"""What may pass by itself, or at a word of the operator's."""
AT_BIND = frozenset({
    Reason.STALE_PROVIDER, Reason.CYBORG_NO_DEVICES, Reason.HANDLES_TAKEN})
"""What the scheduler does not see: the server is given a host, and fails."""
BESIDE_PLACEMENT = frozenset({
    Reason.HOST_DISABLED, Reason.SERVICE_DOWN, Reason.NO_COMPUTE,
    Reason.ZONE, Reason.CYBORG_NO_DEVICES})
"""What keeps a host from a server though Placement has candidates of it."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that stands in the way, or may.

    :ivar subject: the flavor, profile, class, trait, host or provider.
    :ivar text: what is wrong, for people.
    :ivar remedy: what to do about it, for people.
    :ivar blocks: False for a hint: it depends on what no API shows.
    """

    reason: Reason
    subject: str
    text: str
    remedy: str
    blocks: bool = True

    def document(self) -> dict[str, Any]:
        """As programs read it."""
        return {'code': self.reason.name, 'subject': self.subject,
                'what': self.text, 'remedy': self.remedy,
                'blocks': self.blocks}


def distance(findings: Iterable[Finding]) -> int:
    """How far what has these findings is from being taken; 0 if it is."""
    return sum(1 if finding.reason in PASSES else 3
               for finding in findings if finding.blocks)


def similar(name: str, known: Iterable[str]) -> str:
    """A question that names what may have been meant; empty if nothing."""
    found = difflib.get_close_matches(name, sorted(known), 3)
    return f'; did you mean {" or ".join(found)}?' if found else ''
