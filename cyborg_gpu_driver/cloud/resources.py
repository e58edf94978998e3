# SPDX-License-Identifier: Apache-2.0

"""Items that a cloud needs for its GPUs: device profiles, flavors, limits.

For bare metal, these are deploy templates and traits of nodes. The same
classes describe wanted and existing items. This module does no I/O.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import ClassVar

PROFILE_KEY = 'accel:device_profile'
"""The extra spec by which a flavor names its device profile."""
MARK = '[openstack gpu]'
"""End of the description of each item that this library has created."""

Group = tuple[tuple[str, str], ...]
"""A group of a device profile: the sorted key-value pairs of Cyborg."""


class Kind(enum.Enum):
    """The kinds of items, in the order in which they are created."""

    PROFILE = 'device profile'
    TEMPLATE = 'deploy template'
    FLAVOR = 'flavor'
    REGISTERED = 'registered limit'
    LIMIT = 'limit'
    NODE = 'node'


Key = tuple[Kind, str]


class Item:
    """Base class of all items."""

    kind: ClassVar[Kind]
    fixed: ClassVar[frozenset[str]] = frozenset()
    """Fields that the service of the item cannot change in place."""
    name: str

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def needs(self) -> tuple[Key, ...]:
        """The items that must exist before this item and as long as it does.
        """
        return ()


@dataclasses.dataclass(frozen=True)
class DeviceProfile(Item):
    """A device profile of Cyborg. It cannot be changed, only created again."""

    kind: ClassVar[Kind] = Kind.PROFILE
    fixed: ClassVar[frozenset[str]] = frozenset({'groups', 'description'})

    name: str
    groups: tuple[Group, ...]
    description: str = ''


@dataclasses.dataclass(frozen=True)
class Flavor(Item):
    """A flavor of Nova.

    :ivar ram: in MiB.
    :ivar disk: in GiB.
    :ivar extra_specs: sorted pairs, including that of the device profile.
    :ivar projects: that may use the flavor if it is not public.
    """

    kind: ClassVar[Kind] = Kind.FLAVOR
    fixed: ClassVar[frozenset[str]] = frozenset(
        {'vcpus', 'ram', 'disk', 'public'})

    name: str
    vcpus: int
    ram: int
    disk: int
    public: bool
    extra_specs: tuple[tuple[str, str], ...]
    projects: frozenset[str] = frozenset()
    description: str = ''

    @property
    def profile(self) -> str | None:
        """The device profile that the flavor names."""
        return dict(self.extra_specs).get(PROFILE_KEY)

    @property
    def needs(self) -> tuple[Key, ...]:
        return () if self.profile is None else ((Kind.PROFILE, self.profile),)


@dataclasses.dataclass(frozen=True)
class RegisteredLimit(Item):
    """A registered limit of Keystone: the default for projects.

    :ivar name: of the resource, such as ``class:CUSTOM_NVIDIA_1G_10GB``.
    """

    kind: ClassVar[Kind] = Kind.REGISTERED

    name: str
    default: int


@dataclasses.dataclass(frozen=True)
class Limit(Item):
    """A limit of Keystone for one project."""

    kind: ClassVar[Kind] = Kind.LIMIT

    resource: str
    project: str
    value: int
    name: str = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, 'name',
                           f'{self.resource} of project {self.project}')

    @property
    def needs(self) -> tuple[Key, ...]:
        return ((Kind.REGISTERED, self.resource),)


@dataclasses.dataclass(frozen=True)
class DeployTemplate(Item):
    """A deploy template of Ironic, for nodes whose server requires a trait.

    :ivar name: the name of the trait.
    """

    kind: ClassVar[Kind] = Kind.TEMPLATE

    name: str
    steps: str


@dataclasses.dataclass(frozen=True)
class NodeTraits(Item):
    """The traits of an Ironic node.

    :ivar name: the name of the node, or its UUID if it has no name.
    """

    kind: ClassVar[Kind] = Kind.NODE

    name: str
    traits: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Existing:
    """An item that exists in a cloud.

    :ivar identity: its UUID in its service.
    :ivar ours: whether it has the :data:`MARK`.
    """

    item: Item
    identity: str
    ours: bool = True
    users: tuple[str, ...] = ()


def group(resource_class: str, count: int = 1,
          required: frozenset[str] = frozenset(),
          forbidden: frozenset[str] = frozenset()) -> Group:
    """Return a group of a device profile."""
    return tuple(sorted([
        (f'resources:{resource_class}', str(count)),
        *((f'trait:{trait}', 'required') for trait in required),
        *((f'trait:{trait}', 'forbidden') for trait in forbidden)]))


def classes(found: Group) -> dict[str, int]:
    """Return the amount of each resource class that a group asks for.

    :raises ValueError: if an amount is not a number.
    """
    return {key.partition(':')[2]: int(value) for key, value in found
            if key.startswith('resources:')}


def traits(found: Group) -> tuple[frozenset[str], frozenset[str]]:
    """Return the traits of a group that are required, and the forbidden."""
    required, forbidden = (
        frozenset(key.partition(':')[2] for key, said in found
                  if key.startswith('trait:') and said == value)
        for value in ('required', 'forbidden'))
    return required, forbidden


def describe(found: Group) -> str:
    """Return a group, for display."""
    amounts = [f'{value}x {key.partition(":")[2]}' for key, value in found
               if key.startswith('resources:')]
    others = [f'{key.partition(":")[2]}={value}' for key, value in found
              if not key.startswith('resources:')]
    return ' '.join(amounts + others)


def describe_steps(steps: str) -> str:
    """Return a deploy template's steps, for display."""
    return ' + '.join(
        f'{step["interface"]}.{step["step"]} '
        f'{json.dumps(step["args"], sort_keys=True)} at {step["priority"]}'
        for step in json.loads(steps))


def marked(description: str) -> str:
    """Return a description with the :data:`MARK`."""
    return f'{description} {MARK}' if description else MARK


def unmarked(description: str | None) -> tuple[str, bool]:
    """Return a description without the mark, and whether it had the mark."""
    text = description or ''
    if text.endswith(MARK):
        return text.removesuffix(MARK).removesuffix(' '), True
    return text, False
