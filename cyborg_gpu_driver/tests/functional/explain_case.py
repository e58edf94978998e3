# SPDX-License-Identifier: Apache-2.0
"""A cloud with one sliced GPU, and all services ``openstack gpu`` asks."""

from __future__ import annotations

import collections
import json
import re

import fixtures
from cyborg.api import app as cyborg_app

from cyborg_gpu_driver.osc import explain
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.unit.cloud import keystone
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.osc import running
from demo_lib import nova_part

SLICE = 'CUSTOM_NVIDIA_1G_10GB'
THIRD = 'CUSTOM_NVIDIA_3G_40GB'


class NovaOfOneHost:
    """Nova's API for one compute node, as JSON; servers come and go.

    :param root: UUID of the compute node's provider.
    """

    def __init__(self, root):
        self.flavors, self.servers = [], {}
        self.service = {
            'host': gpu_cloud.HOST, 'zone': 'nova', 'status': 'enabled',
            'state': 'up', 'disabled_reason': None}
        self.hypervisors = [{
            'id': root, 'hypervisor_hostname': gpu_cloud.HOST,
            'service': {'host': gpu_cloud.HOST}}]
        self.migrations = []

    def __call__(self, environ, start_response):
        answers = {
            '/v2.1/os-services': {'services': [self.service]},
            '/v2.1/os-hypervisors/detail': {'hypervisors': self.hypervisors},
            '/v2.1/flavors/detail': {'flavors': self.flavors},
            '/v2.1/servers': {'servers': list(self.servers.values())},
            '/v2.1/servers/detail': {
                'servers': list(self.servers.values())},
            '/v2.1/os-migrations': {'migrations': self.migrations}}
        answers.update((f'/v2.1/servers/{uuid}', {'server': server})
                       for uuid, server in self.servers.items())
        return services.documents(answers, services.NOVA)(
            environ, start_response)

    def add(self, server, name, host=gpu_cloud.HOST):
        """Show a server whose accelerators are bound already."""
        self.servers[server] = {
            'id': server, 'name': name, 'status': 'ACTIVE',
            'metadata': {}, 'OS-EXT-STS:task_state': None,
            'tenant_id': keystone.PROJECT,
            'OS-EXT-SRV-ATTR:hypervisor_hostname': host, 'flavor': {
                'original_name': 'small', 'vcpus': 1, 'ram': 512, 'disk': 0,
                'ephemeral': 0, 'swap': 0, 'extra_specs': {}}}

    def flavor(self, name, **extra_specs):
        self.flavors.append({
            'id': name, 'name': name, 'vcpus': 1, 'ram': 512, 'disk': 0,
            'OS-FLV-EXT-DATA:ephemeral': 0, 'swap': '',
            'extra_specs': {key.replace('__', ':'): value
                            for key, value in extra_specs.items()}})


class NovaThatShelves(NovaOfOneHost):
    """Nova's API whose servers can be shelved and unshelved.

    :param cloud: the cloud that binds the servers' accelerators.
    """

    def __init__(self, cloud):
        super().__init__(cloud.cloud.root_provider)
        self._cloud = cloud
        self._bound = {}

    def boot(self, profile, name, **metadata):
        server = self._cloud.bind(profile)
        self.add(server.uuid, name)
        self.servers[server.uuid].update({
            'metadata': metadata, 'OS-EXT-STS:task_state': None,
            'OS-EXT-SRV-ATTR:host': gpu_cloud.HOST})
        self._bound[server.uuid] = profile, server
        return server

    def __call__(self, environ, start_response):
        if environ['REQUEST_METHOD'] != 'POST':
            return super().__call__(environ, start_response)
        (action,) = json.loads(environ['wsgi.input'].read(
            int(environ['CONTENT_LENGTH'])))
        uuid = environ['PATH_INFO'].split('/')[3]
        profile, server = self._bound[uuid]
        facts = {'status': 'ACTIVE', 'OS-EXT-SRV-ATTR:host': gpu_cloud.HOST}
        if action in ('shelve', 'shelveOffload'):
            self._cloud.unbind(server)
            facts = {'status': 'SHELVED_OFFLOADED',
                     'OS-EXT-SRV-ATTR:host': None}
        else:
            try:
                self._bound[uuid] = profile, self._cloud.bind(
                    profile, server=uuid)
            except nova_part.NoCandidates:
                facts = {}
        self.servers[uuid].update(facts)
        start_response('202 Accepted', [])
        return [b'']


class ExplainCase(gpu_cloud.GpuTestCase):
    """A cloud that openstacksdk logs in to, with all services it asks."""

    starts_reported = True
    overrides = {'gpu': {'policies': 'slices'},
                 'gpu_policy:slices': {
                     'mode': 'mig', 'match_address': '0000:07:00.0',
                     'profiles': '1g.10gb,3g.40gb,7g.80gb'}}
    roles = ('admin',)

    def setUp(self):
        super().setUp()
        self.compute = NovaOfOneHost(self.cloud.cloud.root_provider)
        self.services = self.useFixture(services.Services({
            'accelerator': cyborg_app.load_app(),
            'placement': services.forwarded(
                self.cloud.placement.url, 'admin'),
            'compute': self.compute}, self.roles))
        self.openstack = running.Openstack(self.services.cloud)

    def asked(self, *arguments, code=0):
        """Return how often a command asks Placement, by subject."""
        with fixtures.FakeLogger() as log:
            self.openstack.run(*arguments, code=code)
        found = re.findall(r'"GET /([a-z_]+)(?:/[0-9a-f-]{36}/([a-z]+))?',
                           log.output)
        return dict(collections.Counter(
            part or path for path, part in found
            if path in ('allocation_candidates', 'resource_providers')))

    def boot(self, device_profile, name):
        """Create a server that Nova shows."""
        server = self.cloud.bind(device_profile)
        self.compute.add(server.uuid, name)
        return server

    def explain(self, *arguments, code=1):
        return self.openstack.rows(explain.ExplainRequest, *arguments,
                                   code=code)

    def reasons(self, *arguments):
        """Return the code and text of each missing item in the answer."""
        found = self.explain(*arguments)
        every = list(found['missing'])
        for host in found['hosts']:
            every += host['missing']
            for candidate in host['candidates']:
                every += candidate['missing']
        return {item['code']: item['what'] for item in every}
