# SPDX-License-Identifier: Apache-2.0

"""Hardware, disk and services fail and come back, with servers bound.

The agent survives, logs the trouble once, and all is right afterwards.
"""

import dataclasses
import os

import fixtures
import oslo_messaging
import pynvml
from cyborg.api import app as cyborg_app
from cyborg.conductor import rpcapi
from oslo_config import cfg

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import outages
from cyborg_gpu_driver.tests.unit.cloud import keystone
from demo_lib import nova_part


class NvmlTest(outages.OutageCase):

    def test_the_driver_is_replaced(self):
        world = self.world
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
                         .live.host().driver_version)


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


class PlacementTest(outages.OutageCase):
    """Only the agent does not reach Placement; the other services do."""

    def use_cloud(self, **kwargs):
        cloud = super().use_cloud(**kwargs)
        self.door = self.useFixture(outages.Door(
            cloud.cloud.placement_service.url))
        for name, value in (('endpoint_override', self.door.url),
                            ('connect_retries', 0)):
            cfg.CONF.set_override(name, value, group='placement')
            self.addCleanup(cfg.CONF.clear_override, name, group='placement')
        return cloud

    def test_refused(self):
        with self.door.shut():
            self.assert_said_once('cannot be compared with',
                                  'cannot be written to')
            for _ in range(3 if scope.ALL else 1):
                self.cloud.unbind(self.going)
                self.going = self.cloud.bind(self.goes)
                self.cloud.report()
            (said,) = self.lines()
            self.assertIn('Binds go on although it is not known', said)
            self.cloud.unbind(self.going)
        self.cloud.report()
        self.assertEqual(self.alone, self.everything())
        self.assert_all_right()


class ConductorCase(outages.OutageCase):

    def report_in_vain(self):
        """Report like the agent's periodic task, which survives the error."""
        cfg.CONF.set_override('rpc_response_timeout', 1)
        try:
            self.assertRaises(oslo_messaging.MessagingTimeout,
                              self.cloud.report)
        finally:
            cfg.CONF.clear_override('rpc_response_timeout')


class ConductorTest(ConductorCase):

    def test_it_is_down(self):
        (conductor, _) = self.cloud.cloud.cyborg_service._servers
        conductor.stop()
        conductor.wait()
        self.assert_said_once(report=self.report_in_vain)
        self.cloud.unbind(self.going)
        self.assertEqual(1, len(self.mdevs()))
        self.report_in_vain()
        self.assertEqual([], self.lines())
        conductor.start()
        self.assert_all_right()


class LostReportTest(ConductorCase):
    """The agent's reports never reach the conductor; other services do."""

    def setUp(self):
        super().setUp()
        tracker = self.cloud.agent._rt
        self.addCleanup(setattr, tracker, 'conductor_api',
                        tracker.conductor_api)
        self.back = tracker.conductor_api
        tracker.conductor_api = rpcapi.ConductorAPI(topic='nowhere')

    def test_what_is_bound_after_a_report_withdrew_it(self):
        for server in (self.going, self.staying):
            self.cloud.unbind(server)
        self.change_policy('one', profiles=['3g.40gb', '1g.10gb'])
        self.report_in_vain()
        # A client that does not know this driver offers it to the scheduler.
        uuid = self.cloud.provider(self.name('2g.20gb'))['uuid']
        url = f'/resource_providers/{uuid}/inventories'
        self.cloud.placement.put(url, {
            'resource_provider_generation': self.cloud.provider(
                self.name('2g.20gb'))['generation'],
            'inventories': {'CUSTOM_NVIDIA_2G_20GB': {'total': 3}}})
        self.cloud.placement.put(f'/allocations/{uuid}', {
            'allocations': {uuid: {'resources': {
                'CUSTOM_NVIDIA_2G_20GB': 1}}},
            'project_id': uuid, 'user_id': uuid,
            'consumer_generation': None, 'consumer_type': 'INSTANCE'})
        self.cloud.agent._rt.conductor_api = self.back
        self.report()
        self.assertEqual((3, 3), self.reserved()['2g.20gb'])
        self.cloud.placement.delete(f'/allocations/{uuid}')
        self.report()
        self.assertNotIn('2g.20gb', self.reserved())


class CloudTest(outages.OutageCase):
    """The cloud of ``[gpu_cloud]`` does not answer."""

    overrides = {**outages.OutageCase.overrides,
                 'gpu': {'policies': 'one',
                         'orphan_grace': 0}}

    def start(self, **overrides):
        super().start(**overrides)
        self.busy = False
        application = cyborg_app.load_app()

        def answer(environ, start_response):
            if not self.busy:
                return application(environ, start_response)
            start_response('503 Service Unavailable', [
                ('Content-Length', '0')])
            return []

        here = self.useFixture(keystone.KeystoneFixture(answer, others={
            'placement': self.cloud.cloud.placement_service.url}))
        self.door = self.useFixture(outages.Door(here.auth_url))
        here.log_in(self.driver._conf, f'{self.door.url}/v3')
        self.end_agent()
        self.lines()
        self.cloud.report()
        self.assertEqual([], self.lines())

    def test_cyborgs_api_refuses(self):
        self.busy = True
        self.assert_said_once('Cannot read the accelerator requests')
        self.cloud.unbind(self.going)
        self.going = self.cloud.bind(self.goes)
        self.cloud.report()
        self.assertEqual([], self.lines())
        # One of the two servers was replaced.
        self.assertEqual(self.both['placement'],
                         self.cloud.placement.snapshot())
        self.assertEqual(2, self.handles_in_use())
        self.assertEqual({arq['attach_handle_uuid']
                          for arq in self.cloud.cyborg.arqs()},
                         {*self.mdevs()})
        self.busy = False
        self.cloud.unbind(self.going)
        self.assert_all_right()
