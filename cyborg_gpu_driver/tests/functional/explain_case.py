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
"""A cloud with one GPU in slices, and all whom ``openstack gpu`` asks."""

from __future__ import annotations

from cyborg.api import app as cyborg_app

from cyborg_gpu_driver.osc import explain
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.unit.cloud import keystone
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.osc import running

SLICE = 'CUSTOM_NVIDIA_1G_10GB'
THIRD = 'CUSTOM_NVIDIA_3G_40GB'


class NovaOfOneHost:
    """Nova's API over the compute node, as JSON; servers come and go.

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
            '/v2.1/os-aggregates': {'aggregates': []},
            '/v2.1/flavors/detail': {'flavors': self.flavors},
            '/v2.1/servers': {'servers': list(self.servers.values())},
            '/v2.1/os-migrations': {'migrations': self.migrations}}
        answers.update((f'/v2.1/servers/{uuid}', {'server': server})
                       for uuid, server in self.servers.items())
        return services.documents(answers, services.NOVA)(
            environ, start_response)

    def add(self, server, name, host=gpu_cloud.HOST):
        """Show a server that has been given what it is to have."""
        self.servers[server] = {
            'id': server, 'name': name, 'status': 'ACTIVE',
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


class ExplainCase(gpu_cloud.GpuTestCase):
    """A cloud that openstacksdk logs in to, with all that is asked."""

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

    def boot(self, device_profile, name):
        """A server that Nova shows."""
        server = self.cloud.bind(device_profile)
        self.compute.add(server.uuid, name)
        return server

    def explain(self, *arguments, code=1):
        return self.openstack.rows(explain.ExplainRequest, *arguments,
                                   code=code)

    def reasons(self, *arguments):
        """Codes of all that is said, and their texts."""
        found = self.explain(*arguments)
        every = list(found['missing'])
        for host in found['hosts']:
            every += host['missing']
            for candidate in host['candidates']:
                every += candidate['missing']
        return {item['code']: item['what'] for item in every}
