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
from xml.etree import ElementTree

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


class _Tree(ElementTree.TreeBuilder):
    """Refuses what can declare entities; libvirt writes no such thing."""

    def doctype(self, name: str, pubid: str, system: str) -> None:
        raise ValueError('it has a document type')


def parse(xml: str) -> Domain:
    """Return the domain that an XML document describes."""
    if len(xml) > _LIMIT:
        raise ValueError('it is too long for the XML of a domain')
    try:
        root = ElementTree.fromstring(
            xml, ElementTree.XMLParser(target=_Tree()))
    except ElementTree.ParseError as error:
        raise ValueError(f'it is not XML: {error}') from error
    flavor = project = ''
    for instance in root.iterfind('metadata/*'):
        space, _, name = instance.tag.rpartition('}')
        if name != 'instance' or not space.startswith('{' + _NOVA):
            continue
        for found in instance.iterfind('{*}flavor'):
            flavor = found.get('name', '')[:_FLAVOR_MAX]
        for found in instance.iterfind('{*}owner/{*}project'):
            project = found.get('uuid', '')
    return Domain(
        str(uuid.UUID(root.findtext('uuid', '').strip())),
        project if _PROJECT.fullmatch(project) else '', flavor,
        frozenset(filter(None, (
            _device(found.attrib) for found
            in root.iterfind('devices/hostdev/source/address')))))


def _device(attributes: dict[str, str]) -> str:
    """Return the address or UUID of a host device; empty for other kinds."""
    try:
        if 'uuid' in attributes:
            return str(uuid.UUID(attributes['uuid']))
        return str(model.PciAddress(*(int(attributes[part], 16)
                                      for part in _ADDRESS_PARTS)))
    except (KeyError, ValueError):
        return ''
