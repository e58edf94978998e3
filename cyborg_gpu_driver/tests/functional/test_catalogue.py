# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu`` on the released Cyborg and Placement."""

import collections
import json
import os
import re

import fixtures
from cyborg.api import app as cyborg_app

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.osc import host
from cyborg_gpu_driver.osc import profile
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.osc import running

_EMPTY_NOVA = {
    '/v2.1/servers': {'servers': []}, '/v2.1/flavors/detail': {'flavors': []},
    '/v2.1/servers/detail': {'servers': []},
    '/v2.1/os-services': {'services': [{
        'host': gpu_cloud.HOST, 'zone': 'nova', 'state': 'up',
        'status': 'enabled', 'disabled_reason': None}]}}
_EMPTY_KEYSTONE = {
    '/v3/registered_limits': {'registered_limits': []},
    '/v3/limits': {'limits': []}}
_DEFINITION = {'version': 'v1', 'profiles': [
    {'name': 'slice', 'groups': [{'gpu': '1g.10gb'}]},
    {'name': 'whole', 'description': 'all of it',
     'groups': [{'gpu': 'passthrough',
                 'required': ['CUSTOM_GPU_MEMORY_80GB']}]}]}


class OperatorCase(gpu_cloud.GpuTestCase):
    """A host with one sliced GPU and one whole GPU."""

    starts_reported = True
    overrides = {
        'gpu': {'policies': 'one, another'},
        'gpu_policy:one': {'mode': 'mig',
                           'profiles': '1g.10gb, 3g.40gb, 7g.80gb',
                           'match_address': gpu_cloud.GpuTestCase.gpu},
        'gpu_policy:another': {'mode': 'passthrough',
                               'match_address': '0000:0f:00.0'}}

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.nova = dict(_EMPTY_NOVA)
        self.applications = {
            'accelerator': cyborg_app.load_app(),
            'placement': services.forwarded(
                self.cloud.cloud.placement_service.url, 'admin'),
            'compute': services.documents(self.nova, services.NOVA),
            'identity': services.documents(_EMPTY_KEYSTONE, {
                'id': 'v3.14', 'status': 'stable'})}
        self.openstack = self.log_in()

    def log_in(self, **options):
        found = self.useFixture(services.Services(
            self.applications, **options))
        self.asked = found.cloud
        return running.Openstack(found.cloud)

    def write(self, document=_DEFINITION):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'file')
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump(document, stream)
        return path

    def sync(self, document=_DEFINITION, *arguments, **kwargs):
        """Run a sync; return each profile's action and result, by name."""
        return {row['Name']: (row['Action'], row['Result'])
                for row in self.openstack.rows(
                    profile.SyncProfile, self.write(document), '--yes',
                    *arguments, **kwargs)}

    def requests(self):
        """Count the requests to Placement by the first part of the path."""
        return collections.Counter(re.findall(
            r'"GET /(allocation_\w+|resource_\w+)', self.log.output))

    def device_profiles(self):
        return {existing.item.name: existing
                for existing in state.profiles(self.asked)}


class CatalogueTest(OperatorCase):

    def test_what_is_offered_and_taken(self):
        self.sync()
        server_ = self.cloud.bind('slice')
        rows = {row['Profile']: row
                for row in self.openstack.rows(profile.ListProfile)}
        self.assertEqual(
            {'Profile': '1g.10gb', 'Resource Class': 'CUSTOM_NVIDIA_1G_10GB',
             'Traits': ['CUSTOM_GPU_ARCH_AMPERE', 'CUSTOM_GPU_KIND_MIG',
                        'CUSTOM_GPU_MEMORY_10GB',
                        'CUSTOM_GPU_MODEL_A100_SXM4_80GB'],
             'Hosts': ['compute1'], 'GPUs': 1, 'Total': 7, 'Used': 1,
             'Reserved': 0, 'Free': 6, 'Device Profiles': ['slice'],
             'Flavors': []}, rows['1g.10gb'])
        self.assertEqual((1, 1, 0, 1, ['whole']), tuple(
            rows['passthrough'][key] for key in (
                'GPUs', 'Total', 'Used', 'Free', 'Device Profiles')))
        self.assertEqual((1, 1, 0), tuple(
            rows['7g.80gb'][key] for key in ('Total', 'Reserved', 'Free')))
        self.cloud.unbind(server_)
        rows = {row['Profile']: row['Free'] for row in self.openstack.rows(
            profile.ListProfile)}
        self.assertEqual((7, 1), (rows['1g.10gb'], rows['7g.80gb']))

    def test_a_host_costs_one_request(self):
        """The answer is what each provider answers, full ones included."""
        self.sync()
        self.cloud.bind('slice')
        self.cloud.bind('whole')
        before = self.requests()
        found = placement.read_providers(self.asked)
        after = self.requests()
        self.assertEqual({'allocation_candidates': 1, 'resource_providers': 1},
                         after - before)
        del self.applications['accelerator']
        self.log_in()
        self.assertEqual(found, placement.read_providers(self.asked))
        reserved = {item.label: (item.total, item.reserved, item.used)
                    for item in found}
        self.assertEqual((1, 1, 0), reserved['7g.80gb'])
        self.assertEqual(1, reserved['passthrough'][2])


