# SPDX-License-Identifier: Apache-2.0

"""What is read from the fabric manager's configuration."""

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.fabric import config
from cyborg_gpu_driver.host.snapshot import model


class ConfigTest(base.BaseTestCase):

    def test_values(self):
        found = config.parse(' FABRIC_MODE = 1\nFABRIC_MODE_RESTART=0\n'
                             'FM_CMD_BIND_INTERFACE=192.0.2.7\n'
                             'FM_CMD_PORT_NUMBER=7000\n'
                             'FM_CMD_UNIX_SOCKET_PATH=\n')
        self.assertIs(model.FabricMode.SHARED_NVSWITCH, found.mode)
        self.assertEqual('192.0.2.7:7000', found.address)

    def test_what_is_wrong(self):
        for text in ('FABRIC_MODE=3', 'FABRIC_MODE=vgpu',
                     'FM_CMD_PORT_NUMBER=70000',
                     'FM_CMD_BIND_INTERFACE=fm.example.com',
                     'FM_CMD_UNIX_SOCKET_PATH=fm.socket',
                     'FM_CMD_UNIX_SOCKET_PATH=/' + 255 * 'a'):
            error = self.assertRaises(exception.FabricError, config.parse,
                                      text, 'fm.cfg')
            self.assertIn(text, str(error))
            self.assertIn('fm.cfg', str(error))

    def test_from_a_file(self):
        directory = self.useFixture(fixtures.TempDir()).path
        path = f'{directory}/fm.cfg'
        self.assertRaises(exception.FabricError, config.read, path)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('FABRIC_MODE=2\n')
        self.assertIs(model.FabricMode.VGPU, config.read(path).mode)
