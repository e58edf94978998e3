# SPDX-License-Identifier: Apache-2.0

"""The requests to the services for each change, and their order."""

import dataclasses
import json

from oslotest import base

from cyborg_gpu_driver.cloud import plan
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.tests.unit.cloud import services

_MARK = '[openstack gpu]'
_PROFILE = resources.DeviceProfile(
    'slice', (resources.group('CUSTOM_NVIDIA_1G_10GB'),))
_FLAVOR = resources.Flavor(
    'gpu.slice', 4, 8192, 20, False,
    (('accel:device_profile', 'slice'), ('hw:numa_nodes', '1')),
    frozenset({'r'}), 'text')
_REGISTERED = resources.RegisteredLimit('class:PGPU', 0)
_LIMIT = resources.Limit('class:PGPU', 'r', 8)
_ARQ = {'uuid': 'arq', 'instance_uuid': 'server', 'state': 'Bound',
        'device_profile_name': 'slice'}


class WriterTest(base.BaseTestCase):
    """Changes are sent to services that accept every request."""

    def setUp(self):
        super().setUp()
        self.asked = []
        self.refused = None
        self.status = '503 Service Unavailable'
        self.answers = {
            '/v2/accelerator_requests': {'arqs': []},
            '/v2.1/servers': {'servers': []},
            '/v2.1/servers/detail': {'servers': []},
            '/v3/registered_limits': {'registered_limits': []},
            '/v3/limits': {'limits': []}}
        self.cloud = self.useFixture(services.Services({
            'accelerator': self.taking(services.CYBORG),
            'compute': self.taking(services.NOVA),
            'identity': self.taking(services.KEYSTONE)})).cloud

    def taking(self, version):
        reading = services.documents(self.answers, version)

        def answer(environ, start_response):
            method = environ['REQUEST_METHOD']
            if method == 'GET':
                return reading(environ, start_response)
            length = int(environ.get('CONTENT_LENGTH') or 0)
            body = environ['wsgi.input'].read(length)
            path = environ['PATH_INFO'].partition('/')[2].partition('/')[2]
            self.asked.append((method, path,
                               json.loads(body) if body else None))
            if path == self.refused:
                start_response(self.status, [])
                return [b'']
            start_response('200 OK', [('Content-Type', 'application/json')])
            return [json.dumps({'flavor': {'id': 'new'}}).encode()]
        return answer

    def carry_out(self, *changes):
        return [(change.item.name, error and str(error)) for change, error
                in state.carry_out(self.cloud, changes)]

    def change(self, action, wanted, existing=None, **kwargs):
        """The requests for one change that succeeds."""
        self.assertEqual(
            [((wanted or existing).name, None)],
            self.carry_out(plan.Change(
                action, '', wanted, existing and resources.Existing(
                    existing, 'old', **kwargs))))
        asked, self.asked = self.asked, []
        return asked

    def test_what_is_replaced(self):
        self.assertEqual(
            [('DELETE', 'device_profiles/old'), ('POST', 'device_profiles')],
            [asked[:2] for asked in self.change(
                plan.Action.REPLACE, _PROFILE, _PROFILE)])
        self.assertEqual(
            ['flavors/old', 'flavors', 'flavors/new/os-extra_specs',
             'flavors/new/action'],
            [path for _, path, _ in self.change(
                plan.Action.REPLACE, _FLAVOR, _FLAVOR)])

    def test_what_changes_of_a_flavor(self):
        self.assertEqual([
            ('PUT', 'flavors/old', {'flavor': {
                'description': f'text {_MARK}'}}),
            ('POST', 'flavors/old/os-extra_specs',
             {'extra_specs': {'accel:device_profile': 'slice'}}),
            ('DELETE', 'flavors/old/os-extra_specs/a b', None),
            ('POST', 'flavors/old/action',
             {'addTenantAccess': {'tenant': 'r'}}),
            ('POST', 'flavors/old/action',
             {'removeTenantAccess': {'tenant': 's'}})],
            self.change(plan.Action.UPDATE, _FLAVOR, dataclasses.replace(
                _FLAVOR, description='', projects=frozenset('s'),
                extra_specs=(('a b', 'x'), ('hw:numa_nodes', '1')))))
        self.assertEqual(
            [('PUT', 'flavors/old', {'flavor': {
                'description': f'text {_MARK}'}})],
            self.change(plan.Action.UPDATE, _FLAVOR, _FLAVOR, ours=False))

    def test_limits(self):
        for item, path, key, body in (
                (_REGISTERED, 'registered_limits/old', 'registered_limit',
                 {'default_limit': 0}),
                (_LIMIT, 'limits/old', 'limit', {'resource_limit': 8})):
            self.assertEqual(
                [('PATCH', path, {key: {**body, 'description': _MARK}})],
                self.change(plan.Action.UPDATE, item, item))

    def test_what_has_come_into_use_stays(self):
        self.answers['/v2/accelerator_requests'] = {'arqs': [_ARQ]}
        self.answers['/v2.1/servers'] = {'servers': [{'id': 'server'}]}
        for item in (_PROFILE, _FLAVOR):
            for action, wanted in ((plan.Action.DELETE, None),
                                   (plan.Action.REPLACE, item)):
                ((_, error),) = self.carry_out(plan.Change(
                    action, '', wanted, resources.Existing(item, 'old')))
                self.assertIn('is now in use: server server', error)
        self.assertEqual([], self.asked)

    def test_the_first_failure_is_the_end(self):
        self.refused = 'flavors/new/os-extra_specs'
        found = self.carry_out(*(
            plan.Change(plan.Action.CREATE, '', item)
            for item in (_PROFILE, _FLAVOR, _REGISTERED)))
        self.assertEqual(('slice', None), found[0])
        self.assertIn('503', found[1][1])
        self.assertEqual(['device_profiles', 'flavors', self.refused],
                         [path for _, path, _ in self.asked])
        self.assertEqual(2, len(found))
