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

"""Convert a device profile to a layout of a whole bare-metal node.

A server gets all GPUs of a node, so its profile describes all of them: whole,
or partitioned alike. A deploy template applies the layout, and a flavor
requests it. This module does no I/O.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import os_resource_classes as orc

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal.inventory import names
from cyborg_gpu_driver.cloud.profiles import plan
from cyborg_gpu_driver.cloud.profiles import resources
from cyborg_gpu_driver.partition import names as profile_names
from cyborg_gpu_driver.partition.layout import devices as layout_devices
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.report.content import names as report_names

PRIORITY = 65
"""Priority of the deploy step. Ironic runs the steps with priorities 79 to 61
after it has written the image and before it installs the boot loader."""
_VENDOR_DATA = 'vendor_data'
_DRIVE = frozenset({'meta_data', 'network_data', 'user_data', _VENDOR_DATA})
"""Keys of a config drive in Ironic's API (schema of the provision state).
"""
_ALL = layout_devices.Devices()
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


@dataclasses.dataclass(frozen=True)
class NodeProfile:
    """A device profile for bare metal.

    :ivar entry: the layout, with the device profile's name.
    :ivar required: traits that the node must have. For several whole GPUs,
        one of them is the trait with the number of GPUs.
    :ivar forbidden: traits that the node must not have.
    """

    entry: layout_file.Entry
    required: frozenset[str]
    forbidden: frozenset[str]

    @property
    def trait(self) -> str:
        """Trait of nodes that support the layout; names the deploy template.
        """
        return names.layout_trait(self.entry.name)

    @property
    def layout(self) -> dict[str, Any]:
        """The layout in the format of the deploy step and the first boot."""
        return {self.entry.name: [section.to_dict()
                                  for section in self.entry.sections]}

    @property
    def template(self) -> resources.DeployTemplate:
        """The deploy template that applies the layout to a node."""
        return resources.DeployTemplate(self.trait, steps_text([{
            'interface': 'deploy', 'step': names.APPLY_LAYOUT,
            'args': {'layout': self.layout}, 'priority': PRIORITY}]))

    def config_drive(self, others: Any, source: str) -> dict[str, Any]:
        """Return a config drive with the layout for the server's first boot.

        It is the JSON from which Ironic builds a config drive: ``vendor_data``
        becomes vendor_data2.json (openstack.baremetal.configdrive of
        openstacksdk).

        :param others: the other content of the config drive, as such JSON.
        :param source: the origin of ``others``, for error messages.
        :raises DocumentError: if ``others`` is no config drive, or has another
            layout.
        """
        vendor = (others.get(_VENDOR_DATA, {}) if isinstance(others, dict)
                  else None)
        if not isinstance(vendor, dict) or not _DRIVE.issuperset(others):
            raise exception.DocumentError(
                source=source, where='top level', problem='no config drive',
                expected='expected an object with no other keys than '
                + ', '.join(sorted(_DRIVE))
                + f', and an object as {_VENDOR_DATA}')
        if vendor.get(names.LAYOUT_KEY, self.layout) != self.layout:
            raise exception.DocumentError(
                source=source, where=f'{_VENDOR_DATA}.{names.LAYOUT_KEY}',
                problem='there is another layout', expected='remove it')
        return {**others, _VENDOR_DATA: {**vendor,
                                         names.LAYOUT_KEY: self.layout}}

    def flavor(self, sizes: resources.Flavor, resource_class: str
               ) -> resources.Flavor:
        """Return a flavor whose servers get a node with the layout.

        The flavor requires that the node's GPUs are healthy.

        :param sizes: a flavor with all values except the extra specs.
        :param resource_class: of the nodes, as Placement writes it.
        """
        specs = {
            f'resources:{resource_class}': '1',
            **{f'resources:{name}': '0' for name in _NOTHING_OF_SERVERS},
            **{f'trait:{trait}': 'forbidden' for trait in self.forbidden},
            **{f'trait:{trait}': 'required'
               for trait in {*self.required, self.trait, names.HEALTHY}}}
        return dataclasses.replace(sizes,
                                   extra_specs=tuple(sorted(specs.items())))


def make(profile: resources.DeviceProfile, source: str,
         devices: layout_devices.Devices = _ALL) -> NodeProfile:
    """Convert a device profile for bare metal.

    :param source: the file with the profile, for error messages.
    :param devices: the GPUs to partition; by default all, of any board.
    :raises DocumentError: if a node cannot have such a layout.
    """
    place = _Place(source, profile.name)
    wanted: collections.Counter[str] = collections.Counter()
    required: set[str] = set()
    forbidden: set[str] = set()
    for group in profile.groups:
        wanted.update(resources.classes(group))
        required |= resources.traits(group, 'required')
        forbidden |= resources.traits(group, 'forbidden')
    whole = wanted.pop(orc.PGPU, 0)
    if whole > 1 and not wanted and devices.indices is None:
        required.add(names.count_trait(whole))
    if names.HEALTHY in forbidden:
        raise place.error(
            f'{names.HEALTHY} is forbidden', 'the flavor already requires it; '
            'remove it')
    if required & forbidden:
        raise place.error(
            f'one group requires {min(required & forbidden)}, but another '
            'forbids it', 'all groups apply to one node; keep it in one of '
            'them only')
    slices = {_slice_name(place, resource_class): wanted[resource_class]
              for resource_class in sorted(wanted)}
    return NodeProfile(
        layout_file.Entry(source, profile.name, _sections(
            place, whole, slices, devices)),
        frozenset(required), frozenset(forbidden))


def choose(profiles: Sequence[resources.DeviceProfile], name: str | None,
           source: str) -> resources.DeviceProfile:
    """Return the device profile with a name; without a name, the only one.

    :raises DocumentError: if there is none. The error lists the profiles.
    """
    if not profiles:
        raise exception.DocumentError(
            source=source, where='profiles', problem='there is none',
            expected='expected a device profile')
    for profile in profiles:
        if profile.name == name or (name is None and len(profiles) == 1):
            return profile
    raise exception.DocumentError(
        source=source, where='profiles',
        problem='the file has several; choose one' if name is None
        else f'no profile {name!r}',
        expected='there are ' + ', '.join(one.name for one in profiles))


def class_in_placement(text: str) -> str:
    """Return a node's resource class as Nova's Ironic driver reports it.

    :param text: as Ironic writes it (``baremetal.gpu``), or as Placement does
        (``CUSTOM_BAREMETAL_GPU``).
    :raises InvalidValue: if it is not a resource class.
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


