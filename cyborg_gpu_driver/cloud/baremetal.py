# SPDX-License-Identifier: Apache-2.0

"""Convert a device profile to a layout of a whole bare-metal node.

A server gets all GPUs of a node, so its profile describes all of them: whole,
or partitioned alike. A deploy template applies the layout, and a flavor
requests it. The last part of the module reads the templates and the nodes,
with their GPUs, from Ironic.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import re
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import os_resource_classes as orc
from keystoneauth1 import discover
from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.baremetal import node as baremetal_node
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cloud import plan
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.partition import names as profile_names
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml
from cyborg_gpu_driver.report.content import names as report_names

PRIORITY = 65
"""Priority of the deploy step. Ironic runs the steps with priorities 79 to 61
after it has written the image and before it installs the boot loader."""
_NOTHING_OF_SERVERS = (orc.VCPU, orc.MEMORY_MB, orc.DISK_GB)
"""Resource classes that a node does not have: its only resource is its class.
"""
_CUSTOM_CLASS = re.compile(r'CUSTOM_[A-Z0-9_]*', re.ASCII)
_SLICE = re.compile(r'CUSTOM_NVIDIA_(?:(?P<compute>\d{1,2})C_)?'
                    r'(?P<slices>\d{1,2})G_(?P<memory>\d{1,4})GB(?:_.*)?',
                    re.ASCII)
_ATTRIBUTES = tuple(
    frozenset(chosen) for count in range(len(profile_names.ATTRIBUTES))
    for chosen in itertools.combinations(profile_names.ATTRIBUTES, count))
_GPU_TRAITS = ('CUSTOM_GPU_', 'CUSTOM_NVIDIA_')
"""Prefixes of the traits that inspection gives to nodes with GPUs."""
MADE_BY = 'made_by'
"""Key in ``extra`` for the mark of a deploy template, which has no description
before Ironic's microversion 1.112."""
SERVICE = 'baremetal'
VERSION = '1.81'
"""The first microversion of Ironic's API with the inventory of a node. Deploy
templates (1.55) and traits (1.37) are older."""
_FIELDS = ('uuid', 'name', 'resource_class', 'traits', 'provision_state',
           'maintenance', 'retired')
_AVAILABLE = 'available'


@dataclasses.dataclass(frozen=True)
class NodeProfile:
    """A device profile for bare metal.

    :ivar entry: the layout, with the device profile's name.
    :ivar resource_class: of the nodes, as Placement writes it.
    :ivar required: traits that the node must have. For several whole GPUs,
        one of them is the trait with the number of GPUs.
    :ivar forbidden: traits that the node must not have.
    """

    entry: layout_file.Entry
    resource_class: str
    required: frozenset[str]
    forbidden: frozenset[str]

    @property
    def trait(self) -> str:
        """Trait of nodes that support the layout; names the deploy template.
        """
        return inventory.layout_trait(self.entry.name)

    @property
    def template(self) -> resources.DeployTemplate:
        """The deploy template that applies the layout to a node."""
        layout = {self.entry.name: [section.to_dict()
                                    for section in self.entry.sections]}
        return resources.DeployTemplate(self.trait, steps_text([{
            'interface': 'deploy', 'step': inventory.APPLY_LAYOUT,
            'args': {'layout': layout}, 'priority': PRIORITY}]))

    def flavor(self, sizes: resources.Flavor) -> resources.Flavor:
        """Return a flavor whose servers get a node with the layout.

        The flavor requires that the node's GPUs are healthy.

        :param sizes: a flavor with all other values.
        """
        specs = {
            **dict(sizes.extra_specs),
            f'resources:{self.resource_class}': '1',
            **{f'resources:{name}': '0' for name in _NOTHING_OF_SERVERS},
            **{f'trait:{trait}': 'forbidden' for trait in self.forbidden},
            **{f'trait:{trait}': 'required'
               for trait in {*self.required, self.trait, inventory.HEALTHY}}}
        return dataclasses.replace(sizes,
                                   extra_specs=tuple(sorted(specs.items())))


