# SPDX-License-Identifier: Apache-2.0

"""Reads what libvirt's XML of a domain says about its server. Pure.

Nova's libvirt driver gives the domain the UUID of the server, and puts flavor
and project into its metadata (``nova:instance``; LibvirtConfigGuestMetaNova*
in nova/virt/libvirt/config.py). A ``hostdev`` element is an assigned device
("Domain XML format" of libvirt, "Host device assignment").
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from xml.parsers import expat

from cyborg_gpu_driver.host.snapshot import model

_LIMIT = 4 << 20
"""Maximum number of XML characters; a domain has about ten thousand."""
_NOVA = 'http://openstack.org/xmlns/libvirt/nova/'
"""Prefix of the namespaces of Nova's metadata; the version follows."""
_PROJECT = re.compile('[A-Za-z0-9_-]{1,64}', re.ASCII)
"""A project id of Keystone (its schema of projects)."""
_FLAVOR_MAX = 255
"""Characters of a flavor's name (Nova's schema of flavors)."""
_ADDRESS_PARTS = ('domain', 'bus', 'slot', 'function')
_DEVICES = ('domain', 'devices', 'hostdev', 'source', 'address')


@dataclasses.dataclass(frozen=True)
class Domain:
    """A virtual machine as libvirt describes it."""

    uuid: str
    """UUID of the server, if Nova created the domain."""
    project: str = ''
    """Id of the project; empty where Nova's metadata is missing."""
    flavor: str = ''
    """Name of the flavor."""
    devices: frozenset[str] = frozenset()
    """Addresses of PCI functions and UUIDs of mdevs assigned to it."""


def parse(xml: str) -> Domain:
    """Return the domain that an XML document describes."""
    if len(xml) > _LIMIT:
        raise ValueError('it is too long for the XML of a domain')
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator=' ')
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # Only a document type can declare entities, and libvirt writes none.
    parser.StartDoctypeDeclHandler = _refuse
    try:
        parser.Parse(xml, True)
    except expat.ExpatError as error:
        raise ValueError(f'it is not XML: {error}') from error
    return reader.domain()


class _Reader:
    """Collects the fields of a domain while expat reads a document."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._uuid = ''
        self._project = ''
        self._flavor = ''
        self._devices: set[str] = set()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(_plain(name))
        path = tuple(self._path)
        if path == _DEVICES:
            self._devices.update(filter(None, (_device(attributes),)))
        elif path[:3] == ('domain', 'metadata', 'nova:instance'):
            if path[3:] == ('nova:flavor',):
                self._flavor = attributes.get('name', '')[:_FLAVOR_MAX]
            elif path[3:] == ('nova:owner', 'nova:project'):
                found = attributes.get('uuid', '')
                if _PROJECT.fullmatch(found):
                    self._project = found

    def end(self, _name: str) -> None:
        self._path.pop()

    def text(self, text: str) -> None:
        if self._path == ['domain', 'uuid']:
            self._uuid += text

    def domain(self) -> Domain:
        return Domain(str(uuid.UUID(self._uuid.strip())), self._project,
                      self._flavor, frozenset(self._devices))


def _plain(name: str) -> str:
    """Return a name without its namespace; ``nova:`` stands for Nova's."""
    space, _, local = name.rpartition(' ')
    return f'nova:{local}' if space.startswith(_NOVA) else local


def _device(attributes: dict[str, str]) -> str:
    """Return the address or UUID of a host device; empty for other kinds."""
    try:
        if 'uuid' in attributes:
            return str(uuid.UUID(attributes['uuid']))
        return str(model.PciAddress(*(int(attributes[part], 16)
                                      for part in _ADDRESS_PARTS)))
    except (KeyError, ValueError):
        return ''


def _refuse(*_: object) -> None:
    raise ValueError('it has a document type')


# What decides whether a GPU's vGPUs can be live-migrated.

@dataclasses.dataclass(frozen=True)
class Migration:
    """What NVML reports about one GPU; None where it reports nothing."""

    supported: bool | None = None
    """NVML_VGPU_PGPU_VIRTUALIZATION_CAP_MIGRATION of nvml.h."""
    metadata: str | None = None
    """nvmlDeviceGetPgpuMetadataString. vGPUs can move between GPUs whose
    strings are equal, and not where they differ."""
    ecc: bool | None = None
    """Whether ECC is on. Also None for a GPU that has no ECC."""
