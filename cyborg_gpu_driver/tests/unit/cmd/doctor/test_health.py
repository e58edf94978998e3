# SPDX-License-Identifier: Apache-2.0


"""The health of GPUs, as the doctor finds it and an operator clears it."""

from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.cmd import base

_GPU = '0000:07:00.0'


class TestHealth(base.HostCase):

    def setUp(self):
        super().setUp()
        self.hardware = self.machine()

    def doctor(self):
        """Return the findings about the health of GPUs and instances."""
        rows = self.rows_on_host('doctor', code=1)
        return [(row['code'], row['gpu'], row['subject'], row['message'])
                for row in rows if row['code'].startswith('unhealthy')]

    def test_unhealthy_by_what_the_agent_knows_until_it_is_cleared(self):
        agent = health.GpuHealth(
            platform.open_platform(self.hardware), self.state_path,
            services.Services(), clock=lambda: 86400.0)
        self.addCleanup(self.hardware.uninstall)
        agent.event(condition.Event(model.PciAddress.parse(_GPU), 119))
        ((_, _, _, message),) = self.doctor()
        self.assertIn('transient since 1970-01-02T00:00:00+00:00', message)
        self.assertIn('XID 119 (the GPU system processor does not answer)',
                      message)
        self.run_on_host('health', 'clear', _GPU)
        self.assertEqual([], self.doctor())

    def test_an_instance_has_a_finding_of_its_own(self):
        machine = platform.open_platform(self.hardware)
        self.addCleanup(self.hardware.uninstall)
        address = model.PciAddress.parse(_GPU)
        instance = machine.nvml.create_gpu_instance(
            machine.nvml.device(address), 14, model.Placement(2, 2))
        health.GpuHealth(
            machine, self.state_path, services.Services()).event(
            condition.Event(address, 94, instance.instance_id))
        self.assertEqual(
            [('unhealthy-instance', _GPU, '2:2')],
            [item[:3] for item in self.doctor()])

    def test_a_dead_virtual_function(self):
        machine = platform.open_platform(self.hardware)
        self.addCleanup(self.hardware.uninstall)
        function = '0000:07:01.2'
        health.GpuHealth(
            machine, self.state_path, services.Services()).function_died(
            *map(model.PciAddress.parse, (_GPU, function)))
        rows = self.rows_on_host('doctor', code=1)
        self.assertIn(('dead-function', function), [
            (row['code'], row['subject']) for row in rows])

    def test_no_such_address(self):
        self.run_on_host('health', 'clear', 'x', code=1)
