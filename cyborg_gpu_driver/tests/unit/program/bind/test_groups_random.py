# SPDX-License-Identifier: Apache-2.0

"""Random operations on groups of GPUs. CYBORG_GPU_SEED repeats a run."""

import os
import random

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.program.bind import group_case
from cyborg_gpu_driver.tests.unit.program.bind import test_groups

_COUNT = scope.examples(60)
_SEED = int(os.environ.get('CYBORG_GPU_SEED')
            or (random.randrange(1 << 32) if scope.ALL else 20261127))
_NVLINK_ERROR = -10


class RandomTest(group_case.GroupCase):

    def setUp(self):
        super().setUp()
        self.random = random.Random(_SEED)
        self.bound = {}
        """The handle of each group that a server has, by its modules."""
        self.guests = set()
        self.log = []

    def test_random_operations(self):
        operations = (self.try_bind, self.try_bind, self.try_bind,
                      self.try_unbind, self.try_unbind, self.start_guest,
                      self.end_guests, self.restart_agent, self.restart_host,
                      self.restart_fabric_manager, self.miss_fabric_manager,
                      self.fail_bind, self.fail_unbind)
        for _ in range(_COUNT):
            operation = self.random.choice(operations)
            self.log.append(operation.__name__)
            operation()
            try:
                self.assert_owned()
                self.report()
                self.report()
                self.assert_sound()
                self.assert_offered()
            except Exception as error:
                raise AssertionError(
                    f'CYBORG_GPU_SEED={_SEED}: {self.log}') from error

    # What must hold

    def assert_owned(self):
        """Assert that each active partition has an owner before a report."""
        self.assertLessEqual(set(self.world.active_partitions), {
            entry.fabric_partition for entry in self.records.claims()})

    def assert_offered(self):
        """Assert that servers keep their groups and the rest is free."""
        self.assertEqual(
            {handle[2] for handle in self.bound.values()},
            {entry.handle for entry in self.records.claims()})
        taken = {module for group in self.bound for module in group}
        self.assertEqual({group for group in test_groups.GROUPS
                          if not taken & set(group)}, self.free())

    # What happens

    def try_bind(self):
        group = self.any_group()
        handle = self.handle(*group)
        taken = {module for other in self.bound for module in other}
        if group in self.bound or not taken & set(group):
            self.running.binder.bind(*handle)
            self.bound[group] = handle
        else:
            self.assertRaises(exception.BindRefused,
                              self.running.binder.bind, *handle)

    def try_unbind(self):
        for group in self.some_group():
            self.log.append(group)
            self.end_guest(group)
            self.running.binder.unbind(*self.bound.pop(group))

    def start_guest(self):
        for group in self.some_group():
            self.log.append(group)
            if group not in self.guests:
                self.guests.add(group)
                for address in self.offer(*group).members:
                    self.world.attach_whole(str(address))

    def end_guests(self):
        for group in tuple(self.guests):
            self.end_guest(group)

    def restart_agent(self):
        self.begin()

    def restart_host(self):
        self.guests.clear()
        self.world.reboot()
        self.begin()

    def restart_fabric_manager(self):
        """Restart it, so that NVLinks stay up while guests run."""
        again = bool(self.guests) or self.random.random() < 0.5
        self.world.stop_fabric_manager()
        self.world.start_fabric_manager(restart=again)

    def miss_fabric_manager(self):
        """Bind or unbind while the fabric manager is stopped."""
        self.world.stop_fabric_manager()
        group = self.any_group()
        taken = {module for other in self.bound for module in other}
        if not taken & set(group):
            self.assertRaises(exception.FabricError, self.bind, *group)
        else:
            for other in self.some_group():
                self.end_guest(other)
                self.assertRaises(
                    exception.FabricError, self.running.binder.unbind,
                    *self.bound.pop(other))
        self.report()
        self.world.start_fabric_manager(restart=True)

    def fail_bind(self):
        group = self.any_group()
        taken = {module for other in self.bound for module in other}
        if not taken & set(group):
            self.world.faults.fail(
                'fmActivateFabricPartition', _NVLINK_ERROR,
                after=self.random.random() < 0.5)
            self.assertRaises(exception.FabricError, self.bind, *group)

    def fail_unbind(self):
        for group in self.some_group():
            self.log.append(group)
            self.end_guest(group)
            self.world.faults.fail('fmDeactivateFabricPartition',
                                   _NVLINK_ERROR,
                                   after=self.random.random() < 0.5)
            self.assertRaises(exception.FabricError,
                              self.running.binder.unbind,
                              *self.bound.pop(group))
            self.assertEqual({gpu_record.Phase.UNBINDING}, {
                entry.phase for entry in self.records.claims()
                if entry.phase is not gpu_record.Phase.BOUND})

    def any_group(self):
        group = self.random.choice(test_groups.GROUPS)
        self.log.append(group)
        return group

    def some_group(self):
        return self.random.sample(sorted(self.bound),
                                  min(1, len(self.bound)))

    def end_guest(self, group):
        if group in self.guests:
            self.guests.discard(group)
            for address in self.offer(*group).members:
                self.world.detach_whole(str(address))
