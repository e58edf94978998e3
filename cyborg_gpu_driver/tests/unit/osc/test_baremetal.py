# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu profile sync`` for bare metal, with Ironic's answers."""

import json
import os

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.osc import profile
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.osc import running

_PROFILE = {'name': 'slice', 'groups': [{'gpu': '1g.10gb'}],
            'nodes': {'resource_class': 'gpu'}}
_NODE = {'resource_class': 'gpu', 'traits': [], 'maintenance': False,
         'retired': False, 'provision_state': 'available'}
_NODES = [{'uuid': 'one', 'name': None, **_NODE},
          {'uuid': 'two', 'name': 'second', **_NODE, 'maintenance': True,
           'retired': True, 'provision_state': 'clean failed'},
          {'uuid': 'three', 'name': 'third', **_NODE,
           'provision_state': None}]


def ironic(answers, highest='1.81'):
    """A fake Ironic.

    :param answers: documents by path.
    :param highest: the newest microversion that it supports.
    """
    def answer(environ, start_response):
        version = {'id': 'v1', 'status': 'CURRENT', 'min_version': '1.1',
                   'version': highest, 'links': [{
                       'rel': 'self',
                       'href': f'http://{environ["HTTP_HOST"]}/v1/'}]}
        return services.documents({
            '/': {'versions': [version], 'default_version': version},
            '/v1/': {'id': 'v1', 'version': version},
            **answers})(environ, start_response)
    return answer


class CreateTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.answers = {'/v1/nodes': self.page}
        self.highest = '1.81'
        self.write(_PROFILE)

    def write(self, *profiles):
        self.path = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'gpus.yaml')
        with open(self.path, 'w', encoding='utf-8') as stream:
            json.dump({'version': 'v1', 'profiles': profiles}, stream)

    def page(self, query):
        """A page of the node list, with one node."""
        after = {f'marker={node["uuid"]}': number for number, node
                 in enumerate(_NODES, 1)}
        start = next((number for text, number in after.items()
                      if text in query), 0)
        return {'nodes': _NODES[start:start + 1],
                **({'next': f'/v1/nodes?marker={_NODES[start]["uuid"]}'}
                   if start + 1 < len(_NODES) else {})}

    def ironic(self, environ, start_response):
        return ironic(self.answers, self.highest)(environ, start_response)

    def create(self, *arguments, **kwargs):
        openstack = running.Openstack(self.useFixture(services.Services(
            {'baremetal': self.ironic})).cloud)
        return openstack.run(profile.SyncProfile, self.path, *arguments,
                             **kwargs)

    def refusal(self):
        return str(self.assertRaises(exception.CloudError, self.create))

    def test_what_the_nodes_are(self):
        self.answers.update({
            '/v1/nodes/two/inventory': {'inventory': {}, 'plugin_data': {}},
            '/v1/nodes/three/inventory': {
                'inventory': {}, 'plugin_data': {
                    'nvidia_gpus': {'version': 2}}}})
        output, errors = self.create('--dry-run', '-f', 'json')
        template, *nodes = json.loads(output)
        self.assertEqual(
            ('create', 'CUSTOM_GPU_LAYOUT_SLICE', 'planned'),
            (template['Action'], template['Name'], template['Result']))
        self.assertEqual(
            ['one', 'second', 'third'], [row['Name'] for row in nodes])
        for row, text in zip(nodes, (
                'it has not been inspected',
                'it was inspected without the collector nvidia-gpus',
                'ramdisk: inventory.version: found 2; expected 1: '),
                strict=True):
            self.assertIn(f'cannot take it: {text}', row['Change'])
        self.assertIn('Warning: no node supports slice', errors)

    def test_what_hinders_them(self):
        self.write({**_PROFILE, 'groups': [{'gpu': 'passthrough'}]})
        gpu = model.Gpu(
            model.PciAddress(0, 0x1b, 0, 0), '10de', '2330', '0302')
        found = {'inventory': {}, 'plugin_data': {
            'nvidia_gpus': inventory.to_dict(model.Host((gpu,)), {})}}
        self.answers.update({f'/v1/nodes/{node["uuid"]}/inventory': found
                             for node in _NODES})
        rows = json.loads(self.create('--dry-run', '-f', 'json')[0])
        self.assertEqual([('create', 'planned')] + 3 * [('update', 'planned')],
                         [(row['Action'], row['Result']) for row in rows])
        self.assertEqual(
            ['can take it;', 'can take it; not now: it is in maintenance, '
             'it is retired, it is clean failed;', 'can take it;'],
            [row['Change'].partition(' it lacks')[0] for row in rows[1:]])

    def test_an_old_ironic(self):
        for self.highest in ('1.80', '1.9'):
            self.assertIn(
                f'(service type baremetal) has microversions up to '
                f'{self.highest}, but 1.81 is required', self.refusal())

    def test_no_ironic(self):
        openstack = running.Openstack(self.useFixture(services.Services(
            {'compute': services.documents({}, services.NOVA)})).cloud)
        error = self.assertRaises(
            exception.CloudError, openstack.run,
            profile.SyncProfile, self.path)
        self.assertIn('has no service of type baremetal', str(error))
