# SPDX-License-Identifier: Apache-2.0

"""Hardware and disk fail and come back, with servers bound.

The agent survives, logs the trouble once, and all is right afterwards.
"""

import dataclasses
import os

import fixtures
import pynvml

from cyborg_gpu_driver.tests.functional import outages
from demo_lib import nova_part


class NvmlTest(outages.OutageCase):

    def test_the_driver_is_replaced(self):
        world = self.world()
        world.unload_library(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        self.assert_said_once('of different versions')
        self.assertEqual(self.both['gpus'], self.everything()['gpus'])
        # What cannot be created now is promised to nobody.
        self.assertEqual(
            {'1g.10gb': 1, '2g.20gb': 0, '3g.40gb': 1}, self.promised())
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, self.goes)
        self.cloud.unbind(self.going)
        self.assertEqual([*self.mdevs()],
                         [self.staying.arqs[0]['attach_handle_uuid']])
        self.assert_said_once('Could not remove everything that handle')
        # What waits for its removal is no room either.
        self.assertEqual({'1g.10gb': 0, '2g.20gb': 0, '3g.40gb': 1},
                         self.promised())
        world.unload_library(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.assert_said_once()
        machine = pynvml.nvmlLib.machine
        machine.host = dataclasses.replace(machine.host,
                                           driver_version='550.163.01')
        world.load_library()
        self.assert_all_right()
        self.assertEqual('550.163.01', self.driver._running()
                         ._host.host().driver_version)


class PartlyReadTest(outages.OutageCase):

    def test_a_call_fails_on_a_gpu_that_is_healthy_otherwise(self):
        """nvidia-smi shows ERR! in its column: nvmlDeviceGetMigMode fails."""
        faults = pynvml.nvmlLib.machine.faults
        faults.fail('nvmlDeviceGetMigMode', pynvml.NVML_ERROR_UNKNOWN,
                    times=None, address=self.gpu)
        self.addCleanup(faults.clear)
        self.assert_said_once('stays as it was reported')
        self.assertEqual(
            {'1g.10gb': 1, '2g.20gb': 0, '3g.40gb': 1}, self.promised())
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, self.goes)
        self.cloud.unbind(self.going)
        self.cloud.report()
        self.assertEqual(
            {'1g.10gb': 0, '2g.20gb': 0, '3g.40gb': 1}, self.promised())
        faults.clear()
        self.cloud.report()
        self.assert_all_right()


class FullDiskTest(outages.OutageCase):

    def start(self, **overrides):
        self.hardware_directory = self.useFixture(fixtures.TempDir()).path
        super().start(**overrides)
        self.disk = self.useFixture(outages.SmallDisk(self.state_path))
        if self.disk.refusal:
            self.skipTest(f'no disk can be mounted: {self.disk.refusal}')

    def files(self):
        return sorted(
            os.path.join(directory, name) for directory, _, names
            in os.walk(self.state_path) for name in names)

    def suffer(self, reason, left):
        """Ask everything of an agent that cannot write.

        :param reason: what the log says about this.
        :param left: how many vGPUs exist after an unbind.
        """
        self.assert_bind_fails()
        self.assertIn(reason, '\n'.join(self.lines()))
        self.cloud.unbind(self.going)
        self.assertEqual(1, self.handles_in_use())
        self.assertEqual(left, len(self.mdevs()))
        self.cloud.report()
        self.lines()
        for _ in range(outages.REPORTS):
            self.cloud.report()
            self.assertEqual([], self.lines())
        self.assert_bind_fails()
        self.assertNotIn('Traceback', self.log.output)

    def test_binds_fail_and_unbinds_are_made_up_for(self):
        files = self.files()
        with self.disk.full():
            self.suffer('No space left on device', left=1)
        self.assertEqual(files, self.files())
        self.assert_all_right()
