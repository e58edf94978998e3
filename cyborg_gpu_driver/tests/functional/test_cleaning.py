# SPDX-License-Identifier: Apache-2.0

"""The next tenant of a whole GPU, and of a slice, on the released services."""

import logging
import os

import fixtures
import pynvml

from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.functional import test_modes
from demo_lib import client
from demo_lib import nova_part


class WholeTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    machine = 'mixed'
    gpu = test_modes.H100
    overrides = {'gpu': {'policies': 'whole'},
                 'gpu_policy:whole': {'mode': 'passthrough',
                                      'match_address': test_modes.H100}}

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            'cyborg_gpu_driver', level=logging.INFO, nuke_handlers=False))
        self.whole = self.profile('PGPU')

    def faults(self):
        """Return the faults of the machine that the driver works on."""
        return pynvml.nvmlLib.machine.faults

    def resets(self):
        """Return how often the GPU was reset."""
        if not os.path.exists(self.hardware_path):
            return 0
        return self.hardware().resets

    def inventory(self):
        """Return reserved and used of the GPU's provider."""
        name = self.name('passthrough')
        (item,) = self.cloud.placement.inventories(
            self.cloud.provider(name)['uuid']).values()
        (used,) = self.cloud.placement.usages(
            self.cloud.provider(name)['uuid']).values()
        return item['reserved'], used

    def whats(self):
        return [record.what for record in host_files.audit(self.state_path)]

    def assert_not_to_be_had(self):
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind,
                          self.whole)

    def test_it_is_not_to_be_had_before_it_was_reset(self):
        server = self.cloud.bind(self.whole)
        self.assertEqual((0, 1), self.inventory())
        self.report()
        self.assertEqual(gpu_cloud.USED, self.inventory())
        self.cloud.unbind(server)
        self.assertEqual((1, 0), self.inventory())
        self.assert_not_to_be_had()
        self.assertEqual(0, self.resets())
        self.report()
        self.assertEqual((0, 0), self.inventory())
        self.assertEqual(1, self.resets())
        self.assertEqual(self.untouched['placement'],
                         self.cloud.placement.snapshot())
        records = host_files.audit(self.state_path)
        self.assertEqual(['given', 'returned', 'cleaned'], self.whats())
        self.assertEqual({server.uuid},
                         {record.subject for record in records})
        again = self.cloud.bind(self.whole)
        self.report()
        self.cloud.unbind(again)
        self.report()
        self.assertEqual(2, self.resets())
        self.assertNotIn('may not have been reset', self.log.output)

    def test_its_allocation_can_be_written_again(self):
        # Nova does so when it evacuates the server or attaches a port.
        server = self.cloud.bind(self.whole)
        for _ in range(2):
            self.report()
            self.write_again(server)
        self.world.set_health(self.gpu, celsius=120)
        self.report()
        self.write_again(server)
        self.cloud.unbind(server)
        self.report()
        self.assertEqual((1, 0), self.inventory())

    def write_again(self, server):
        placement = self.cloud.placement
        found = placement.get(f'/allocations/{server.uuid}')
        placement.put(f'/allocations/{server.uuid}', {
            'allocations': {
                provider: {'resources': item['resources']}
                for provider, item in found['allocations'].items()},
            'project_id': client.PROJECT, 'user_id': client.USER,
            'consumer_generation': found['consumer_generation'],
            'consumer_type': 'INSTANCE'})

    def test_what_a_reset_does_not_cure_is_not_promised(self):
        server = self.cloud.bind(self.whole)
        self.report()
        self.world.set_health(self.gpu, celsius=120)
        self.cloud.unbind(server)
        self.cloud.report()
        self.assertEqual(1, self.resets())
        self.assertEqual((1, 0), self.inventory())
        self.world.set_health(self.gpu, celsius=31)
        for _ in range(10):
            self.cloud.report()
        # The agent repeats a failed attempt to bind the GPU after a minute;
        # another agent repeats it at once.
        self.end_agent()
        self.report()
        self.assertEqual((0, 0), self.inventory())
        self.assertEqual('vfio-pci', self.hardware().driver)

    def test_a_server_that_came_and_went_between_two_reports(self):
        self.cloud.unbind(self.cloud.bind(self.whole))
        self.report()
        self.assertEqual(1, self.resets())
        self.assertEqual((0, 0), self.inventory())
        self.assertEqual(['returned', 'cleaned'], self.whats())

    def test_a_server_that_lives_less_than_a_report(self):
        for number in range(1, 3):
            self.cloud.unbind(self.cloud.bind(self.whole))
            self.look_between()
            self.assertEqual((number, (0, 0)),
                             (self.resets(), self.inventory()))
        last = self.cloud.bind(self.whole)
        self.look_between()
        self.assertEqual(gpu_cloud.USED, self.inventory())
        self.cloud.unbind(last)
        self.report()
        self.assertEqual((0, 0), self.inventory())
        self.assertEqual('vfio-pci', self.hardware().driver)
        self.assertEqual(
            ['returned', 'cleaned'] * 2 + ['given', 'returned', 'cleaned'],
            self.whats())
        self.assertNotIn('may not have been reset', self.log.output)

    def test_a_gpu_that_is_busy_stays_reserved_until_it_is_not(self):
        server = self.cloud.bind(self.whole)
        self.world.attach_whole(self.gpu)
        self.report()
        # Its guest takes long to end.
        self.cloud.unbind(server)
        self.report()
        self.report()
        self.assertEqual((1, 0), self.inventory())
        self.assert_not_to_be_had()
        self.assertEqual(1, self.log.output.count('is not offered until'))
        self.assertEqual(0, self.resets())
        self.world.detach_whole(self.gpu)
        self.report()
        self.assertEqual((0, 0), self.inventory())
        # VFIO reset the GPU when the guest ended, the agent after that.
        self.assertEqual(2, self.resets())

    def test_placement_is_away(self):
        server = self.cloud.bind(self.whole)
        self.report()
        with self.no_placement():
            self.cloud.unbind(server)
            for _ in range(3):
                self.driver.discover()
        self.assertEqual((gpu_cloud.USED[0], 0), self.inventory())
        self.assertEqual(0, self.resets())
        self.report()
        self.assertEqual(((0, 0), 1), (self.inventory(), self.resets()))


class SliceTest(gpu_cloud.GpuTestCase):

    overrides = {
        'gpu': {'policies': 'one'},
        'gpu_policy:one': {'mode': 'mig', 'match_address':
                           gpu_cloud.GpuTestCase.gpu,
                           'profiles': '3g.40gb'}}

    def test_each_tenant_has_an_instance_of_its_own(self):
        profile = self.profile('CUSTOM_NVIDIA_3G_40GB')
        serials = set()
        for _ in range(2):
            server = self.cloud.bind(profile)
            (instance,) = self.hardware().instances.values()
            serials.add(instance.serial)
            self.cloud.unbind(server)
        self.assertEqual(2, len(serials))
        records = host_files.audit(self.state_path)
        self.assertEqual(['bound', 'unbound'] * 2,
                         [record.what for record in records])
        first = records[0]
        self.assertEqual(self.gpu, str(first.gpu))
        self.assertEqual(records[1].subject, first.subject)
        self.assertEqual('3g.40gb', first.evidence['profile'])
        self.assertIsNotNone(first.evidence['gpu_instance_id'])
        ended = dict(records[1].evidence)
        self.assertLessEqual(first.evidence['since'], ended.pop('until'))
        self.assertEqual(first.evidence, ended)
