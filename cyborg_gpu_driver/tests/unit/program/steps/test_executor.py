# SPDX-License-Identifier: Apache-2.0

"""GPU instances that the driver puts elsewhere or another tool creates."""

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.tests.unit.program import layouts

_ID = 19
"""Profile id of 1g.10gb."""


class PlacementTest(layouts.LayoutCase):

    def test_an_instance_that_the_driver_puts_elsewhere_is_destroyed(self):
        self.apply()
        now = self.transactions.read(self.gpu)
        real = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement

        def shifted(device, profile_id, placement):
            placement._obj.start += 1
            return real(device, profile_id, placement)

        self.useFixture(fixtures.MonkeyPatch(
            'pynvml.nvmlDeviceCreateGpuInstanceWithPlacement', shifted))
        runner = executor.Executor(self.platform, self.address, now)
        error = self.assertRaises(
            exception.StepFailed, runner.take, change.Step(
                change.Action.CREATE_INSTANCE, now.mig.profile_by_id(_ID),
                model.Placement(2, 1)))
        self.assertIn('the driver put it at 3:1', str(error))
        self.assertEqual((True, True, []), self.truth())

    def test_an_instance_whose_compute_instance_is_gone_is_destroyed(self):
        self.apply(_1g_10gb=1)
        now = self.transactions.read(self.gpu)
        instance, = now.mig.instances
        part, = instance.compute
        privileged.destroy_compute_instance(
            str(self.address), instance.instance_id, part.compute_id)
        executor.Executor(self.platform, self.address, now).take(change.Step(
            change.Action.DESTROY_INSTANCE,
            now.mig.profile_by_id(instance.profile_id), instance.placement))
        self.assertEqual((True, True, []), self.truth())

    def finish(self):
        with self.transactions.lock(self.address):
            return self.transactions.finish(self.gpu)

    def test_after_a_reboot_a_rollback_leaves_the_instances(self):
        self.apply()
        lost = spec.MigInstanceSpec(model.Placement(0, 1), _ID)
        interrupted = gpu_record.Change(
            self.address, spec.MigLayout(True, True, (lost,)),
            touched=(lost,), boot='an earlier one')
        self.records.put(self.address, change=interrupted)
        self.machine.faults.fail('nvmlDeviceCreate*', 999)
        self.assertRaises(exception.ChangeFailed, self.apply, _1g_10gb=1)
        self.assertEqual((True, True, []), self.truth())
        self.assertIsNone(self.change_record())
        self.records.put(self.address, change=interrupted)
        privileged.create_gpu_instance(str(self.address), _ID, 0, 1)
        self.assertTrue(self.finish())
        self.assertEqual((True, True, [(0, 1, _ID, [])]), self.truth())

    def test_no_rollback_while_a_step_may_go_on(self):
        self.apply()
        self.machine.faults.fail('nvmlDeviceCreate*', 999)
        with (fixtures.MonkeyPatch('cyborg_gpu_driver.program.privileged.gpu.'
                                   '_LATE_SECONDS', 0.0),
              privsep._noted('create', str(self.address))):
            self.assertRaises(exception.ChangeFailed, self.apply, _1g_10gb=1)
        self.assertIn('create', self.change_record().problem)
        self.assertTrue(self.finish())

    def test_a_stranger_at_the_place_survives_a_rollback(self):
        self.apply()

        plan = self.applier.plan

        def decide(*arguments):
            planned = plan(*arguments)
            self.stranger = planned.create[-1].placement
            privileged.create_gpu_instance(
                str(self.address), _ID, self.stranger.start,
                self.stranger.size)
            return planned

        self.applier.plan = decide
        error = self.assertRaises(exception.ChangeFailed, self.apply,
                                  _1g_10gb=7)
        self.assertIn('the GPU is as it was before', str(error))
        self.assertEqual(
            [(self.stranger.start, self.stranger.size, _ID, [])],
            self.truth()[2])
