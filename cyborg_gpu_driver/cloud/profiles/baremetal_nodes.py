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

"""Which Ironic nodes can have a profile's layout, and why not. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal.inventory import inventory
from cyborg_gpu_driver.baremetal.inventory import layouts
from cyborg_gpu_driver.baremetal.inventory import names
from cyborg_gpu_driver.cloud.profiles import baremetal_profile
from cyborg_gpu_driver.cloud.profiles import plan
from cyborg_gpu_driver.cloud.profiles import resources

_GPU_TRAITS = ('CUSTOM_GPU_', 'CUSTOM_NVIDIA_')
"""Prefixes of the traits that inspection gives to nodes with GPUs."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A node as Ironic shows it.

    :ivar identity: UUID.
    :ivar name: the UUID if the node has no name.
    :ivar resource_class: as Placement writes it; None if the node has none.
    :ivar hindrances: why Ironic does not deploy it now, for display.
    :ivar found: its GPUs; None if they are unknown.
    :ivar unknown: why its GPUs are unknown, for display.
    """

    identity: str
    name: str
    resource_class: str | None
    traits: frozenset[str]
    hindrances: tuple[str, ...] = ()
    found: inventory.Inventory | None = None
    unknown: str = ''


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a node can have the layout of a profile.

    :ivar reasons: why not, for display; empty if it can.
    :ivar trait: the trait of the layout.
    """

    node: Node
    trait: str
    reasons: tuple[str, ...]

    @property
    def can(self) -> bool:
        return not self.reasons

    @property
    def has_trait(self) -> bool:
        return self.trait in self.node.traits

    @property
    def change(self) -> plan.Change:
        """The change that gives the node the layout's trait."""
        name, traits = self.node.name, self.node.traits
        return plan.Change(
            plan.Action.UPDATE, str(self),
            resources.NodeTraits(name, traits | {self.trait}),
            resources.Existing(resources.NodeTraits(name, traits),
                               self.node.identity))

    def __str__(self) -> str:
        if not self.can:
            return 'cannot take it: ' + '; '.join(self.reasons) + (
                f'; it has the trait {self.trait} nevertheless'
                if self.has_trait else '')
        texts = ['can take it']
        if self.node.hindrances:
            texts.append('not now: ' + ', '.join(self.node.hindrances))
        texts += [f'it lacks the trait {trait}' for trait
                  in (self.trait, names.HEALTHY)
                  if trait not in self.node.traits]
        return '; '.join(texts)


def concerned(nodes: Iterable[Node], resource_class: str | None
              ) -> list[Node]:
    """Return the nodes of a resource class, and others with traits of GPUs.

    The others have GPUs, or had some.

    :param resource_class: None for all nodes.
    """
    return [node for node in nodes
            if resource_class in (None, node.resource_class)
            or any(trait.startswith(_GPU_TRAITS) for trait in node.traits)]


def judge(node: Node, profile: baremetal_profile.NodeProfile,
          resource_class: str | None = None) -> Verdict:
    """Decide whether a node can have the layout of a profile.

    :param resource_class: that the node must have; None for any.
    """
    return Verdict(node, profile.trait,
                   tuple(_reasons(node, profile, resource_class)))


def _reasons(node, profile, resource_class):
    if resource_class not in (None, node.resource_class):
        yield ('its resource class is '
               f'{node.resource_class or "not set"}, not {resource_class}')
    for trait in sorted(profile.required - node.traits):
        yield f'it lacks the trait {trait}'
    for trait in sorted(profile.forbidden & node.traits):
        yield f'it has the trait {trait}'
    if node.found is None:
        yield node.unknown
        return
    if not layouts.suits(node.found.gpus, profile.entry):
        yield _misfit(node.found, profile.entry)
    for address, conditions in sorted(node.found.unhealthy.items()):
        yield f'GPU {address} is unhealthy: ' + ', '.join(conditions)


def _misfit(found, entry):
    """Return why the GPUs cannot have a layout."""
    if not found.gpus:
        return 'it has no GPU'
    highest = max((index for section in entry.sections
                   for index in section.devices.indices or ()), default=0)
    if highest >= len(found.gpus):
        return (f'it has no GPU {highest}, only 0 to {len(found.gpus) - 1}')
    try:
        wanted = [entry.for_gpu(index, gpu)
                  for index, gpu in enumerate(found.gpus)
                  if gpu.visible_to_nvml]
    except exception.LayoutError as error:
        return f'{error.kwargs["problem"]}: {error.kwargs["expected"]}'
    if any(section.devices.include(index, gpu) and not gpu.visible_to_nvml
           for index, gpu in enumerate(found.gpus)
           for section in entry.sections):
        return ('the MIG profiles of its GPUs are not known '
                f'({found.nvml_problem or "NVML does not list all of them"}); '
                '--board BOARD assumes them')
    if any(item is not None and item.without_mig for item in wanted):
        return 'none of the GPUs to partition supports MIG: ' + ', '.join(
            sorted({gpu.model or gpu.device_id for gpu in found.gpus}))
    return 'it has no GPU of that board'