def checked(change: plan.Change, adopt: bool) -> plan.Change:
    """Return the change, or refuse it if it replaces one layout by another.

    Two profile names can result in the same trait (``a-b`` and ``a_b``).

    :param adopt: whether such a replacement is wanted.
    """
    if change.action is not plan.Action.UPDATE or adopt \
            or change.item.kind is not resources.Kind.TEMPLATE:
        return change
    there, wanted = (_layout(item.steps) for item in (
        change.there.item, change.item)
        if isinstance(item, resources.DeployTemplate))
    if there == wanted:
        return change
    return dataclasses.replace(
        change, action=plan.Action.REFUSE,
        text=f'it is for the layout {there}, not {wanted}: both names result '
             'in the same trait; choose another name, or --adopt it')


def _layout(steps):
    """The name of the layout that steps apply; None if they apply none."""
    for step in json.loads(steps):
        layout = step['args'].get('layout')
        if step['step'] == names.APPLY_LAYOUT and isinstance(layout, dict):
            return next(iter(layout), None)
    return None


@dataclasses.dataclass(frozen=True)
class _Place:
    source: str
    profile: str

    def error(self, problem, expected):
        return exception.DocumentError(
            source=self.source, where=f'profile {self.profile}',
            problem=problem, expected=f'on bare metal {expected}')


def _sections(place, whole, slices, devices):
    """The sections of the layout."""
    if whole and slices and devices.indices is None:
        raise place.error(
            'whole GPUs and slices', 'all GPUs of a node are treated alike, '
            'unless --devices selects those to partition')
    if slices:
        sections = [layout_file.Section(devices, True, slices)]
        if whole:
            others = itertools.islice(
                (index for index in itertools.count()
                 if index not in devices.indices), whole)
            sections.append(layout_file.Section(dataclasses.replace(
                devices, indices=tuple(others)), False))
    else:
        if devices.indices is not None and whole > len(devices.indices):
            raise place.error(
                f'{whole} whole GPUs', '--devices must name at least as many; '
                f'it names {len(devices.indices)}')
        sections = [layout_file.Section(devices, False)]
    return tuple(sections)


def _slice_name(place, resource_class):
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
        'expected gpu: passthrough or a GPU instance profile such as 1g.10gb; '
        'bare-metal servers cannot have vGPUs')
