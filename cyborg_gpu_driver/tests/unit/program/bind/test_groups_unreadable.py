# SPDX-License-Identifier: Apache-2.0

"""Groups of GPUs while the record of one GPU cannot be read."""

import dataclasses
import os
import uuid

import fixtures

from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests import unreadable
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.program.bind import group_case


class UnreadableCase(group_case.GroupCase):

    def unreadable(self, address):
        """Make a record unreadable."""
        return unreadable.file(store.of(self.state_path).path(address))

    def offers(self):
        """The offers of the GPUs whose records can be read."""
        return [offer for gpu in self.running.live.host().gpus
                if self.records.has_claims(gpu.address) is not None
                for offer in self.running.live.offers(gpu)]


class SwitchTest(UnreadableCase):

    def test_the_fabric_manager_gets_no_list_without_its_claims(self):
        log = self.useFixture(fixtures.FakeLogger())
        for modules in ((1,), (5, 7)):
            self.bind(*modules)
            members = self.offer(*modules).members
            for address in members:
                self.world.attach_whole(str(address))
            for address in members:
                with self.unreadable(address):
                    self.report()
                    self.world.stop_fabric_manager()
                    self.world.start_fabric_manager(restart=True)
                    for _ in range(2):
                        self.report()
                    self.assertEqual((), self.world.damage)
                    self.assertEqual(1, log.output.count(
                        'no list of the active partitions, because not all '
                        'claims of this host are known: record '
                        + store.of(self.state_path).path(address)))
                self.report()
                self.assert_sound()

    def test_what_nvlink_connects_stays_known(self):
        groups = self.free()
        for restarts in (False, True):
            address = self.offer(1, 3).gpu
            before = self.records.peek(address).nvlink
            with self.unreadable(address):
                if restarts:
                    self.begin()
                for _ in range(2):
                    self.report()
                self.assertEqual({group for group in groups
                                  if 1 not in group}, self.free())
            if restarts:
                # The process has found the GPU unprepared, and waits before
                # it tries again.
                self.begin()
            self.report()
            self.assertEqual(before, self.records.peek(address).nvlink)
            self.assertEqual(groups, self.free())
            self.running.binder.unbind(*self.bind(1, 3))
            # The first report removes the group, and the second prepares it.
            for _ in range(2):
                self.report()


class BridgeTest(UnreadableCase):

    host = 'h100nvlx2'

    def modules(self, offer):
        return tuple(map(str, offer.members))

    def test_a_pair_stays_reported(self):
        pair = ('0000:17:00.0', '0000:65:00.0')
        for restarts in (False, True):
            with self.unreadable(pair[1]):
                if restarts:
                    self.begin()
                for _ in range(2):
                    self.report()
                self.assertEqual({(pair[0],)}, self.free())
                self.assertEqual('', self.offer(*pair).problem)
            self.report()
            self.assertIn(pair, self.free())

    def test_a_pair_whose_other_gpu_has_left_is_withdrawn(self):
        pair = ('0000:17:00.0', '0000:65:00.0')
        self.options = {**self.options, 'match_address': pair[:1]}
        for _ in range(2):
            self.begin()
            self.assertEqual({(pair[0],)}, self.free())
            self.assertEqual([(pair[0],)], list(map(self.modules,
                                                    self.offers())))

    def test_a_new_bridge_replaces_a_pair(self):
        # What was true until the bridges were moved.
        one, other, third, fourth = (
            self.address(f'0000:{bus}:00.0') for bus in (17, 34, 65, 82))
        self.gpu_options = {
            'simulate': host_files.write_host(self.directory, [
                {'model': 'h100-nvl', 'address': str(gpu), 'numa_node': 0,
                 'nvlink': [str(peer)] * 12}
                for gpu, peer in ((one, third), (third, one),
                                  (other, fourth), (fourth, other))]),
            'simulate_state': os.path.join(self.directory, 'other.json')}
        self.begin()
        former = nvlink.Group((one, other))
        self.records.observe(one, nvlink=dataclasses.replace(
            self.records.peek(one).nvlink, groups=(former,)))
        with self.unreadable(other):
            self.report()
            self.assertIn(nvlink.Group((one, third)),
                          self.records.peek(one).nvlink.groups)
            self.assertNotIn(former, self.records.peek(one).nvlink.groups)


class RebuiltTest(group_case.GroupCase):

    gpu_options = {'simulate': 'hgx-h100-vfio'}
    options = {'mode': 'vgpu', 'vgpu_types': ['H100XM-80C']}

    def test_the_partition_is_known_as_soon_as_the_claim(self):
        offer = self.offers()[0]
        handle = str(uuid.uuid4())
        self.running.binder.bind(str(offer.parents[0]), offer.vgpu_type_id,
                                 handle)
        (before,) = self.records.claims()
        self.assertIsNotNone(before.fabric_partition)
        host_files.damage(self.state_path, before.gpu)
        self.running.reconciler._rebuilder._cloud.requests = (
            lambda: reconcile.Requests((reconcile.Request(
                handle, 'arq', None, before.function, before.mdev_type),)))
        self.report()
        (after,) = store.of(self.state_path).read(before.gpu).claims
        self.assertEqual(before.fabric_partition, after.fabric_partition)
