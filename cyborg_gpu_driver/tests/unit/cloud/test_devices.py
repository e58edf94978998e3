# SPDX-License-Identifier: Apache-2.0

import json

import fixtures
from keystoneauth1 import loading
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests.unit.cloud import keystone

_HOST = 'compute1'
GPU = model.PciAddress(0, 0x41, 0, 0)


def device(**changes):
    """A disabled device as Cyborg's API shows it."""
    return {'uuid': '1', 'hostname': _HOST, 'status': 'maintaining',
            'std_board_info': json.dumps({'address': str(GPU)}), **changes}


class Cyborg:
    """A WSGI application that answers with devices."""

    def __init__(self):
        self.devices = []
        self.status = '200 OK'
        self.asked = []

    def __call__(self, environ, start_response):
        self.asked.append((environ['PATH_INFO'], environ['QUERY_STRING'],
                           environ.get('HTTP_OPENSTACK_API_VERSION')))
        start_response(self.status, [('Content-Type', 'application/json')])
        return [json.dumps({'devices': self.devices}).encode()]


class WatchTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.cyborg = Cyborg()
        self.keystone = self.useFixture(keystone.KeystoneFixture(self.cyborg))
        keystone.forget_clouds(self)
        self.log = self.useFixture(fixtures.FakeLogger())

    def conf(self, **placement):
        """cyborg.conf of an agent, with these options in ``[placement]``."""
        conf = cfg.ConfigOpts()
        connection.register_opts(conf)
        for register in (loading.register_auth_conf_options,
                         loading.register_session_conf_options,
                         loading.register_adapter_conf_options):
            register(conf, 'placement')
        conf([], default_config_files=[])
        conf.register_opts(loading.get_auth_plugin_conf_options('password'),
                           'placement')
        for name, value in placement.items():
            conf.set_override(name, value, 'placement')
        return conf

    def user(self, **changes):
        return self.conf(**{
            'auth_type': 'password', 'auth_url': self.keystone.auth_url,
            'username': 'cyborg', 'password': 'x',
            'project_name': 'service', 'user_domain_name': 'Default',
            'project_domain_name': 'Default', **changes})

    def watch(self, conf=None):
        return cyborg.DisabledWatch(conf or self.user(), _HOST)

    def test_the_user_of_placement_asks(self):
        self.cyborg.devices = [device()]
        self.assertEqual({GPU}, self.watch().read())
        self.assertEqual(
            [('/v2/devices', f'hostname={_HOST}', 'accelerator 2.3')],
            self.cyborg.asked)

    def test_the_user_of_the_agent_asks_instead(self):
        self.cyborg.devices = [device()]
        conf = self.conf()
        self.keystone.log_in(conf)
        self.assertEqual({GPU}, self.watch(conf).read())

    def test_others_are_not_disabled(self):
        for changes in (
                {'status': 'enabled'}, {'hostname': 'compute2'},
                {'std_board_info': None}, {'std_board_info': '[]'},
                {'std_board_info': '{}'}, {'std_board_info': 'x'},
                {'std_board_info': '{"address": "gpu"}'}):
            self.cyborg.devices = [device(**changes)]
            self.assertEqual(frozenset(), self.watch().read(), changes)

    def test_what_is_not_known_is_said_once(self):
        for conf, status, said in (
                (self.conf(), '200 OK', 'auth_type is not a Keystone user'),
                (self.user(auth_url='http://127.0.0.1:9/v3'), '200 OK',
                 'Unable to establish connection'),
                (self.user(), '403 Forbidden', '403'),
                (self.user(), '404 Not Found', 'Cyborg: ')):
            self.cyborg.status = status
            watch = self.watch(conf)
            self.assertIsNone(watch.read())
            self.assertIsNone(watch.read())
            (line,) = [text for text in self.log.output.splitlines()
                       if 'Cannot read from Cyborg' in text]
            self.assertIn(said, line)
            self.log.reset_output()
        self.cyborg.status = '200 OK'
        self.assertEqual(frozenset(), watch.read())
