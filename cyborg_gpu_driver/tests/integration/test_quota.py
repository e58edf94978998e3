# SPDX-License-Identifier: Apache-2.0


import json

from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.osc import host
from cyborg_gpu_driver.osc import profile
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.unit.osc import running

_CLASS = 'CUSTOM_NVIDIA_1G_10GB'
_GPU = '1g.10gb'


class QuotaTest(base.TestCase):
    """Nova enforces quotas for device profiles."""

    def setUp(self):
        super().setUp()
        self.openstack = running.Openstack(
            connection.Cloud(self.admin, 'admin'))
        self.addCleanup(self.sync)

    def sync(self, *limits, code=0):
        return [(row['Action'], row['Result']) for row in self.openstack.rows(
            profile.SyncProfile, '-', '--yes', '--prune', code=code,
            answer=json.dumps({'version': 'v1', 'limits': limits}))]

    def show(self, project='project1'):
        (row,) = [row for row in self.openstack.rows(
            profile.ShowQuota, project) if row['Resource Class'] == _CLASS]
        return row['Limit'], row['Used'], row['Free'], row['Source']

    def assert_tenants_see(self, server, flavor):
        """Check what a user of the server's project is told."""
        user = running.Openstack(connection.Cloud(self.user1, 'user1'))
        self.assertEqual([('project1', 1, 1)], [
            (row['Project'], row['Limit'], row['Used'])
            for row in user.rows(profile.ShowQuota)
            if row['Resource Class'] == _CLASS])
        (row,) = user.rows(host.ShowServer, server.name)
        self.assertEqual(('Bound', None), (row['State'], row['Profile']))
        self.assertIn(flavor.name, [
            row['Name'] for row in user.rows(profile.ListFlavor)])
        refusal = str(self.assertRaises(
            exception.CloudError, user.run, host.ListGpu))
        self.assertIn('role admin', refusal)
        self.assertNotIn('http', refusal)

    def test_nova_refuses_a_server_over_the_limit(self):
        flavor = self.flavor_of(_CLASS)
        limit = {'gpu': _GPU, 'default': 0, 'projects': {'project1': 1}}
        self.assertEqual(2 * [('create', 'done')], self.sync(limit))
        self.assertEqual([], self.sync(limit))
        server = self.boot(flavor)
        self.assertEqual((1, 1, 0, 'project'), self.show())
        self.assertEqual((0, 0, 0, 'default'), self.show('project2'))
        self.assert_tenants_see(server, flavor)
        refused = self.assertRaises(exceptions.ForbiddenException,
                                    self.create, flavor)
        self.assertIn(f'class:{_CLASS}', str(refused))
        self.assertEqual(
            {(None, 0, None), ('project1', 1, 1)},
            {(row['Project'], row['Limit'], row['Used']) for row
             in self.openstack.rows(profile.ShowQuota)
             if row['Resource Class'] == _CLASS})
        self.delete(server)
        self.assertEqual((1, 0, 1, 'project'), self.show())

        # Keystone changes the default only while no project has a limit.
        self.assertEqual([('refuse', '')],
                         self.sync({**limit, 'default': 2}, code=1))
        self.assertEqual([('delete', 'done')],
                         self.sync({'gpu': _GPU, 'default': 0}))
        self.assertEqual([('update', 'done'), ('create', 'done')],
                         self.sync({**limit, 'default': 2}))
        self.assertEqual((1, 0, 1, 'project'), self.show())
        self.assertEqual(2 * [('delete', 'done')], self.sync())
