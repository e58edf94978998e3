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

"""What is made in a cloud for its GPUs: device profiles, flavors, limits.

For bare metal there are deploy templates and traits of nodes. Each is a value
that says what is wanted and what there is alike. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import ClassVar

PROFILE_KEY = 'accel:device_profile'
"""The extra spec by which a flavor names its device profile."""
MARK = '[openstack gpu]'
"""Ends the description of what this library has made."""

Group = tuple[tuple[str, str], ...]
"""A group of a device profile: sorted pairs as Cyborg has them."""


class Kind(enum.Enum):
    """In the order in which they are made."""

    PROFILE = 'device profile'
    TEMPLATE = 'deploy template'
    FLAVOR = 'flavor'
    REGISTERED = 'registered limit'
    LIMIT = 'limit'
    NODE = 'node'


Key = tuple[Kind, str]


class Item:
    """What each of them is."""

    kind: ClassVar[Kind]
    fixed: ClassVar[frozenset[str]] = frozenset()
    """Fields that its service does not change in place."""
    name: str

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def needs(self) -> tuple[Key, ...]:
        """What must be there before it, and stay as long as it does."""
        return ()


@dataclasses.dataclass(frozen=True)
class DeviceProfile(Item):
    """Cyborg's; it cannot be changed, only made anew."""

    kind: ClassVar[Kind] = Kind.PROFILE
    fixed: ClassVar[frozenset[str]] = frozenset({'groups', 'description'})

    name: str
    groups: tuple[Group, ...]
    description: str = ''


@dataclasses.dataclass(frozen=True)
class Flavor(Item):
    """Nova's.

    :ivar ram: MiB.
    :ivar disk: GiB.
    :ivar extra_specs: sorted pairs, the device profile's among them.
    :ivar projects: that may use it if it is not public.
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
        """The device profile that it names."""
        return dict(self.extra_specs).get(PROFILE_KEY)

    @property
    def needs(self) -> tuple[Key, ...]:
        return () if self.profile is None else ((Kind.PROFILE, self.profile),)


@dataclasses.dataclass(frozen=True)
class RegisteredLimit(Item):
    """Keystone's: what a project may have unless a limit says otherwise.

    :ivar name: of the resource: ``class:CUSTOM_NVIDIA_1G_10GB``.
    """

    kind: ClassVar[Kind] = Kind.REGISTERED

    name: str
    default: int


@dataclasses.dataclass(frozen=True)
class Limit(Item):
    """Keystone's: what one project may have."""

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
    """Ironic's: what is done to a node whose server requires a trait.

    :ivar name: the trait's.
    :ivar steps: as JSON text with sorted keys.
    """

    kind: ClassVar[Kind] = Kind.TEMPLATE

    name: str
    steps: str


@dataclasses.dataclass(frozen=True)
class NodeTraits(Item):
    """Those of a node of Ironic's; its name, or its UUID if it has none."""

    kind: ClassVar[Kind] = Kind.NODE

    name: str
    traits: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Existing:
    """Something that a cloud has.

    :ivar identity: UUID, by which its service knows it.
    :ivar ours: whether it bears :data:`MARK`.
    :ivar users: who has it now, for people; nothing else may be made of it
        while there are any.
    """

    item: Item
    identity: str
    ours: bool = True
    users: tuple[str, ...] = ()


def group(resource_class: str, count: int = 1,
          required: frozenset[str] = frozenset(),
          forbidden: frozenset[str] = frozenset()) -> Group:
    """A group of a device profile."""
    return tuple(sorted([
        (f'resources:{resource_class}', str(count)),
        *((f'trait:{trait}', 'required') for trait in required),
        *((f'trait:{trait}', 'forbidden') for trait in forbidden)]))


def classes(found: Group) -> dict[str, int]:
    """How many of each resource class a group asks for.

    :raises ValueError: if a number is none.
    """
    return {key.partition(':')[2]: int(value) for key, value in found
            if key.startswith('resources:')}


def traits(found: Group, value: str) -> frozenset[str]:
    """Traits of a group that are ``required`` or ``forbidden``."""
    return frozenset(key.partition(':')[2] for key, said in found
                     if key.startswith('trait:') and said == value)


def describe(found: Group) -> str:
    """A group for people."""
    amounts = [f'{value}x {key.partition(":")[2]}' for key, value in found
               if key.startswith('resources:')]
    others = [f'{key.partition(":")[2]}={value}' for key, value in found
              if not key.startswith('resources:')]
    return ' '.join(amounts + others)


def describe_steps(steps: str) -> str:
    """A deploy template's steps for people."""
    return ' + '.join(
        f'{step["interface"]}.{step["step"]} '
        f'{json.dumps(step["args"], sort_keys=True)} at {step["priority"]}'
        for step in json.loads(steps))


def marked(description: str) -> str:
    """A description with the mark of what is ours."""
    return f'{description} {MARK}' if description else MARK


def unmarked(description: str | None) -> tuple[str, bool]:
    """A description without the mark, and whether it had it."""
    text = description or ''
    if text.endswith(MARK):
        return text.removesuffix(MARK).removesuffix(' '), True
    return text, False
