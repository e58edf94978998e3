# SPDX-License-Identifier: Apache-2.0


"""Reading the options of nova.conf that concern GPUs."""

from __future__ import annotations

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova import conf_file


class ReadTest(base.BaseTestCase):

    def read(self, *texts):
        directory = self.useFixture(fixtures.TempDir()).path
        paths = []
        for number, text in enumerate(texts):
            paths.append(f'{directory}/{number}.conf')
            with open(paths[-1], 'w', encoding='utf-8') as stream:
                stream.write(text)
        return conf_file.read(paths)

    def test_options(self):
        found = self.read('[pci]\ndevice_spec = {"vendor_id": "10de"}\n'
                          'device_spec = {"vendor_id": "8086"}\n'
                          'report_in_placement = true\n'
                          '[devices]\nenabled_mdev_types = nvidia-1,x\n'
                          '[libvirt]\n'
                          'live_migration_permit_post_copy = true\n')
        self.assertEqual(['10de', '8086'],
                         [entry.vendor_id for entry in found.device_spec])
        self.assertTrue(found.report_in_placement)
        self.assertEqual(('nvidia-1', 'x'), found.enabled_mdev_types)
        self.assertTrue(found.post_copy)
        found = self.read('')
        self.assertEqual(((), False, (), False), (
            found.device_spec, found.report_in_placement,
            found.enabled_mdev_types, found.post_copy))

    def test_former_names(self):
        found = self.read('[DEFAULT]\npci_passthrough_whitelist = {}\n'
                          '[devices]\nenabled_vgpu_types = nvidia-1\n')
        self.assertEqual(1, len(found.device_spec))
        self.assertEqual(('nvidia-1',), found.enabled_mdev_types)
        self.assertEqual(1, len(self.read(
            '[pci]\npassthrough_whitelist = {}\n').device_spec))

    def test_what_cannot_be_read_is_named(self):
        for text, word in (('[pci\n', '0.conf'),
                           ('[pci]\nreport_in_placement = 5\n', '5'),
                           ('[pci]\ndevice_spec = {\n', 'device_spec')):
            error = self.assertRaises(exception.InvalidValue, self.read,
                                      text)
            self.assertIn(word, str(error))
        error = self.assertRaises(exception.InvalidValue, conf_file.read,
                                  ['/nowhere/nova.conf'])
        self.assertIn('/nowhere/nova.conf', str(error))