class HostTest(OperatorCase):

    def test_gpus(self):
        for arguments in (), ('--host', 'compute1'):
            sliced, whole = self.openstack.rows(host.ListGpu, *arguments)
            self.assertEqual(
                ('compute1', self.gpu, 'A100_SXM4_80GB', 'MIG', [], True,
                 'up, enabled'), tuple(sliced[key] for key in (
                     'Host', 'GPU', 'Model', 'Mode', 'Problems', 'Usable',
                     'Service')))
            self.assertEqual((7, {'passthrough': 1}), (
                sliced['Free']['1g.10gb'], whole['Free']))
        self.assertEqual([], self.openstack.rows(
            host.ListGpu, '--host', 'compute2'))
        shown = self.openstack.rows(host.ShowGpu, 'compute1', self.gpu)
        self.assertEqual(('MIG', 3, [], 3), tuple(
            shown[key] for key in ('mode', 'numa_node', 'unhealthy'))
            + (len(shown['profiles']),))
        self.assertTrue(shown['device'])
        self.assertIn('1g.10gb: 7 of 7 free', self.openstack.run(
            host.ShowGpu, 'compute1', self.gpu.removeprefix('0000:'))[0])
        for place in ('compute2', self.gpu), ('compute1', '0000:00:00.0'):
            self.assertRaises(exception.CloudError, self.openstack.run,
                              host.ShowGpu, *place)

    def test_a_server(self):
        self.sync()
        slice_, whole = self.cloud.bind('slice'), self.cloud.bind('whole')
        before = self.requests()
        (row,) = self.openstack.rows(host.ShowServer, slice_.uuid)
        (arq,) = slice_.arqs
        self.assertEqual(
            (arq['uuid'], 'Bound', 'slice', 'compute1', self.gpu, '1g.10gb',
             'MDEV', arq['attach_handle_uuid'], 3, 'ok'),
            tuple(row[key] for key in (
                'ARQ', 'State', 'Device Profile', 'Host', 'GPU', 'Profile',
                'Handle Type', 'Handle', 'NUMA Node', 'Health')))
        self.assertEqual({'allocation_candidates': 1, 'resource_providers': 1},
                         self.requests() - before)
        self.assertEqual({row['Handle']: row['Function']},
                         {uuid: function for uuid, (function, _)
                          in self.mdevs().items()})
        (row,) = self.openstack.rows(host.ShowServer, whole.uuid)
        self.assertEqual(('passthrough', 'PCI', row['GPU'], row['GPU']),
                         tuple(row[key] for key in (
                             'Profile', 'Handle Type', 'Handle',
                             'Function')))
        self.cloud.unbind(whole)
        self.assertRaises(exception.CloudError, self.openstack.run,
                          host.ShowServer, whole.uuid)


class SyncTest(OperatorCase):

    def test_the_second_run_has_nothing_to_do(self):
        done = {'slice': ('create', 'done'), 'whole': ('create', 'done')}
        self.assertEqual(
            dict.fromkeys(done, ('create', 'planned')),
            self.sync(_DEFINITION, '--dry-run'))
        self.assertEqual({}, self.device_profiles())
        self.assertEqual(done, self.sync())
        self.assertEqual({}, self.sync())
        self.assertEqual(
            [('resources:PGPU', '1'),
             ('trait:CUSTOM_GPU_MEMORY_80GB', 'required')],
            list(self.device_profiles()['whole'].item.groups[0]))