def make(profile: resources.DeviceProfile, nodes: Mapping[str, Any],
         place: schema.Place) -> NodeProfile:
    """Convert a device profile for bare metal.

    :param nodes: the nodes' ``resource_class``, and the GPUs to partition as
        an item of a layout file selects them; by default all.
    :raises DocumentError: if a node cannot have such a layout.
    """
    devices = layout_file.Devices.parse(
        {'devices': layout_yaml.ALL, **nodes}, place.below('nodes'))
    wanted: collections.Counter[str] = collections.Counter()
    required: set[str] = set()
    forbidden: set[str] = set()
    for group in profile.groups:
        wanted.update(resources.classes(group))
        needs, avoids = resources.traits(group)
        required |= needs
        forbidden |= avoids
    whole = wanted.pop(orc.PGPU, 0)
    if whole > 1 and not wanted and devices.indices is None:
        required.add(inventory.count_trait(whole))
    if inventory.HEALTHY in forbidden:
        raise place.error(
            f'{inventory.HEALTHY} is forbidden',
            'on bare metal the flavor already requires it; remove it')
    if required & forbidden:
        raise place.error(
            f'one group requires {min(required & forbidden)}, but another '
            'forbids it', 'on bare metal all groups apply to one node; keep '
            'it in one of them only')
    slices = {_slice_name(place, resource_class): wanted[resource_class]
              for resource_class in sorted(wanted)}
    return NodeProfile(
        layout_file.Entry(place.source, profile.name, _sections(
            place, whole, slices, devices)),
        class_in_placement(nodes['resource_class']),
        frozenset(required), frozenset(forbidden))


def class_in_placement(text: str) -> str:
    """Return a node's resource class as Nova's Ironic driver reports it.

    :param text: as Ironic writes it (``baremetal.gpu``), or as Placement does
        (``CUSTOM_BAREMETAL_GPU``).
    """
    if _CUSTOM_CLASS.fullmatch(text):
        found = text
    else:
        found = orc.normalize_name(text)
    if not re.search('[A-Z0-9]', found.removeprefix(orc.CUSTOM_NAMESPACE)) \
            or len(found) > report_names.CUSTOM_NAME_MAX:
        raise exception.InvalidValue(
            what='resource class', value=text,
            expected='expected the resource class of the nodes, such as '
                     'baremetal.gpu or CUSTOM_BAREMETAL_GPU')
    return found


def steps_text(steps: Any) -> str:
    """Return deploy steps in the format of a DeployTemplate."""
    return json.dumps(steps, sort_keys=True)


def _sections(place: schema.Place, whole: int, slices: Mapping[str, int],
              devices: layout_file.Devices
              ) -> tuple[layout_file.Section, ...]:
    """The sections of the layout."""
    if whole and slices and devices.indices is None:
        raise place.error(
            'whole GPUs and slices', 'on bare metal all GPUs of a node are '
            'treated alike, unless devices selects those to partition')
    if slices:
        sections = [layout_file.Section(devices, True, slices)]
        if whole and devices.indices is not None:
            others = itertools.islice(
                (index for index in itertools.count()
                 if index not in devices.indices), whole)
            sections.append(layout_file.Section(dataclasses.replace(
                devices, indices=tuple(others)), False))
    else:
        if devices.indices is not None and whole > len(devices.indices):
            raise place.error(
                f'{whole} whole GPUs', 'on bare metal devices must name at '
                f'least as many; it names {len(devices.indices)}')
        sections = [layout_file.Section(devices, False)]
    return tuple(sections)


def _slice_name(place: schema.Place, resource_class: str) -> str:
    """Return the GPU instance profile of a resource class."""
    found = _SLICE.fullmatch(resource_class)
    if found is not None:
        compute = int(found['compute']) if found['compute'] else None
        for attributes in _ATTRIBUTES:
            try:
                name = str(profile_names.ProfileName(
                    compute, int(found['slices']), int(found['memory']),
                    attributes))
            except exception.InvalidValue:
                continue
            if report_names.custom(
                    report_names.VENDOR, name) == resource_class:
                return name
    raise place.error(
        f'{resource_class} is neither a whole GPU nor a GPU instance',
        'on bare metal expected gpu: passthrough or a GPU instance profile '
        'such as 1g.10gb; bare-metal servers cannot have vGPUs')


