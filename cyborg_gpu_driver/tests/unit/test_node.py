# SPDX-License-Identifier: Apache-2.0

"""What Placement should have of a host's GPUs, according to its node."""

import dataclasses
import json
import re
from unittest import mock

import fixtures
import pynvml
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.program.bind import binder_case


class InventoriesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[])
        conf.set_override('simulate', 'a30x4', group='gpu')
        conf.set_override('state_path',
                          self.useFixture(fixtures.TempDir()).path,
                          group='gpu')
        self.conf = conf
        self.node = node.Node(conf, hostname='host1')
        self.gpu, self.other, *_ = (
            gpu.address for gpu in self.node.live.host().gpus)
        self.addCleanup(pynvml.nvmlLib.machine.uninstall)

    def test_what_drains_is_left_out(self):
        first, *others = self.node.inventories(self.gpu)
        self.node.draining = frozenset({first.provider})
        self.assertEqual(tuple(others), self.node.inventories(self.gpu))

    def test_what_gets_other_handles_is_withdrawn_until_the_report(self):
        """Cyborg still has the former handles, which no bind accepts."""
        first = self.node.inventories(self.gpu)
        self.report()
        self.assertEqual(frozenset(), self.node.withdrawn())
        self.node = node.Node(self.conf, policies.Settings(policies=(
            policy.Policy('p', policy.Mode.MIG, profiles=('2g.12gb',)),)),
            'host1')
        (changed,) = self.node.inventories(self.gpu)
        self.assertIn(changed.provider, [item.provider for item in first])
        self.assertIn(changed.provider, self.node.withdrawn())
        self.report()
        self.assertNotIn(changed.provider, self.node.withdrawn())
        # Its other profiles stay withdrawn.
        self.assertLessEqual({item.provider for item in first} - {
            changed.provider}, self.node.withdrawn())

    def report(self):
        """Report as the agent does."""
        host = self.node.live.host()
        self.node.withdrawal.decide(
            host, self.node.servable, (), ())

    def test_all_of_an_unhealthy_gpu_is_reserved(self):
        self.node.health.event(condition.Event(self.gpu, 79))
        self.assert_reserved(self.gpu)

    def test_all_of_a_gpu_that_cannot_be_read_is_reserved(self):
        # Another process, which has no answers from before.
        self.node = node.Node(self.conf, hostname='host1')
        self.assertTrue(self.node.platform)
        machine = pynvml.nvmlLib.machine
        self.addCleanup(machine.uninstall)
        machine.faults.fail('nvmlDeviceGetName', pynvml.NVML_ERROR_UNKNOWN,
                            times=None, address=str(self.gpu))
        self.assertTrue(self.node.inventories(self.gpu))
        self.assert_reserved(self.gpu)

    def test_all_of_a_cordoned_gpu_is_reserved(self):
        self.node.cordons.note_disabled(frozenset({self.gpu}))
        self.assert_reserved(self.gpu)
        self.node.cordons.add(self.gpu, 'root', 'a fan')
        self.node.cordons.note_disabled(frozenset())
        self.assert_reserved(self.gpu)
        self.node.cordons.lift(self.gpu)
        self.assert_reserved(None)

    def test_a_bind_holds_the_whole_gpu_back(self):
        self.node = node.Node(self.conf, policies.Settings(policies=(
            policy.Policy('p', policy.Mode.AUTO, roles=(
                policy.Mode.MIG, policy.Mode.PASSTHROUGH)),)), 'host1')
        offers = [dataclasses.replace(item, creatable=1) for item
                  in self.node.live.offers(self.node.live.gpu(self.gpu))]

        def reserved():
            return [item.reserved for item in self.node.promised(
                self.gpu, offers, {}, False)
                if item.resource_class == 'PGPU']

        self.assertEqual([0], reserved())
        with self.node.turns.partitioning(self.gpu):
            self.assertEqual([1], reserved())

    def test_the_api_of_cyborg_shows_the_cordons(self):
        known = self.node.cordons.add(self.gpu, 'root', 'a fan')
        for address in (self.gpu, self.other):
            gpu = self.node.live.gpu(address)
            info = json.loads(self.node.device(
                gpu, self.node.servable(gpu)).vendor_board_info)
            if address == self.gpu:
                self.assertEqual(known, cordon.of_json(info['cordons']))
            else:
                self.assertNotIn('cordons', info)

    def assert_reserved(self, address):
        for gpu in (self.gpu, self.other):
            for item in self.node.inventories(gpu):
                self.assertEqual(item.total if gpu == address else 0,
                                 item.reserved)

    def test_without_a_cloud_nothing_is_asked(self):
        self.assertIsNone(self.node.requests())
        self.assertIsNone(self.node.usages({}))
        self.assertEqual('', self.node.claimed(self.gpu))
        self.assertEqual((), self.node.reconciler.find())
        error = self.assertRaises(exception.HostUnusable, getattr,
                                  self.node, 'reserved_writer')
        self.assertIn('Placement', str(error))


class DuringBindTest(binder_case.BinderCase):
    """What Placement is told while a bind runs, whose server it counts."""

    profile = '1g.5gb'

    def test_placement_offers_what_is_left(self):
        left = self.creatable()[self.profile]
        for bound in range(left):
            left -= 1
            self.assertEqual({left}, self.offered(bound))

    def offered(self, bound):
        """Bind one more; what Placement offers after each of its changes."""
        found = set()

        def tell(method):
            def call(*arguments):
                answer = method(*arguments)
                (item,) = (item for item in self.node.inventories(self.address)
                           if item.resource_class.endswith(
                               re.sub('[.-]', '_', self.profile.upper())))
                found.add(item.total - item.reserved - bound - 1)
                return answer
            return call

        with (mock.patch.object(self.records, 'put_claims',
                                tell(self.records.put_claims)),
              mock.patch.object(self.live, 'refresh_gpu',
                                tell(self.live.refresh_gpu))):
            self.binder.bind(*self.handle(self.profile, bound))
        return found


class DuringVfioBindTest(DuringBindTest):

    machine, gpu, profile = 'a100x4-vfio', '0000:31:00.0', '1g.10gb'


class DuringTimeSlicedBindTest(DuringBindTest):

    machine, gpu, profile = 't4x4', '0000:3b:00.0', 'T4-4C'
    policy = policy.Policy('p', policy.Mode.VGPU, vgpu_types=('T4-4C',))
