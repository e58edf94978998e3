# SPDX-License-Identifier: Apache-2.0

"""Reports survive whatever the machine does, and withdraw nothing in use."""

import contextlib
import copy
import logging
import os
from unittest import mock

import fixtures
import pynvml

from cyborg_gpu_driver import agent
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import base
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import test_modes


class TroubleTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    machine = 'mixed'
    gpu = test_modes.A100
    clean_checks = 1

    def assert_nothing_lost(self, *closed):
        """Check that two more reports withdraw nothing in the services.

        :param closed: the GPUs that are promised to nobody.
        """
        expected = copy.deepcopy(self.untouched['placement'])
        for name, provider in expected.items():
            if name.startswith(tuple(self.name('', gpu) for gpu in closed)):
                for inventory in provider['inventories'].values():
                    inventory['reserved'] = inventory['total']
        for _ in range(2):
            self.cloud.report()
            self.assertEqual(expected, self.cloud.placement.snapshot())
        self.assertEqual(self.devices, self.cyborgs_devices())

    def assert_only_closed(self, where):
        """Check that Placement has all as before, or promised to nobody."""
        expected = self.untouched['placement']
        found = self.cloud.placement.snapshot()
        for name, provider in found.items():
            for kind, inventory in provider['inventories'].items():
                if inventory['reserved'] == inventory['total']:
                    inventory['reserved'] = (
                        expected[name]['inventories'][kind]['reserved'])
        self.assertEqual(expected, found, where)

    def cyborgs_devices(self):
        return sorted((device['uuid'], device['model'])
                      for device in self.cloud.cyborg.devices())

    def setUp(self):
        super().setUp()
        self.devices = self.cyborgs_devices()

    def test_nvml_is_away_when_the_agent_starts(self):
        world = self.world
        world.unload_library()
        self.end_agent()
        self.assert_nothing_lost(self.gpu)
        # A whole GPU can still be given to a server.
        self.cloud.unbind(self.cloud.bind(self.profile(
            'PGPU', 'h100', CUSTOM_GPU_ARCH_HOPPER='required')))
        world.load_library()
        self.report()
        self.assert_nothing_lost()

    def test_each_nvml_call_of_a_report_fails(self):
        # The machine object that the driver itself works on.
        world = pynvml.nvmlLib.machine
        world.reset_calls()
        self.cloud.report()
        for symbol in scope.some(sorted(world.calls)):
            for code in (pynvml.NVML_ERROR_UNKNOWN,
                         pynvml.NVML_ERROR_TIMEOUT):
                world.faults.fail(symbol, code, times=None)
                self.cloud.report()
                world.faults.clear()
                self.assert_only_closed((symbol, code))
        self.assert_nothing_lost()

    def test_a_whole_gpu_in_use_keeps_its_traits(self):
        world = self.world
        server = self.cloud.bind(self.profile(
            'PGPU', 'h100', CUSTOM_GPU_ARCH_HOPPER='required'))
        # Nova has libvirt bind the GPU to vfio-pci, and NVML does not list
        # it any more.
        world.bind_driver(test_modes.H100, 'vfio-pci')
        self.cloud.report()
        before = self.cloud.placement.snapshot()
        self.cloud.report()
        self.end_agent()
        self.cloud.report()
        self.assertEqual(before, self.cloud.placement.snapshot())
        self.assertEqual(self.devices, self.cyborgs_devices())
        self.cloud.unbind(server)
        world.bind_driver(test_modes.H100, 'nvidia')
        self.assert_nothing_lost()

    def test_a_driver_that_knows_nothing_reports_nothing(self):
        """An empty report would delete the devices in Cyborg."""
        self.end_agent()
        with mock.patch.object(agent.Agent, '__init__', autospec=True,
                               side_effect=OSError('broken')):
            for _ in range(2):
                with contextlib.suppress(OSError):
                    self.cloud.report()
        self.assertEqual(self.devices, self.cyborgs_devices())
        self.assert_nothing_lost()


class NoGpuTest(base.TestCase):
    """The machine that runs the test, which has no NVIDIA device."""

    def test_nothing_is_reported_and_said_once(self):
        if os.path.exists('/proc/driver/nvidia/version'):
            self.skipTest('this machine has an NVIDIA driver')
        said = self.useFixture(fixtures.FakeLogger(
            'cyborg_gpu_driver', level=logging.INFO, nuke_handlers=False))
        cloud = self.use_cloud(host='compute1')
        for _ in range(3):
            cloud.report()
        self.assertEqual([], cloud.cyborg.devices())
        self.assertEqual(['compute1'], [*cloud.placement.providers()])
        self.assertEqual(1, said.output.count(
            'This host has no NVIDIA GPU'))
        self.assertEqual(1, said.output.count('NVML is not available'))
