# SPDX-License-Identifier: Apache-2.0

"""Stand-ins for Placement, as its client sees it."""

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


class Usages:
    """A Placement that returns the usages of providers.

    :ivar used: UUIDs of the providers with allocations; None if Placement
        is unavailable.
    :ivar gone: UUIDs for which no provider exists.
    :ivar tree: the inventories of a provider below the compute node, by UUID;
        empty without a compute node.
    :ivar names: the names of some of these.
    :ivar asked: number of requests.
    """

    def __init__(self, used):
        self.used = used
        self.gone = set()
        self.tree = {}
        self.names = {}
        self.asked = 0
        self._generations = collections.Counter()

    def use(self, uuid):
        """Allocate something; the end of an allocation has no generation."""
        self.used.add(uuid)
        self._generations[uuid] += 1

    def publish(self, device):
        """Create the providers of a device."""
        for item in device.deployables:
            self.names[item.provider_uuid] = item.name
            self.tree[item.provider_uuid] = {
                item.resource_class: {'total': item.num_accelerators}}

    def get(self, url, version):
        self.asked += 1
        if self.used is None:
            raise ConnectionError('Placement is away')
        if '?name=' in url:
            return Answer(200, {'resource_providers': [
                {'uuid': 'root'}] if self.tree else []})
        if url.endswith('in_tree=root'):
            self._generations.update(dict.fromkeys(self.tree, 0))
        elif '?in_tree=' in url:
            self._generations[url.partition('=')[2]] += 0
        if '?in_tree=' in url:
            return Answer(200, {'resource_providers': [
                {'uuid': uuid, 'generation': generation,
                 'name': self.names.get(uuid, ''),
                 'root_provider_uuid': 'root'} for uuid, generation
                in self._generations.items() if uuid not in self.gone]})
        _, kind, uuid, what = url.split('/')
        if what == 'inventories':
            return Answer(200, {'inventories': self.tree[uuid]})
        assert (kind, what) == ('resource_providers', 'usages'), url
        self._generations[uuid] += 0
        if uuid in self.gone:
            return Answer(404, {})
        return Answer(200, {'usages': dict.fromkeys(
            self.tree.get(uuid, ['CUSTOM_X']), int(uuid in self.used))})

    def providers(self):
        """Return the tree of providers in this Placement."""
        return publishing.ProviderTree(lambda: self)
