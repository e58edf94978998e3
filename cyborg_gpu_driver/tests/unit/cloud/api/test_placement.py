# SPDX-License-Identifier: Apache-2.0

"""Clients that cannot query Placement; the functional tests have others."""

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import placement_client


class PlacementTest(base.BaseTestCase):

    def client(self, **options):
        path = self.useFixture(fixtures.TempDir()).path + '/cyborg.conf'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('[placement]\n' + ''.join(
                f'{name} = {value}\n' for name, value in options.items()))
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[path])
        return placement_client.Placement(conf)

    def test_no_answer(self):
        nowhere = 'http://127.0.0.1:9'
        client = self.client(
            auth_type='admin_token', token='admin', endpoint=nowhere,
            endpoint_override=nowhere)
        self.assertRaises(exception.CloudError, client.get, '/there',
                          version='1.26')

    def test_nobody_to_ask_as(self):
        self.assertIn('auth_type', str(self.assertRaises(
            exception.CloudError, self.client)))
        self.assertRaises(exception.CloudError, self.client,
                          auth_type='unheard_of')
