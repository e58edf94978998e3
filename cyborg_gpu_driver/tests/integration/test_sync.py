# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu profile sync`` on the real Nova, Cyborg and Keystone."""

from __future__ import annotations

import copy
import json
import os

import fixtures

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.osc import host
from cyborg_gpu_driver.osc import profile
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.unit.osc import running

_DEFINITION = {
    'version': 'v1',
    'profiles': [
        {'name': 'sync-slice', 'groups': [{'gpu': '1g.10gb'}]},
        {'name': 'sync-pair', 'description': 'two of one GPU', 'groups': [
            {'gpu': '2g.20gb', 'count': 2, 'together': True}]}],
    'flavors': [
        {'name': 'sync.slice', 'profile': 'sync-slice', 'vcpus': 1,
         'ram': 64, 'disk': 1, 'projects': ['project1'],
         'extra_specs': {'quota:cpu_shares': '100'}},
        {'name': 'sync.pair', 'profile': 'sync-pair', 'vcpus': 1, 'ram': 64,
         'disk': 1}],
    'limits': [{'gpu': '1g.10gb', 'default': 100,
                'projects': {'project1': 8}}]}
_NAMES = {'sync-slice', 'sync-pair', 'sync.slice', 'sync.pair',
          'class:CUSTOM_NVIDIA_1G_10GB'}
_NOTHING = {'version': 'v1'}


class SyncTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.openstack = running.Openstack(
            connection.Cloud(self.admin, 'admin'))
        self.addCleanup(self.sync, _NOTHING, '--prune')

    def sync(self, document, *arguments, code=0):
        """Sync a document; return each action and result by name.

        The names are without the UUIDs of projects.
        """
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'file')
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump(document, stream)
        return {row['Name'].partition(' of ')[0]
                + ('' if row['Kind'] != 'limit' else ' limit'):
                (row['Action'], row['Result'])
                for row in self.openstack.rows(
                    profile.SyncProfile, path, '--yes', *arguments, code=code)}

    def named(self, name):
        """The flavor with a name, and with its extra specs."""
        return self.admin.compute.find_flavor(name, get_extra_specs=True,
                                              ignore_missing=False)

    def changed(self, place, value):
        """The definition with another value at one place."""
        document = copy.deepcopy(_DEFINITION)
        container = document
        for key in place[:-1]:
            container = container[key]
        container[place[-1]] = value
        return document

    def test_a_file_is_made_so_and_undone(self):
        done = self.sync(_DEFINITION)
        self.assertEqual(
            dict.fromkeys((*_NAMES, 'class:CUSTOM_NVIDIA_1G_10GB limit'),
                          ('create', 'done')), done)
        self.assertEqual({}, self.sync(_DEFINITION))
        flavor = self.named('sync.slice')
        self.assertEqual(
            {':category': 'vgpu', 'accel:device_profile': 'sync-slice',
             'quota:cpu_shares': '100'}, flavor.extra_specs)
        self.assertEqual('1 x MIG slice 1g.10gb [openstack gpu]',
                         flavor.description)
        self.assertFalse(flavor.is_public)
        project = self.admin.identity.find_project('project1').id
        self.assertEqual([project], [
            access['tenant_id'] for access
            in self.admin.compute.get_flavor_access(flavor)])
        (row,) = [row for row in self.openstack.rows(profile.ListProfile)
                  if row['Profile'] == '1g.10gb']
        self.assertEqual((['sync-slice'], ['sync.slice']),
                         (row['Device Profiles'], row['Flavors']))
        self.assertEqual(
            dict.fromkeys(done, ('delete', 'done')),
            self.sync(_NOTHING, '--prune'))
        self.assertEqual({}, self.sync(_NOTHING, '--prune'))
        cloud = connection.Cloud(self.admin, 'admin')
        self.assertEqual(set(), _NAMES & {
            existing.item.name for existing in (
                *state.profiles(cloud), *state.flavors(cloud),
                *state.limits(cloud))})

    @scope.only_in_all
    def test_what_can_be_changed_is_changed_in_place(self):
        self.sync(_DEFINITION)
        before = self.named('sync.slice').id
        document = self.changed(('flavors', 0, 'extra_specs'),
                                {'hw:cpu_policy': 'shared'})
        document['flavors'][0]['projects'] = ['project1', 'project2']
        document['flavors'][0]['description'] = 'a slice'
        document['limits'][0]['projects'] = {'project1': 9}
        self.assertEqual(
            {'sync.slice': ('update', 'done'),
             'class:CUSTOM_NVIDIA_1G_10GB limit': ('update', 'done')},
            self.sync(document))
        flavor = self.named('sync.slice')
        self.assertEqual(
            (before, {':category': 'vgpu',
                      'accel:device_profile': 'sync-slice',
                      'hw:cpu_policy': 'shared'}, 2),
            (flavor.id, flavor.extra_specs,
             len(list(self.admin.compute.get_flavor_access(flavor)))))
        self.assertEqual({}, self.sync(document))

    @scope.only_in_all
    def test_what_a_server_has_stays(self):
        self.sync(_DEFINITION)
        server = self.boot(self.named('sync.slice'))
        (row,) = self.openstack.rows(host.ShowServer, server.name)
        (arq,) = self.arqs(server)
        self.assertEqual(
            (arq['uuid'], arq['hostname'], '1g.10gb',
             arq['attach_handle_uuid']),
            (row['ARQ'], row['Host'], row['Profile'], row['Handle']))
        other = self.changed(('profiles', 0, 'groups', 0, 'gpu'), '3g.40gb')
        bigger = self.changed(('flavors', 0, 'vcpus'), 2)
        # The description of a flavor names what its device profile gives.
        self.assertEqual({'sync-slice': ('refuse', ''),
                          'sync.slice': ('update', 'not done')},
                         self.sync(other, code=1))
        self.assertEqual({'sync.slice': ('refuse', '')},
                         self.sync(bigger, code=1))
        self.assertEqual(('keep', ''), self.sync(
            self.changed(('flavors',), []), '--prune')['sync.slice'])
        self.admin.compute.shelve_server(server)
        self.until(lambda: self.wait(server).status in (
            'SHELVED', 'SHELVED_OFFLOADED'), 'the server is shelved')
        if self.wait(server).status == 'SHELVED':
            self.admin.compute.shelve_offload_server(server)
        self.until(lambda: not self.arqs(server), 'its ARQs are gone')
        self.assertEqual(('refuse', ''),
                         self.sync(other, code=1)['sync-slice'])
        self.delete(server)
        self.assert_nothing_left()
        self.assertEqual(('replace', 'done'),
                         self.sync(other)['sync-slice'])
        self.assertEqual({'sync-slice': ('replace', 'done'),
                          'sync.slice': ('replace', 'done')},
                         self.sync(bigger))
