# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What GPUs report about their health, on simulated machines."""

import dataclasses

import pynvml

from cyborg_gpu_driver.host.health import reader as health
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests.unit.host import base

_CALLS = 5
_CLEAN = condition.Facts(
    answered=True, ecc_uncorrected=0, remapped_rows=0, remap_pending=False,
    remap_failed=False, temperature=31, slowdown_temperature=89,
    shutdown_temperature=92, thermal_slowdown=False, recovery_action=0)


class HealthReaderTest(base.SimulatedTestCase):

    def setUp(self):
        super().setUp()
        self.health = health.HealthReader(self.nvml)
        self.name = str(self.first)

    def read(self, address=None):
        return self.health.read(address or self.first)

    def test_a_healthy_gpu(self):
        self.assertEqual(_CLEAN, self.read())

    def test_few_calls(self):
        self.read()
        self.calls()
        self.read()
        self.assertEqual(_CALLS, sum(self.calls().values()))

    def test_everything_that_can_be_wrong(self):
        self.machine.set_remapped_rows(self.name, 2, 1, pending=True)
        self.machine.set_health(self.name, celsius=90, uncorrected=4,
                                recovery=2)
        self.assertEqual(dataclasses.replace(
            _CLEAN, ecc_uncorrected=4, remapped_rows=3, remap_pending=True,
            temperature=90, thermal_slowdown=True,
            recovery_action=2), self.read())
        self.machine.set_remapped_rows(self.name, failed=True)
        self.assertEqual((False, True), (self.read().remap_pending,
                                         self.read().remap_failed))

    def test_a_driver_that_does_not_say_what_it_asks_for(self):
        self.machine.set_health(self.name, recovery=None)
        self.assertIsNone(self.read().recovery_action)

    def test_before_ampere_pages_are_retired(self):
        self.use('t4x4')
        self.health = health.HealthReader(self.nvml)
        self.machine.set_remapped_rows(str(self.first), pending=True)
        found = self.read(self.first)
        self.assertTrue(found.retired_pending)
        self.assertIsNone(found.remap_pending)
        self.calls()
        self.read(self.first)
        self.assertEqual(_CALLS, sum(self.calls().values()))

    def test_remapped_rows_are_asked_for_again_without_instances(self):
        """nvml.h: not supported while a GPU in MIG mode has instances."""
        one = self.cut(self.first, 19)
        self.assertIsNone(self.read().remapped_rows)
        self.calls()
        self.assertIsNone(self.read().remapped_rows)
        self.assertEqual(_CALLS, sum(self.calls().values()))
        self.nvml.destroy_gpu_instance(self.device(), one.instance_id)
        self.machine.set_remapped_rows(self.name, failed=True)
        self.assertTrue(self.read().remap_failed)

    def test_a_lost_gpu_disturbs_no_other(self):
        self.machine.lose_gpu(self.name)
        found = self.read()
        self.assertTrue(found.lost and found.answered)
        self.assertEqual(_CLEAN, self.read(self.addresses[1]))

    def test_a_gpu_that_gets_lost_is_asked_once(self):
        self.read()
        self.machine.lose_gpu(self.name)
        self.calls()
        self.assertTrue(self.read().lost)
        self.assertEqual(1, sum(self.calls().values()))

    def test_unknown_to_everything_is_lost(self):
        for pattern in ('nvmlDeviceGetHandleBy*', 'nvmlDeviceGet[!H]*'):
            self.machine.faults.fail(pattern, pynvml.NVML_ERROR_UNKNOWN,
                                     times=None, address=self.name)
            self.assertTrue(self.read().lost, pattern)
            self.machine.faults.clear()

    def test_unknown_to_one_question_is_not(self):
        self.machine.faults.fail('nvmlDeviceGetTemperature',
                                 pynvml.NVML_ERROR_UNKNOWN, times=None)
        self.assertEqual(dataclasses.replace(_CLEAN, temperature=None),
                         self.read())

    def test_a_reset_is_required(self):
        self.machine.faults.fail(
            'nvmlDeviceGet[!H]*', pynvml.NVML_ERROR_RESET_REQUIRED,
            times=None, address=self.name)
        self.assertEqual(condition.Facts(answered=True,
                                         reset_required=True), self.read())

    def test_what_a_driver_does_not_have_is_not_asked_again(self):
        for call in ('nvmlDeviceGetFieldValues',
                     'nvmlDeviceGetCurrentClocksEventReasons',
                     'nvmlDeviceGetTemperatureThreshold'):
            self.machine.faults.fail(
                call, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, times=None)
        expected = dataclasses.replace(
            _CLEAN, slowdown_temperature=None, shutdown_temperature=None,
            thermal_slowdown=None, recovery_action=None)
        self.assertEqual(expected, self.read())
        self.calls()
        self.assertEqual(expected, self.read())
        self.assertEqual(_CALLS - 2, sum(self.calls().values()))

    def test_without_nvml_nothing_is_known(self):
        self.machine.unload_library()
        self.assertEqual(condition.Facts(), self.read())
        self.machine.load_library()
        self.assertEqual(_CLEAN, self.read())

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

    def test_the_kernel_names_its_start(self):
        self.assertEqual(health.boot_id(), health.boot_id())
        self.assertTrue(health.boot_id())