@dataclasses.dataclass(frozen=True)
class Node:
    """A node as Ironic shows it.

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
                  in (self.trait, inventory.HEALTHY)
                  if trait not in self.node.traits]
        return '; '.join(texts)


def concerned(nodes: Iterable[Node], classes: Collection[str]) -> list[Node]:
    """Return the nodes of resource classes, and others with traits of GPUs.

    The others have GPUs, or had some.
    """
    return [node for node in nodes if node.resource_class in classes
            or any(trait.startswith(_GPU_TRAITS) for trait in node.traits)]


def judge(node: Node, profile: NodeProfile) -> Verdict:
    """Decide whether a node can have the layout of a profile."""
    return Verdict(node, profile.trait, tuple(_reasons(node, profile)))


def _reasons(node: Node, profile: NodeProfile) -> Iterator[str]:
    if node.resource_class != profile.resource_class:
        yield (f'its resource class is {node.resource_class or "not set"}, '
               f'not {profile.resource_class}')
    for trait in sorted(profile.required - node.traits):
        yield f'it lacks the trait {trait}'
    for trait in sorted(profile.forbidden & node.traits):
        yield f'it has the trait {trait}'
    if node.found is None:
        yield node.unknown
        return
    if not baremetal_node.suits(node.found.gpus, profile.entry):
        yield _misfit(node.found, profile.entry)
    for address, conditions in sorted(node.found.unhealthy.items()):
        yield f'GPU {address} is unhealthy: ' + ', '.join(conditions)


def _misfit(found: inventory.Inventory, entry: layout_file.Entry) -> str:
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
    except exception.DocumentError as error:
        return f'{error.kwargs["problem"]}: {error.kwargs["expected"]}'
    if any(section.devices.include(index, gpu) and not gpu.visible_to_nvml
           for index, gpu in enumerate(found.gpus)
           for section in entry.sections):
        return ('the MIG profiles of its GPUs are not known '
                f'({found.nvml_problem or "NVML does not list all of them"}); '
                'device-filter assumes them')
    if any(item is not None and item.without_mig for item in wanted):
        return 'none of the GPUs to partition supports MIG: ' + ', '.join(
            sorted({gpu.model or gpu.device_id for gpu in found.gpus}))
    return 'it has no GPU of that board'


def check_service(cloud: connection.Cloud) -> None:
    """Make sure that the cloud has an Ironic with all required features."""
    if not cloud.has_service(SERVICE):
        raise cloud.error('its service catalogue has no service of type '
                          f'{SERVICE} (Ironic)')
    highest = cloud.ask(SERVICE, '/')['version']['version']
    if discover.normalize_version_number(
            highest) < discover.normalize_version_number(VERSION):
        raise cloud.error(
            f'its Ironic (service type {SERVICE}) has microversions up to '
            f'{highest}, but {VERSION} is required: deploy templates need '
            '1.55, node inventories need 1.81')


def templates(cloud: connection.Cloud, name: str
              ) -> list[resources.Existing]:
    """Return the deploy template of that name, if there is one."""
    try:
        item = cloud.sdk.baremetal.get_deploy_template(name)
    except exceptions.NotFoundException:
        return []
    return [resources.Existing(
        resources.DeployTemplate(item.name, steps_text(item.steps)), item.id,
        (item.extra or {}).get(MADE_BY) == resources.MARK)]


def nodes(cloud: connection.Cloud) -> list[Node]:
    """Return all nodes, without their GPUs."""
    return [Node(
        item.id, item.name or item.id,
        item.resource_class and orc.normalize_name(item.resource_class),
        frozenset(item.traits), tuple(_hindrances(item)))
        for item in cloud.sdk.baremetal.nodes(fields=_FIELDS)]


def with_gpus(cloud: connection.Cloud, listed: Collection[Node]
              ) -> list[Node]:
    """Return the nodes with their GPUs, in order; one request for each."""
    return list(placement.at_once(
        lambda node: _inspected(cloud, node), listed))


def _inspected(cloud: connection.Cloud, node: Node) -> Node:
    try:
        sent = cloud.sdk.baremetal.get_node_inventory(
            node.identity)['plugin_data']
        if inventory.KEY not in sent:
            return dataclasses.replace(
                node, unknown='it was inspected without the collector '
                'nvidia-gpus')
        return dataclasses.replace(
            node, found=inventory.parse(sent[inventory.KEY]))
    except exceptions.NotFoundException:
        return dataclasses.replace(node, unknown='it has not been inspected')
    except exception.DocumentError as error:
        return dataclasses.replace(node, unknown=str(error))


def _hindrances(item: Any) -> Iterator[str]:
    if item.is_maintenance:
        yield 'it is in maintenance'
    if item.is_retired:
        yield 'it is retired'
    # Early versions of Ironic stored no state for an available node.
    state = item.provision_state or _AVAILABLE
    if state != _AVAILABLE:
        yield f'it is {state}'
