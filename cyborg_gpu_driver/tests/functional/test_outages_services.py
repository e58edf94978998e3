# SPDX-License-Identifier: Apache-2.0

"""Placement, the conductor and Cyborg's API fail and come back.

The agent survives, logs the trouble once, and all is right afterwards.
"""

import contextlib
from unittest import mock

import oslo_messaging
from cyborg.api import app as cyborg_app
from cyborg.conductor import rpcapi
from oslo_config import cfg

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import outages
from cyborg_gpu_driver.tests.functional import test_mig
from cyborg_gpu_driver.tests.unit.cloud import keystone


class PlacementCase(outages.OutageCase):

    def use_cloud(self, **kwargs):
        cloud = super().use_cloud(**kwargs)
        self.door = self.useFixture(outages.Door(
            cloud.cloud.placement_service.url))
        for name, value in (('endpoint_override', self.door.url),
                            ('connect_retries', 0)):
            cfg.CONF.set_override(name, value, group='placement')
            self.addCleanup(cfg.CONF.clear_override, name, group='placement')
        return cloud

    @contextlib.contextmanager
    def silent(self, timeout: float = 1.0):
        """Answer nothing during the block.

        :param timeout: seconds that the agent's client waits meanwhile.
            Before and after the block it waits longer, because Placement can
            be slow on a busy machine.
        """
        session = (self.driver._running()._reserved_writer._tree.client._client
                   .session)
        with (mock.patch.object(session, 'timeout', timeout),
              self.door.silent()):
            yield


class PlacementTest(PlacementCase):
    """Only the agent does not reach Placement; the other services do."""

    def check(self, outage):
        with outage():
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

    def test_refused(self):
        self.check(self.door.shut)

class WholeGpuTest(PlacementCase):
    """GPUs in passthrough mode, whose users only Placement knows."""

    machine = 'mixed'
    overrides = {'gpu': {'policies': 'one', 'clean_whole_gpus': True},
                 'gpu_policy:one': {'mode': 'passthrough'}}

    def start(self, **overrides):
        test_mig.OneGpuCase.start(self, **overrides)
        self.watch_log()

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

    def come_back(self):
        self.cloud.agent._rt.conductor_api = self.back

    def give_all_back(self):
        for server in (self.going, self.staying):
            self.cloud.unbind(server)

    def test_what_is_bound_after_a_report_withdrew_it(self):
        self.give_all_back()
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
        self.come_back()
        self.report()
        self.assertEqual((3, 3), self.reserved()['2g.20gb'])
        self.cloud.placement.delete(f'/allocations/{uuid}')
        self.report()
        self.assertNotIn('2g.20gb', self.reserved())


class PlacementOfAllTest(PlacementCase):
    """The conductor does not reach Placement either: it refuses reports."""

class CloudTest(outages.OutageCase):
    """The cloud that ``[gpu] os_cloud`` names does not answer."""

    overrides = {**outages.OutageCase.overrides,
                 'gpu': {'policies': 'one', 'os_cloud': 'here',
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
        here.write_clouds(here=f'{self.door.url}/v3')
        self.end_agent()
        self.lines()
        self.cloud.report()
        self.assertEqual([], self.lines())

    def check(self):
        self.assert_said_once('Cannot read the accelerator requests')
        self.cloud.unbind(self.going)
        self.going = self.cloud.bind(self.goes)
        self.cloud.report()
        self.assertEqual([], self.lines())
        self.assert_both()

    def test_cyborgs_api_refuses(self):
        self.busy = True
        self.check()
        self.busy = False
        self.cloud.unbind(self.going)
        self.assert_all_right()
