# SPDX-License-Identifier: Apache-2.0

"""The machine that the options of ``[gpu]`` name."""

import dataclasses
import pathlib
from unittest import mock

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.program.reconcile import groups


class RealCase(base.BaseTestCase):
    """This machine, but with a test PCI bus that has an NVSwitch."""

    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        switch = self.directory / 'sys/bus/pci/devices/0000:07:00.0'
        switch.mkdir(parents=True)
        for name, value in (('vendor', '0x10de'), ('device', '0x22a3'),
                            ('class', '0x068000')):
            (switch / name).write_text(f'{value}\n', encoding='ascii')
        self.fabric = self.directory / 'elsewhere.cfg'
        self.conf = cfg.ConfigOpts()
        gpu_conf.register_opts(self.conf)
        self.conf([], project='test', default_config_files=[])
        for name, value in (('sysfs_root', self.directory / 'sys'),
                            ('state_path', self.directory / 'state')):
            self.conf.set_override(name, str(value), 'gpu')

    def machine(self):
        return dataclasses.replace(platform.from_conf(self.conf),
                                   fabric_config=str(self.fabric))

    def write(self, text):
        self.fabric.write_text(text, encoding='ascii')


class FabricConfigTest(RealCase):
    """The configuration of the fabric manager, in all code that reads it."""

    def test_the_connection(self):
        self.write('FM_CMD_PORT_NUMBER=none\n')
        error = self.assertRaises(exception.FabricError,
                                  self.machine().fabric.partitions)
        self.assertIn(f'{self.fabric}', str(error))

    def test_the_agent_after_a_restart(self):
        for number, looked in ((1, False), (2, True)):
            self.write(f'FABRIC_MODE={number}\n')
            partitions = groups.Connections(
                self.machine(), mock.Mock(), mock.Mock())
            partitions.partitions = mock.Mock(
                side_effect=exception.StepFailed(reason='looked'))
            partitions.look()
            self.assertEqual(looked, partitions.partitions.called)


class BootTest(base.BaseTestCase):

    def test_the_kernel_names_its_start(self):
        self.assertEqual(platform.boot_id(), platform.boot_id())
        self.assertTrue(platform.boot_id())
