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
"""What is known of a cloud when a request is to be explained: values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import os_traits

from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.report.content import names


@dataclasses.dataclass(frozen=True)
class Inventory:
    """So much of a resource class as Placement has it."""

    total: int
    reserved: int = 0
    used: int = 0
    min_unit: int = 1
    max_unit: int = 2 ** 31 - 1
    step_size: int = 1
    ratio: float = 1.0

    @property
    def capacity(self) -> int:
        """What may be had at all now."""
        return int((self.total - self.reserved) * self.ratio)

    @property
    def free(self) -> int:
        """What is left of it."""
        return max(0, self.capacity - self.used)

    def fits(self, amount: int) -> bool:
        """Whether Placement would take so many of it for one group."""
        return (self.used + amount <= self.capacity
                and self.allows(amount))

    def allows(self, amount: int) -> bool:
        """Whether so many can be asked for, free or not."""
        return (self.min_unit <= amount <= self.max_unit
                and amount % self.step_size == 0)


@dataclasses.dataclass(frozen=True)
class Node:
    """A resource provider.

    :ivar holders: for each consumer what it has here.
    """

    uuid: str
    name: str
    inventories: Mapping[str, Inventory] = dataclasses.field(
        default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    holders: Mapping[str, Mapping[str, int]] = dataclasses.field(
        default_factory=dict)

    @functools.cached_property
    def place(self) -> names.ProviderName | None:
        """Host, GPU and profile; None if it is not this driver's."""
        return names.parse_provider_name(self.name)

    @property
    def gpu(self) -> str | None:
        """PCI address of the GPU, None if it is not this driver's."""
        return self.place.gpu if self.place else None

    @property
    def title(self) -> str:
        """For people: ``1g.10gb on GPU 0000:07:00.0``."""
        return (f'{self.place.label} on GPU {self.place.gpu}' if self.place
                else self.name)

    @property
    def sick(self) -> tuple[str, ...]:
        """What ails the GPU: ``XID_79``."""
        return health.told(self.traits)

    @property
    def of_cyborg(self) -> bool:
        """Whether Cyborg made it."""
        return os_traits.OWNER_CYBORG in self.traits


@dataclasses.dataclass(frozen=True)
class Tree:
    """A compute node and what is below it.

    :ivar shared: providers outside that share what they have with it.
    """

    root: Node
    below: tuple[Node, ...] = ()
    shared: tuple[Node, ...] = ()

    @property
    def name(self) -> str:
        """hypervisor_hostname."""
        return self.root.name

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All from which a server on this host can be given something."""
        return (self.root, *self.below, *self.shared)

    def neighbours(self, node: Node) -> Iterator[Node]:
        """The other profiles of the same GPU."""
        return (other for other in self.below
                if node.gpu and other.gpu == node.gpu and other != node)


@dataclasses.dataclass(frozen=True)
class Service:
    """nova-compute of a compute node."""

    host: str
    zone: str = ''
    enabled: bool = True
    up: bool = True
    reason: str = ''
    """Why it was disabled."""


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """A host aggregate."""

    name: str
    hosts: frozenset[str]
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that Cyborg knows.

    :ivar gpu: PCI address; empty for a device of another driver.
    :ivar told: the cordons that the agent's last report tells of.
    """

    uuid: str
    host: str
    model: str = ''
    enabled: bool = True
    gpu: str = ''
    told: cordon.Cordons = ()

    def cordons(self, traits: Iterable[str] = ()) -> cordon.Cordons:
        """Why the GPU gets no new server.

        :param traits: of its providers.
        """
        return cordon.current(self.told, self.enabled, traits)


@dataclasses.dataclass(frozen=True)
class Arq:
    """An accelerator request.

    :ivar provider: UUID of the provider that it is, or was, bound to.
    """

    uuid: str
    state: str
    server: str | None = None
    provider: str | None = None
    host: str | None = None
    profile: str = ''

    @property
    def holds(self) -> bool:
        """Whether it may have an attach handle."""
        return self.state != 'Initial' and self.provider is not None


@dataclasses.dataclass(frozen=True)
class Limit:
    """A limit of a project's, for one kind of thing."""

    name: str
    limit: int
    used: int
    wanted: int


@dataclasses.dataclass(frozen=True)
class Server:
    """A server about which is asked.

    :ivar host: where it is, None if it was given none.
    :ivar zone: availability zone that it was asked into.
    :ivar fault: what Nova says of its failure.
    """

    uuid: str
    name: str
    status: str
    project: str = ''
    host: str | None = None
    zone: str | None = None
    fault: str = ''


@dataclasses.dataclass(frozen=True)
class Answer:
    """What Placement itself answered.

    :ivar roots: how many candidates each compute node has, by its UUID.
    :ivar refusal: why it took no such question; empty if it did.
    :ivar partial: whether there are more candidates than it was to tell.
    """

    roots: Mapping[str, int] = dataclasses.field(default_factory=dict)
    refusal: str = ''
    partial: bool = False


@dataclasses.dataclass(frozen=True)
class Facts:
    """All of it. None stands for what could not be read.

    :ivar services: by the UUID of the compute node's provider.
    :ivar deployables: attach handles of each, by its provider's UUID.
    :ivar servers: names by UUID, of those who have something.
    :ivar unknown_traits: of those asked for, what Placement never heard of.
    :ivar classes: all resource classes that Placement knows.
    :ivar whole: whether the trees of all hosts with accelerators are here.
    :ivar unchecked: what was not looked at, and why.
    """

    trees: tuple[Tree, ...] = ()
    services: Mapping[str, Service] | None = None
    aggregates: tuple[Aggregate, ...] | None = None
    devices: tuple[Device, ...] | None = None
    deployables: Mapping[str, int] | None = None
    arqs: tuple[Arq, ...] | None = None
    servers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unknown_traits: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    limits: tuple[Limit, ...] = ()
    project: str | None = None
    server: Server | None = None
    answer: Answer | None = None
    whole: bool = True
    unchecked: tuple[str, ...] = ()

    @functools.cached_property
    def offered(self) -> Mapping[str, list[Node]]:
        """The providers of each resource class."""
        found: dict[str, list[Node]] = {}
        for tree in self.trees:
            for node in tree.nodes:
                for name in node.inventories:
                    found.setdefault(name, []).append(node)
        return found

    def cordons(self, node: Node, host: str) -> cordon.Cordons:
        """Why the GPU of a provider gets no new server.

        :param host: as Cyborg names it.
        """
        return next((
            device.cordons(node.traits) for device in self.devices or ()
            if node.place is not None and device.host == host
            and device.gpu == node.place.gpu), ())

    def people(self, consumers) -> str:
        """Consumers by name for people; UUIDs where no server is known."""
        found = sorted(self.servers.get(uuid, uuid) for uuid in consumers)
        if len(found) > 5:
            return f'{", ".join(found[:4])} and {len(found) - 4} others'
        return ', '.join(found)
