# SPDX-License-Identifier: Apache-2.0

"""A stand-in for Placement, as its client sees it."""

import collections
import json

from cyborg_gpu_driver.report import publishing


class Answer:
    """An object with the interface of a response of requests."""

    def __init__(self, status_code, body):
        self.status_code = status_code
        self.text = json.dumps(body)

    def json(self):
        return json.loads(self.text)


class Placement:
    """A Placement with a compute node and the providers that are asked for.

    :ivar used: allocated units by UUID of the provider; None if Placement is
        unavailable.
    :ivar reserved: by UUID of the provider.
    :ivar gone: UUIDs for which no provider exists.
    :ivar tree: the inventories of a provider below the compute node, by UUID;
        empty without a compute node.
    :ivar names: the names of some of these.
    :ivar servers: project and units of each server, by provider.
    :ivar asked: number of requests by what they ask for.
    """

    def __init__(self, used=()):
        self.status = 200
        self.used = None if used is None else collections.Counter(used)
        self.reserved = {}
        self.gone = set()
        self.tree = {}
        self.names = {}
        self.servers = {}
        self.asked = collections.Counter()
        self._generations = collections.Counter()

    def use(self, uuid, units=1, reserved=0):
        """Allocate units; the end of an allocation has no generation."""
        self.used[uuid] = units
        self.reserved[uuid] = reserved
        self._generations[uuid] += 1

    def publish(self, device):
        """Create the providers of a device."""
        for item in device.deployables:
            self.names[item.provider_uuid] = item.name
            self.tree[item.provider_uuid] = {
                item.resource_class: {'total': item.num_accelerators}}

    def get(self, url, version):
        path, _, query = url.partition('?')
        parts = path.strip('/').split('/')
        what = 'tree' if query else parts[2] if len(parts) > 2 else 'server'
        self.asked[what] += 1
        if self.used is None:
            raise ConnectionError('Placement is away')
        if self.status != 200:
            return Answer(self.status, {})
        if what != 'tree' and parts[1] in self.gone:
            return Answer(404, {})
        return Answer(200, {
            'tree': self._tree, 'inventories': self._inventories,
            'usages': self._usages, 'allocations': self._allocations,
            'server': self._server}[what](query or parts[1]))

    def _tree(self, query):
        kind, _, wanted = query.partition('=')
        if kind == 'name':
            return {'resource_providers': [
                {'uuid': 'root'}] if self.tree and wanted == 'host' else []}
        self._generations.update(dict.fromkeys(
            self.tree if wanted == 'root' else [wanted], 0))
        return {'resource_providers': [
            {'uuid': uuid, 'generation': generation,
             'name': self.names.get(uuid, ''), 'root_provider_uuid': 'root'}
            for uuid, generation in self._generations.items()
            if uuid not in self.gone]}

    def _inventories(self, uuid):
        return {'inventories': self.tree.get(uuid),
                'reserved': self.reserved.get(uuid, 0)}

    def _usages(self, uuid):
        self._generations[uuid] += 0
        return {'usages': dict.fromkeys(
            self.tree.get(uuid, ['CUSTOM_X']), self.used[uuid])}

    def _allocations(self, uuid):
        return {'allocations': {
            server: {'resources': {'CUSTOM_X': units}} for server,
            (_project, units) in self.servers.get(uuid, {}).items()}}

    def _server(self, wanted):
        return {'allocations': {}, 'project_id': next(
            project for found in self.servers.values()
            for server, (project, _units) in found.items()
            if server == wanted)}

    def providers(self):
        """Return the tree of providers in this Placement."""
        return publishing.ProviderTree(lambda: self)
