# SPDX-License-Identifier: Apache-2.0
"""What ``openstack gpu explain`` requests from Nova and Keystone, and shows.
"""

import urllib.parse

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.osc import explain
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.cloud.explain import explain_clouds as clouds
from cyborg_gpu_driver.tests.unit.osc import running

_ROOT = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11'
_CHILD = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a12'
_SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a13'
_PROJECT = 'c3a2b1d0e4f54a7b8c9d0e1f2a3b4c5d'
_USUAL = {'reserved': 0, 'min_unit': 1, 'max_unit': 64, 'step_size': 1,
          'allocation_ratio': 1.0}


def _provider(uuid, name, parent=None):
    return {'uuid': uuid, 'name': name, 'root_provider_uuid': _ROOT,
            'parent_provider_uuid': parent}


class World:
    """A compute node with one GPU, as the APIs describe it."""

    def __init__(self):
        self.flavor = {
            'id': 'f1', 'name': 'small', 'vcpus': 2, 'ram': 512, 'disk': 1,
            'OS-FLV-EXT-DATA:ephemeral': 0, 'swap': 1025,
            'os-flavor-access:is_public': False,
            'OS-FLV-DISABLED:disabled': False,
            'extra_specs': {'accel:device_profile': 'gpus'}}
        self.server = 'trainer'
        self.fault = {'message': 'No valid host was found. '}
        self.registered, self.limits, self.usages = [], [], {}
        self.inventory = dict(_USUAL, total=4)
        self.traits = ['OWNER_CYBORG']
        self.requests = []

    def applications(self):
        return {'compute': services.documents(self.compute(), services.NOVA),
                'identity': services.documents(
                    self.identity(), services.KEYSTONE),
                'placement': services.documents(self.placement()),
                'accelerator': services.documents(self.cyborg())}

    def compute(self):
        server = {
            'id': _SERVER, 'name': self.server, 'status': 'ERROR',
            'metadata': {}, 'OS-EXT-STS:task_state': None,
            'tenant_id': _PROJECT, 'fault': self.fault,
            'OS-EXT-SRV-ATTR:hypervisor_hostname': None,
            'OS-EXT-AZ:availability_zone': '', 'flavor': {
                **{key: self.flavor[key] for key in (
                    'vcpus', 'ram', 'disk', 'swap', 'extra_specs')},
                'original_name': 'small', 'ephemeral': 0}}
        return {
            '/v2.1/flavors/f1': {'flavor': self.flavor},
            '/v2.1/flavors/detail': {'flavors': [self.flavor]},
            '/v2.1/flavors/f1/os-flavor-access': {'flavor_access': []},
            '/v2.1/servers': {'servers': [server]},
            '/v2.1/servers/detail': {'servers': [server]},
            f'/v2.1/servers/{_SERVER}': {'server': server},
            '/v2.1/os-services': {'services': [{
                'host': 'gpu1.example.org', 'zone': 'nova', 'state': 'up',
                'status': 'enabled', 'disabled_reason': None}]},
            '/v2.1/os-hypervisors/detail': {'hypervisors': [{
                'id': _ROOT, 'hypervisor_hostname': 'compute1',
                'service': {'host': 'gpu1.example.org'}}]}}

    def identity(self):
        return {
            '/v3/projects': lambda query: {'projects': [
                {'id': _PROJECT, 'name': 'physics'}]
                if query in ('', 'name=physics') else []},
            '/v3/registered_limits': {'registered_limits': self.registered},
            '/v3/limits': {'limits': self.limits}}

    def placement(self):
        root = _provider(_ROOT, 'compute1')
        child = _provider(
            _CHILD, f'compute1_gpu_{clouds.GPU}_1g.10gb', _ROOT)

        def listed(query):
            asked = urllib.parse.parse_qs(query)
            (trait,) = asked.get('required', [None])
            found = {None: [root, child], 'COMPUTE_ACCELERATORS': [root],
                     'OWNER_CYBORG': [child]}.get(trait, [])
            if 'name' in asked:
                found = [item for item in found
                         if item['name'] in asked['name']]
            return {'resource_providers': found}

        answers = {
            '/': services.PLACEMENT, '/resource_providers': listed,
            '/resource_classes': {'resource_classes': [
                {'name': clouds.SLICE}]},
            '/usages': {'usages': self.usages},
            '/allocation_candidates': {
                'allocation_requests': [{'allocations': {
                    _ROOT: {}, _CHILD: {}}}],
                'provider_summaries': self.summaries()}}
        for uuid, inventories, traits in (
                (_ROOT, {name: dict(_USUAL, total=9999, max_unit=9999)
                         for name in ('VCPU', 'MEMORY_MB', 'DISK_GB')},
                 ['COMPUTE_ACCELERATORS']),
                (_CHILD, {clouds.SLICE: self.inventory}, self.traits)):
            answers.update({
                f'/resource_providers/{uuid}': (
                    root if uuid == _ROOT else child),
                f'/resource_providers/{uuid}/inventories': {
                    'inventories': inventories},
                f'/resource_providers/{uuid}/usages': {
                    'usages': dict.fromkeys(inventories, 0)},
                f'/resource_providers/{uuid}/allocations': {
                    'allocations': {}},
                f'/resource_providers/{uuid}/traits': {'traits': traits}})
        return answers

    def summaries(self):
        """The summaries of both providers in Placement's candidates."""
        free = self.inventory.get('total', 0) - self.inventory.get(
            'reserved', 0)
        return {
            _ROOT: {'root_provider_uuid': _ROOT, 'resources': {
                name: {'capacity': 9999, 'used': 0}
                for name in ('VCPU', 'MEMORY_MB', 'DISK_GB')},
                'traits': ['COMPUTE_ACCELERATORS']},
            _CHILD: {'root_provider_uuid': _ROOT, 'traits': self.traits,
                     'resources': {clouds.SLICE: {
                         'capacity': free, 'used': 0}}}}

    def cyborg(self):
        return {
            '/v2/device_profiles': {'device_profiles': [{
                'uuid': 'p', 'name': 'gpus', 'description': None, 'groups': [
                    {f'resources:{clouds.SLICE}': '1'}]}]},
            '/v2/devices': {'devices': [{
                'uuid': 'd', 'hostname': 'compute1', 'model': 'A100',
                'status': 'enabled'}]},
            '/v2/deployables': {'deployables': [{
                'rp_uuid': _CHILD, 'num_accelerators': 4}]},
            '/v2/accelerator_requests': {'arqs': self.requests}}


class ExplainTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.world = World()

    def openstack(self):
        return running.Openstack(self.useFixture(
            services.Services(self.world.applications())).cloud)

    def codes(self, *arguments, code=1):
        found = self.openstack().rows(explain.ExplainRequest, *arguments,
                                      code=code)
        said = found['missing'] + [item for host in found['hosts']
                                   for item in host['missing']]
        return {item['code']: item['what'] for item in said}

    def test_a_server_and_its_failure(self):
        for name in ('trainer', _SERVER):
            self.assertEqual({'NO_VALID_HOST'}, set(self.codes(
                '--server', name, code=0)))

    def test_hosts_beyond_the_candidates_that_placement_lists(self):
        answers = self.world.placement()
        of_host = answers['/allocation_candidates']

        def candidates(query):
            if 'in_tree' in query:
                return of_host
            return {'allocation_requests': 1000 * [{'allocations': {'x': {}}}],
                    'provider_summaries': {
                        'x': {'root_provider_uuid': 'x'}}}

        answers['/allocation_candidates'] = candidates
        self.world.placement = lambda: answers
        self.codes('--device-profile', 'gpus', code=0)
        answers['/allocation_candidates'] = {
            **of_host, 'allocation_requests': []}
        self.codes('--device-profile', 'gpus', code=1)

    def test_names_of_nothing(self):
        for arguments, words in (
                (('--flavor', 'smal'), 'did you mean small'),
                (('--device-profile', 'gpus', '--host', 'compute2'),
                 'did you mean compute1'),
                (('--server', 'x'), 'No Server found for x')):
            self.assertIn(words, str(self.assertRaises(
                exception.GpuDriverError, self.openstack().run,
                explain.ExplainRequest, *arguments)))
