# SPDX-License-Identifier: Apache-2.0

"""Reading device profiles, flavors, limits and their users."""

import copy
from urllib import parse

from openstack import exceptions
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.tests.unit.cloud import services

_SLICE = resources.group('CUSTOM_NVIDIA_1G_10GB')
_PROFILE = resources.DeviceProfile('slice', (_SLICE,), 'text')
_FLAVOR = resources.Flavor(
    'gpu.slice', 4, 8192, 20, False, (('accel:device_profile', 'slice'),),
    frozenset({'r'}))
_REGISTERED = resources.RegisteredLimit('class:PGPU', 0)
_LIMIT = resources.Limit('class:PGPU', 'r', 8)
_MARK = '[openstack gpu]'


def _flavor(name, **fields):
    return {'id': f'id-{name}', 'name': name, 'vcpus': 4, 'ram': 8192,
            'disk': 20, 'os-flavor-access:is_public': True,
            'description': None, 'extra_specs': {}, **fields}


def _registered(region, name='class:PGPU'):
    return {'id': f'{name} in {region}', 'region_id': region,
            'resource_name': name, 'default_limit': 0, 'description': _MARK}


_ACCELERATOR = {
    '/v2/device_profiles': {'device_profiles': [
        {'uuid': 'dp', 'name': 'slice', 'description': f'text {_MARK}',
         'groups': [{'resources:CUSTOM_NVIDIA_1G_10GB': '1'}]}]},
    '/v2/accelerator_requests': {'arqs': [
        {'uuid': 'arq1', 'instance_uuid': 'server1', 'state': 'Bound',
         'device_profile_name': 'slice'},
        {'uuid': 'arq2', 'instance_uuid': 'server1', 'state': 'Bound',
         'device_profile_name': 'slice'},
        {'uuid': 'arq3', 'instance_uuid': None, 'state': 'Initial',
         'device_profile_name': 'slice'}]}}
_COMPUTE = {
    '/v2.1/flavors/detail': {'flavors': [
        _flavor('gpu.slice', **{
            'description': _MARK, 'os-flavor-access:is_public': False,
            'extra_specs': {'accel:device_profile': 'slice'}}),
        _flavor('plain'),
        _flavor('theirs', extra_specs={'accel:device_profile': 'x'})]},
    '/v2.1/flavors/id-gpu.slice/os-flavor-access': {
        'flavor_access': [{'flavor_id': 'id-gpu.slice', 'tenant_id': 'r'}]},
    '/v2.1/servers': {'servers': [{'id': 'server1'}]},
    '/v2.1/servers/detail': {'servers': [
        {'id': 'server2', 'flavor': {'extra_specs': {
            'accel:device_profile': 'slice'}}},
        {'id': 'server3', 'flavor': {'extra_specs': {}}}]}}
_IDENTITY = {
    '/v3/registered_limits': {'registered_limits': [
        _registered('one'), _registered('two'), _registered(None)]},
    '/v3/limits': {'limits': [
        {'id': 'limit', 'region_id': 'one', 'resource_name': 'class:PGPU',
         'project_id': 'r', 'resource_limit': 8, 'description': _MARK},
        {'id': 'of a domain', 'region_id': 'one', 'project_id': None,
         'resource_name': 'class:PGPU', 'resource_limit': 8,
         'description': None}]},
    '/v3/projects/r': {'project': {'id': 'r'}},
    '/v3/projects': lambda query: {'projects': [
        {'id': f'{name}{number}', 'name': name}
        for name in parse.parse_qs(query)['name']
        for number in range({'research': 1, 'lab': 2}.get(name, 0))]}}


class StateCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.accelerator = copy.deepcopy(_ACCELERATOR)
        self.compute = copy.deepcopy(_COMPUTE)
        self.identity = copy.deepcopy(_IDENTITY)
        self.services = self.useFixture(services.Services({
            'accelerator': services.documents(
                self.accelerator, services.CYBORG),
            'compute': services.documents(self.compute, services.NOVA),
            'identity': services.documents(
                self.identity, services.KEYSTONE)}))
        self.cloud = self.services.cloud


class ReadTest(StateCase):

    def read(self, *items, **kwargs):
        with self.cloud.errors():
            return state.read(self.cloud, definition.Definition(items),
                              **kwargs)

    def test_everything(self):
        found = self.read(everything=True)
        server1, server2 = ('server server1',), ('shelved server server2',)
        self.assertEqual({
            _PROFILE.key: resources.Existing(
                _PROFILE, 'dp', True, (*server1, 'accelerator request arq3 '
                                       '(Initial)', *server2)),
            _FLAVOR.key: resources.Existing(
                _FLAVOR, 'id-gpu.slice', True, server1),
            _REGISTERED.key: resources.Existing(
                _REGISTERED, 'class:PGPU in one'),
            _LIMIT.key: resources.Existing(_LIMIT, 'limit')},
            {key: one for key, one in found.items() if one.ours})
        self.assertEqual(
            {(resources.Kind.FLAVOR, 'theirs')},
            {key for key, one in found.items() if not one.ours})

    def test_who_uses_what_may_go(self):
        (profile,) = self.read(resources.DeviceProfile(
            'slice', (_SLICE, _SLICE))).values()
        self.assertEqual(3, len(profile.users))
        for flavor, users in (
                (_FLAVOR, ()), (resources.Flavor(**{
                    **vars(_FLAVOR), 'vcpus': 8}), ('server server1',))):
            self.assertEqual(users, self.read(_PROFILE, flavor)[
                _FLAVOR.key].users)

    def test_projects(self):
        for name, uuid in (('r', 'r'), ('research', 'research0')):
            self.assertEqual(uuid, state.project(self.cloud, name))
        for name, error in (('nobody', exceptions.NotFoundException),
                            ('lab', exceptions.DuplicateResource)):
            self.assertIn(name, str(self.assertRaises(
                error, state.project, self.cloud, name)))

    def test_whom_limits_are_for(self):
        self.assertEqual({'service_id': 'compute', 'region_id': 'one'},
                         state.limit_scope(self.cloud))
        self.services.regions[:] = ['one', 'two']
        self.cloud = self.services.cloud
        self.cloud.region = 'two'
        self.assertEqual('two', state.limit_scope(self.cloud)['region_id'])
        for self.cloud.region in (None, 'three'):
            self.assertIn('one, two', str(self.assertRaises(
                exception.CloudError, state.limit_scope, self.cloud)))
        self.services.regions[:] = [None]
        self.assertEqual({'service_id': 'compute'},
                         state.limit_scope(self.services.cloud))
        self.assertEqual(
            ['class:PGPU in None'], [one.identity for one in state.limits(
                self.services.cloud)])
        del self.services.urls['compute']
        self.assertRaises(exception.CloudError, state.limit_scope,
                          self.services.cloud)

    def test_a_list_that_keystone_limits(self):
        """No limit of a project is taken for missing."""
        for path in ('/v3/limits', '/v3/registered_limits'):
            document = self.identity[path]
            self.identity[path] = {**document, 'truncated': True}
            self.assertIn('list_limit', str(self.assertRaises(
                exception.CloudError, state.limits, self.cloud)))
            self.identity[path] = document
