# SPDX-License-Identifier: Apache-2.0

"""The virtual machines of this host, as libvirt shows them to any user.

libvirt has a separate read-only socket, which any user may open unless the
host is configured otherwise (``unix_sock_ro_perms`` in libvirtd.conf and
virtqemud.conf). This module uses libvirt's Python module, which Nova needs on
each host with its libvirt driver.

Nova's libvirt driver gives the domain the UUID of the server, and puts flavor
and project into its metadata (``nova:instance``; LibvirtConfigGuestMetaNova*
in nova/virt/libvirt/config.py). A ``hostdev`` element is an assigned device
("Domain XML format" of libvirt, "Host device assignment").
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import re
import uuid
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import model

LOG = logging.getLogger(__name__)

URI = 'qemu:///system'
MODULE = 'libvirt'
TIMEOUT = 10.0
"""Seconds that libvirt may take for all virtual machines."""
_OWNER = 'libvirt'
_ACTIVE, _INACTIVE = 1, 2
"""VIR_CONNECT_LIST_DOMAINS_ACTIVE and _INACTIVE (libvirt-domain.h)."""
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


def connect() -> Any:
    """Open a read-only connection with libvirt's Python module."""
    module = importlib.import_module(MODULE)
    # Without a handler, libvirt prints each error.
    module.registerErrorHandler(lambda _context, _error: None, None)
    return module.openReadOnly(URI)


class DomainReader:
    """Reads all virtual machines, running or not."""

    def __init__(self, connect: Callable[[], Any], timeout: float = TIMEOUT):
        self._connect = connect
        self._timeout = timeout

    def read(self) -> tuple[Domain, ...]:
        """Return all virtual machines, except those that cannot be parsed."""
        try:
            texts = deadline.run(_OWNER, self._timeout, 'listAllDomains',
                                 self._texts)
        except Exception as error:
            # libvirt.libvirtError, from a module that may not be installed.
            raise exception.UsageUnknown(
                'the servers of this host are not known from libvirt: '
                f'{error}') from error
        found = []
        for text in texts:
            try:
                found.append(parse(text))
            except ValueError as error:
                LOG.debug('Skipped a domain of libvirt: %s', error)
        return tuple(found)

    def _texts(self) -> list[str]:
        """Return the XML of each domain, over a separate connection."""
        connection = self._connect()
        try:
            found = []
            for item in connection.listAllDomains(_ACTIVE | _INACTIVE):
                try:
                    found.append(item.XMLDesc(0))
                except Exception:
                    # Either the domain is gone, or the next call fails too.
                    connection.getVersion()
            return found
        finally:
            connection.close()
