# SPDX-License-Identifier: Apache-2.0

"""Value classes for the state of a cloud that explains a request."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import os_traits

from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.report.content import names


@dataclasses.dataclass(frozen=True)
class Inventory:
    """An inventory of one resource class in Placement."""

    total: int
    reserved: int = 0
    used: int = 0
    min_unit: int = 1
    max_unit: int = 2 ** 31 - 1
    step_size: int = 1
    ratio: float = 1.0

    @property
    def capacity(self) -> int:
        """The amount that can be allocated in total."""
        return int((self.total - self.reserved) * self.ratio)

    @property
    def free(self) -> int:
        """The amount that is not allocated."""
        return max(0, self.capacity - self.used)

    def fits(self, amount: int) -> bool:
        """Whether Placement would allocate this amount to one group."""
        return (self.used + amount <= self.capacity
                and self.allows(amount))

    def allows(self, amount: int) -> bool:
        """Whether a group can request this amount, free or not."""
        return (self.min_unit <= amount <= self.max_unit
                and amount % self.step_size == 0)


@dataclasses.dataclass(frozen=True)
class Node:
    """A resource provider.

    :ivar holders: the resources that each consumer has here.
    """

    uuid: str
    name: str
    inventories: Mapping[str, Inventory] = dataclasses.field(
        default_factory=dict)
    traits: frozenset[str] = frozenset()
    holders: Mapping[str, Mapping[str, int]] = dataclasses.field(
        default_factory=dict)
    root: str = ''
    """UUID of the compute node's provider."""

    @functools.cached_property
    def place(self) -> names.ProviderName | None:
        """Host, GPU and profile; None for a provider of another driver."""
        return names.parse_provider_name(self.name)

    @property
    def host(self) -> str:
        """The compute node as in the name; empty as for :attr:`gpu`."""
        return self.place.host if self.place else ''

    @property
    def gpu(self) -> str:
        """PCI address of the GPU; empty for a provider of another driver."""
        return self.place.gpu if self.place else ''

    @property
    def label(self) -> str:
        """The profile, such as ``passthrough``, ``1g.10gb``, ``T4-2B``."""
        return self.place.label if self.place else ''

    @property
    def resource_class(self) -> str | None:
        """The driver gives each provider one; None without an inventory."""
        return next(iter(sorted(self.inventories)), None)

    @property
    def _inventory(self) -> Inventory:
        return self.inventories.get(self.resource_class or '', Inventory(0))

    @property
    def total(self) -> int:
        """The amount that the GPU has of the profile."""
        return self._inventory.total

    @property
    def reserved(self) -> int:
        """The amount that the driver withholds from servers now."""
        return self._inventory.reserved

    @property
    def used(self) -> int:
        """The amount that servers use."""
        return self._inventory.used

    @property
    def free(self) -> int:
        """The amount that can be allocated now."""
        return self._inventory.free

    def fact(self, kind: str) -> str | None:
        """Return the value of a kind of trait; None if there is no such trait.
        """
        prefix = f'CUSTOM_GPU_{kind}_'
        return next((trait.removeprefix(prefix)
                     for trait in sorted(self.traits)
                     if trait.startswith(prefix)), None)

    def suits(self, required: frozenset[str], forbidden: frozenset[str]
              ) -> bool:
        """Whether it has these traits, and none of the others."""
        return required <= self.traits and not forbidden & self.traits

    @property
    def numa_node(self) -> int | None:
        """The GPU's NUMA node; None if no trait names one."""
        text = self.fact('NUMA') or ''
        return int(text) if text.isdecimal() else None

    @property
    def title(self) -> str:
        """Name for display: ``1g.10gb on GPU 0000:07:00.0``."""
        return (f'{self.place.label} on GPU {self.place.gpu}' if self.place
                else self.name)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Health conditions of the GPU, such as ``XID_79``."""
        return health.codes_of(self.traits)

    @property
    def of_cyborg(self) -> bool:
        """Whether Cyborg created the provider."""
        return os_traits.OWNER_CYBORG in self.traits


@dataclasses.dataclass(frozen=True)
class Tree:
    """A compute node's provider tree, without what other providers share."""

    root: Node
    below: tuple[Node, ...] = ()

    @property
    def name(self) -> str:
        """hypervisor_hostname."""
        return self.root.name

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All providers of the tree."""
        return (self.root, *self.below)

    def neighbours(self, node: Node) -> Iterator[Node]:
        """Return the providers of the other profiles of the same GPU."""
        return (other for other in self.below
                if node.gpu and other.gpu == node.gpu and other != node)


@dataclasses.dataclass(frozen=True)
class Service:
    """The nova-compute service of a compute node."""

    host: str
    zone: str = ''
    enabled: bool = True
    up: bool = True
    reason: str = ''
    """Why it was disabled."""


@dataclasses.dataclass(frozen=True)
class Server:
    """A server, as the question or a holder of resources.

    :ivar host: on which it is; None if it has no host.
    :ivar zone: the availability zone that its user requested.
    :ivar fault: the reason of its failure, from Nova.
    """

    uuid: str
    name: str
    host: str | None = None
    zone: str | None = None
    fault: str = ''


Option = frozenset[str]
"""The UUIDs of the providers that one of Placement's candidates uses."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """Placement's own answer to the request.

    :ivar options: the candidates of each compute node, by its UUID.
    :ivar refusal: why Placement refused the query; empty if it did not.
    :ivar partial: whether there may be more candidates than the query's limit.
    """

    options: Mapping[str, Sequence[Option]] = dataclasses.field(
        default_factory=dict)
    refusal: str = ''
    partial: bool = False


@dataclasses.dataclass(frozen=True)
class Facts:
    """The state of a cloud. None stands for a part that could not be read.

    :ivar services: by the UUID of the compute node's provider.
    :ivar devices: of Cyborg, as :mod:`.cyborg` reads them; ``arqs``, too.
    :ivar deployables: number of attach handles, by UUID of the provider.
    :ivar servers: names of the servers that hold resources, by UUID.
    :ivar unknown_traits: requested traits that Placement does not know.
    :ivar classes: all resource classes that Placement knows.
    :ivar whole: whether ``trees`` has all hosts with accelerators.
    """

    trees: tuple[Tree, ...] = ()
    services: Mapping[str, Service] | None = None
    devices: tuple[Any, ...] | None = None
    deployables: Mapping[str, int] | None = None
    arqs: tuple[Any, ...] | None = None
    servers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unknown_traits: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    server: Server | None = None
    answer: Answer = Answer()
    whole: bool = True
    unchecked: tuple[str, ...] = ()

    @functools.cached_property
    def offered(self) -> Mapping[str, list[Node]]:
        """The providers by resource class."""
        found: dict[str, list[Node]] = {}
        for tree in self.trees:
            for node in tree.nodes:
                for name in node.inventories:
                    found.setdefault(name, []).append(node)
        return found

    def cordons(self, node: Node, host: str) -> cordon.Cordons:
        """Return the reasons why a provider's GPU gets no new server."""
        return next((
            device.cordons(node.traits) for device in self.devices or ()
            if node.place is not None and device.hostname == host
            and device.gpu == node.place.gpu), ())

    def people(self, consumers) -> str:
        """List consumers for display: server names, or UUIDs if unknown."""
        found = sorted(self.servers.get(uuid, uuid) for uuid in consumers)
        if len(found) > 5:
            return f'{", ".join(found[:4])} and {len(found) - 4} others'
        return ', '.join(found)
