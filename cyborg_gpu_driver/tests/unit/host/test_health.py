# SPDX-License-Identifier: Apache-2.0


"""What GPUs report about their health, on simulated machines."""

import dataclasses
import os

import fixtures
import pynvml
from oslotest import base as oslo_base

from cyborg_gpu_driver.host import health
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.tests.unit.host import base

_GPU = model.PciAddress.parse('0000:07:00.0')
_CONFIG = bytes.fromhex('de10b220') + bytes(60)
# As in Documentation/ABI/testing/sysfs-bus-pci-devices-aer.
_AER = ('Undefined 0\nDLP 0\nSDES 0\nTLP 1\nFCP 0\nCmpltTO 2\n'
        'TOTAL_ERR_FATAL {}\n')
_CLEAN = condition.Facts(
    answered=True, ecc_uncorrected=0, remapped_rows=0, remap_pending=False,
    remap_failed=False, thermal_slowdown=False, recovery_action=0)


class HealthTest(base.SimulatedTestCase):

    def setUp(self):
        super().setUp()
        self.name = str(self.first)

    def read(self):
        return health.read(self.nvml, self.first)

    def test_everything_that_can_be_wrong(self):
        self.machine.set_remapped_rows(self.name, 2, 1, pending=True)
        self.machine.set_health(self.name, celsius=90, uncorrected=4,
                                recovery=2)
        self.assertEqual(dataclasses.replace(
            _CLEAN, ecc_uncorrected=4, remapped_rows=3, remap_pending=True,
            thermal_slowdown=True, recovery_action=2), self.read())
        self.machine.set_remapped_rows(self.name, failed=True)
        self.assertEqual((False, True), (self.read().remap_pending,
                                         self.read().remap_failed))

    def test_before_ampere_pages_are_retired(self):
        self.use('t4x4')
        self.machine.set_remapped_rows(str(self.first), pending=True)
        found = self.read()
        self.assertTrue(found.retired_pending)
        self.assertIsNone(found.remap_pending)

    def test_remapped_rows_are_known_only_without_instances(self):
        """nvml.h: not supported while a GPU in MIG mode has instances."""
        one = self.cut(self.first, 19)
        self.assertIsNone(self.read().remapped_rows)
        self.nvml.destroy_gpu_instance(self.device(), one.instance_id)
        self.machine.set_remapped_rows(self.name, failed=True)
        self.assertTrue(self.read().remap_failed)

    def test_unknown_to_everything_is_lost(self):
        for pattern in ('nvmlDeviceGetHandleBy*', 'nvmlDeviceGet[!H]*'):
            self.machine.faults.fail(pattern, pynvml.NVML_ERROR_UNKNOWN,
                                     times=None, address=self.name)
            self.assertTrue(self.read().lost, pattern)
            self.machine.faults.clear()

    def test_what_a_driver_does_not_have_is_left_out(self):
        for call in ('nvmlDeviceGetFieldValues',
                     'nvmlDeviceGetCurrentClocksEventReasons'):
            self.machine.faults.fail(
                call, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, times=None)
        self.assertEqual(dataclasses.replace(
            _CLEAN, thermal_slowdown=None, recovery_action=None), self.read())

    def test_where_an_instance_lies(self):
        self.machine.gpu(self.name)
        instance = self.cut(self.first, 14, 2, 2)
        self.assertEqual(model.Placement(2, 2), health.instance_place(
            self.nvml, self.first, instance.instance_id))
        self.assertIsNone(health.instance_place(
            self.nvml, self.first, instance.instance_id + 40))
        self.machine.lose_gpu(self.name)
        self.assertIsNone(health.instance_place(
            self.nvml, self.first, instance.instance_id))


class PciTest(oslo_base.BaseTestCase):

    def setUp(self):
        super().setUp()
        root = self.useFixture(fixtures.TempDir()).path
        self.place = os.path.join(root, 'bus', 'pci', 'devices', str(_GPU))
        os.makedirs(self.place)
        self.sysfs = pci.Sysfs(root)

    def write(self, name, content):
        if isinstance(content, str):
            content = content.encode()
        with open(os.path.join(self.place, name), 'wb') as stream:
            stream.write(content)

    def read(self):
        return health.read_pci(self.sysfs, _GPU)

    def test_what_the_kernel_says(self):
        seen = health.Seen
        self.assertEqual(seen(), self.read())
        for config, errors, width, expected in (
                (_CONFIG, _AER.format(3), '16\n', seen(True, 3, 16)),
                # drivers/pci/pci-sysfs.c prints 63, all bits set, without a
                # link.
                (b'\xff' * 64, 'DLP 0\n', '63\n', seen(False, None, 63)),
                ('', 'DLP 0\n', 'Unknown\n', seen())):
            for name, content in (('config', config),
                                  ('aer_dev_fatal', errors),
                                  ('current_link_width', width)):
                self.write(name, content)
            self.assertEqual(expected, self.read())

    def test_what_is_wrong(self):
        seen = health.Seen
        before = seen(True, 1, 16)
        for then, now, expected in (
                (before, before, ()), (before, seen(), ()),
                (before, seen(False), (condition.UNREACHABLE,)),
                (before, seen(True, 2, 16), (condition.FATAL,)),
                (before, seen(True, 0, 16), ()),
                (before, seen(True, 1, 8), (condition.LANES,)),
                # Without a record only what is wrong now counts.
                (seen(), seen(True, 9, 1), ()),
                (seen(), seen(False, 9, 1), (condition.UNREACHABLE,))):
            self.assertEqual(expected, health.wrong_pci(then, now), now)
