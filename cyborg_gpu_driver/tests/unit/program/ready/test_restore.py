# SPDX-License-Identifier: Apache-2.0

"""After a reboot, a restore brings back all binds, on each framework."""

import dataclasses
import errno

import fixtures
import testscenarios

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.program.steps import executor
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.program import nodes
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

load_tests = testscenarios.load_tests_apply_scenarios

_EQUAL = model.SchedulerPolicy.EQUAL_SHARE
_MIG = policy.Policy('p', policy.Mode.MIG)


class RestoreCase(binder_case.BinderCase):
    """A GPU with some binds, on a machine that reboots."""

    def setUp(self):
        super().setUp()
        self.claims = ''
        self.cloud.claimed = lambda _: self.claims
        self.make_ready()
        self.restart()

    def settings(self):
        return policies.Settings(policies=(self.policy,))

    def make_ready(self):
        outcome = nodes.Node(
            privileged.machine(), self.state_path, self.settings(),
            self.cloud).preparer.prepare(
                self.live.gpu(self.address))
        self.assertEqual('', outcome.reason)

    def bind(self, *profiles):
        for number, profile in enumerate(profiles):
            self.binder.bind(*self.handle(profile, number))

    def on_gpu(self):
        """Return all that a reboot takes from the GPU, without ids."""
        with self.machine.operation():
            state = self.machine.gpu(self.gpu).state
            places = {number: (item.profile_id, item.start)
                      for number, item in state.instances.items()}
            return (state.mig, state.vfs, sorted(places.values()), sorted(
                (vgpu.function, vgpu.type_id, vgpu.uuid or '',
                 places.get(vgpu.instance),
                 vgpu.placement if state.heterogeneous else None)
                for vgpu in state.vgpus))

    def reboot(self):
        self.machine.reboot()
        self.restart()

    def restore(self, saved=None):
        """Restore as the unit does at boot. Return what was done, in words."""
        done = []
        nodes.Node(
            privileged.machine(), self.state_path, self.settings(),
            self.cloud).preparer.restore(
                self.live.refresh().gpu(self.address), saved, done)
        self.live.refresh()
        return done

    def assert_back_after_a_reboot(self):
        before = self.on_gpu()
        self.assertTrue(before[3])
        self.reboot()
        self.assertEqual([], self.on_gpu()[3])
        self.assertTrue(self.restore())
        self.assertEqual(before, self.on_gpu())
        ids = {item.placement: item.instance_id for item in (
            self.live.gpu(self.address).mig.instances
            if self.live.gpu(self.address).mig else ())}
        for entry in self.records.claims():
            self.assertEqual(ids.get(entry.placement), entry.instance_id)
        self.assertEqual([], self.restore())
        self.assertEqual(before, self.on_gpu())


class RebootTest(RestoreCase):

    scenarios = [(name, {'machine': machine, 'gpu': gpu, 'profiles': profiles,
                         'policy': policy.Policy('p', mode, **options)})
                 for name, machine, gpu, profiles, mode, options in (
        ('Turing', 't4x4', '0000:3b:00.0', ('T4-4C', 'T4-4C'),
         policy.Mode.VGPU, {'vgpu_types': ('T4-4C',)}),
        ('mdev slices', 'dgx-a100-40', '0000:07:00.0',
         ('1g.5gb', '1g.5gb', '3g.20gb'), policy.Mode.MIG, {}),
        ('vendor VFIO', 'l40sx4', '0000:16:00.0', ('L40S-12Q',) * 3,
         policy.Mode.VGPU, {'vgpu_types': ('L40S-12Q',)}),
        ('vendor VFIO slices', 'a100x4-vfio', '0000:31:00.0',
         ('1g.10gb', '2g.20gb', '1g.10gb', '2g.20gb'), policy.Mode.MIG, {}))]

    def test_reboot(self):
        self.bind(*self.profiles)
        self.binder.unbind(*self.handle(self.profiles[0], 0))
        self.assert_back_after_a_reboot()


class MdevTest(RestoreCase):
    """Ampere: a MIG mode that stays, and mdevs on virtual functions."""

    machine = 'dgx-a100-40'
    policy = _MIG

    def test_one_that_fails_costs_no_other(self):
        self.bind('1g.5gb', '1g.5gb', '3g.20gb')
        before = self.on_gpu()
        self.reboot()
        self.machine.faults.fail_write('*/create', errno.EIO, nth=2)
        error = self.assertRaises(exception.ChangeFailed, self.restore)
        self.assertIn('create', str(error))
        self.assertEqual(2, len(self.on_gpu()[3]))
        self.restore()
        # The NVIDIA driver put the third vGPU on the idle instance of the
        # second one.
        self.assertEqual([vgpu[:3] for vgpu in before[3]],
                         [vgpu[:3] for vgpu in self.on_gpu()[3]])
        self.assertEqual(before[:3], self.on_gpu()[:3])

    def test_an_instance_of_another_tool_is_not_taken(self):
        self.bind('1g.5gb', '3g.20gb')
        before = self.records.claims()
        entry = next(entry for entry in before if entry.placement.size == 1)
        self.reboot()
        self.machine.sriov_manage(self.gpu)
        there = entry.profile_id, entry.placement.start
        self.stranger(*there, entry.placement.size)
        error = self.assertRaises(exception.ChangeFailed, self.restore)
        self.assertIn('another tool has created GPU instance', str(error))
        # The other server has its own back.
        self.assertIn(entry, self.records.claims())
        self.assertEqual(1, len(self.truth()[1]))
        self.binder.unbind(str(entry.function), entry.mdev_type,
                           entry.handle)
        self.assertIn(there, self.truth()[0])

    def test_an_instance_that_another_tool_creates_meanwhile(self):
        self.bind('1g.5gb')
        (entry,) = self.records.claims()
        self.reboot()

        def take(_seconds):
            self.machine.faults.clear()
            self.stranger(entry.profile_id, entry.placement.start, 1)

        self.machine.faults.delay('nvmlDeviceCreateGpuInstanceWithPlacement',
                                  1, sleep=take)
        self.assertRaises(exception.ChangeFailed, self.restore)
        self.assertEqual((entry,), self.records.claims())
        self.binder.unbind(str(entry.function), entry.mdev_type,
                           entry.handle)
        self.assertEqual([(entry.profile_id, entry.placement.start)],
                         self.truth()[0])

    def test_a_restore_that_died_with_a_new_instance(self):
        self.bind('1g.5gb')
        before = self.on_gpu()
        self.reboot()
        take = executor.take

        def die(machine, address, *steps, **named):
            runner = take(machine, address, *steps, **named)
            if steps[0].action is change.Action.CREATE_INSTANCE:
                raise KeyboardInterrupt
            return runner

        with fixtures.MonkeyPatch(f'{executor.__name__}.take', die):
            self.assertRaises(KeyboardInterrupt, self.restore)
        self.restart()
        self.restore()
        self.assertEqual(before, self.on_gpu())

    def test_idle_layout_beside(self):
        self.bind('1g.5gb')
        self.stranger(9, 0, 4)
        self.live.refresh()
        saved = apply.saved(self.live.gpu(self.address),
                            store.of(self.state_path).read(
                                self.address), 'boot')
        before = self.on_gpu()
        self.reboot()
        self.restore(saved)
        self.assertEqual(before, self.on_gpu())
        self.assertEqual([], self.restore(saved))

    def test_a_layout_in_the_place_of_what_an_unbind_had(self):
        self.bind('1g.5gb')
        gpu, boot = self.live.refresh().gpu(self.address), self.boot()
        (entry,) = self.records.claims()
        (instance,) = gpu.mig.instances
        given_back = gpu_record.Phase.UNBINDING
        for changes, belongs_to_layout in (
                ({}, False), ({'phase': given_back}, False),
                ({'phase': given_back, 'boot': 'earlier'}, True),
                ({'phase': given_back, 'instance_id': 99}, True),
                ({'phase': given_back, 'instance_id': None}, False),
                ({'boot': 'earlier'}, False)):
            saved = apply.saved(gpu, gpu_record.GpuRecord(
                claims=(dataclasses.replace(entry, **changes),)), boot)
            self.assertEqual(
                [spec.of(instance)] if belongs_to_layout else [],
                [item.bare for item in saved.layout.instances], changes)

    def boot(self):
        return privileged.machine().boot_id()


class TimeSlicedTest(RestoreCase):

    machine = 'dgx-a100-40'
    policy = policy.Policy('p', policy.Mode.VGPU, vgpu_types=('A100X-8C',),
                           scheduler=_EQUAL)

    def scheduler(self):
        return self.live.gpu(self.address).scheduler.policy

    def test_reboot(self):
        self.bind('A100X-8C', 'A100X-8C')
        self.assert_back_after_a_reboot()
        self.assertIs(_EQUAL, self.scheduler())

    def test_a_scheduler_that_fails_keeps_no_guest_from_its_vgpu(self):
        self.bind('A100X-8C')
        before = self.on_gpu()
        self.reboot()
        self.machine.faults.fail('nvmlDeviceSetVgpuSchedulerState', 999)
        error = self.assertRaises(exception.ChangeFailed, self.restore)
        self.assertIn('scheduler', str(error))
        self.assertEqual(before, self.on_gpu())

    def test_policy_that_has_changed_meanwhile(self):
        self.bind('A100X-8C')
        before = self.on_gpu()
        self.policy = _MIG
        self.reboot()
        self.restore()
        self.assertEqual(before, self.on_gpu())


class MixedSizesTest(RestoreCase):

    machine = 'dgx-a100-40'
    policy = policy.Policy(
        'p', policy.Mode.VGPU, mixed_sizes=True,
        vgpu_types=('A100X-8C', 'A100X-20C', 'A100X-10C'))

    def test_reboot(self):
        self.bind('A100X-8C', 'A100X-20C', 'A100X-10C')
        self.assert_back_after_a_reboot()
        gpu = self.live.gpu(self.address)
        self.assertTrue(gpu.mixed_sizes)
        with self.machine.operation():
            names = [vgpu.uuid for vgpu
                     in self.machine.gpu(self.gpu).state.vgpus]
        for name in names:
            self.machine.start_guest(name)

    def test_placement_that_cannot_be_written_at_first(self):
        self.bind('A100X-8C', 'A100X-20C')
        before = self.on_gpu()
        self.reboot()
        self.machine.faults.fail_write('*/vgpu_params', errno.EIO)
        self.assertRaises(exception.ChangeFailed, self.restore)
        self.assertEqual(1, len(self.on_gpu()[3]))
        self.assertTrue(self.restore())
        self.assertEqual(before, self.on_gpu())

    def test_policy_that_has_changed_meanwhile(self):
        self.bind('A100X-8C', 'A100X-20C')
        self.policy = dataclasses.replace(
            self.policy, mixed_sizes=False,
            scheduler=model.SchedulerPolicy.FIXED_SHARE)
        self.assert_back_after_a_reboot()


class VendorVfioTest(RestoreCase):

    machine = 'l40sx4'
    gpu = '0000:16:00.0'
    policy = policy.Policy('p', policy.Mode.VGPU, vgpu_types=('L40S-12Q',))

    def test_function_that_somebody_else_has_taken(self):
        self.bind('L40S-12Q')
        (entry,) = self.records.claims()
        self.reboot()
        self.machine.sriov_manage(self.gpu)
        privileged.machine().sysfs.write(
            '1165', 'bus', 'pci', 'devices', str(entry.function), 'nvidia',
            'current_vgpu_type')
        before = self.on_gpu()
        error = self.assertRaises(exception.ChangeFailed, self.restore)
        self.assertIn('there is a vGPU of type nvidia-1165', str(error))
        self.assertEqual(before, self.on_gpu())


class SharedTest(RestoreCase):
    """Several vGPUs on an instance; a reboot turns MIG mode off."""

    machine = 'rtxpro6000x8'
    gpu = '0000:16:00.0'
    policy = policy.Policy('p', policy.Mode.MIG,
                           vgpu_types=('DC-1-8Q', 'DC-1-24Q'),
                           scheduler=_EQUAL, time_slice=3_000_000)

    def assert_scheduled(self, number=2):
        """Assert that each instance has the scheduler of the policy."""
        instances = self.live.refresh().gpu(self.address).mig.instances
        self.assertEqual(
            [(_EQUAL, 3_000_000)] * number,
            [(item.scheduler.policy, item.scheduler.time_slice)
             for item in instances])

    def test_reboot(self):
        self.bind(*['DC-1-8Q'] * 5)
        self.assertEqual(2, len(self.on_gpu()[2]))
        self.assert_scheduled()
        self.assert_back_after_a_reboot()
        self.assert_scheduled()

    def test_a_scheduler_that_fails_keeps_no_guest_from_its_vgpu(self):
        self.bind('DC-1-8Q')
        before = self.on_gpu()
        self.reboot()
        self.machine.faults.fail('nvmlGpuInstanceSetVgpuSchedulerState',
                                 999)
        self.restore()
        self.assertEqual(before, self.on_gpu())
        # The agent sets the scheduler while no guest runs.
        self.make_ready()
        self.assert_scheduled(1)

    def test_what_was_on_an_instance_of_somebody_else(self):
        self.stranger(47, 0, 3)
        self.live.refresh()
        self.bind(*['DC-1-8Q'] * 4)
        before = self.on_gpu()
        self.assertIn((47, 0), {vgpu[3] for vgpu in before[3]})
        self.reboot()
        self.assertTrue(self.restore())
        self.assertEqual([vgpu[:3] for vgpu in before[3]],
                         [vgpu[:3] for vgpu in self.on_gpu()[3]])
        self.assertEqual([], self.restore())


class FixedTest(RestoreCase):

    machine = 'rtxpro6000x8'
    gpu = '0000:16:00.0'
    policy = policy.Policy('p', policy.Mode.MIG, fixed_vgpus=(
        ('DC-1-8Q', 4), ('DC-1-24Q', 1)), scheduler=_EQUAL)

    def test_reboot(self):
        self.assert_back_after_a_reboot()
        instances = self.live.gpu(self.address).mig.instances
        self.assertEqual({_EQUAL}, {item.scheduler.policy
                                    for item in instances})


class ReadinessTest(RestoreCase):
    """What only the policy asks for."""

    machine = 'dgx-a100-40'
    policy = _MIG

    def test_functions_come_before_the_checkpoints_instances(self):
        saved = gpu_record.SavedLayout(
            self.address, '20b0', False, spec.MigLayout(
                True, True,
                (spec.MigInstanceSpec(model.Placement(0, 4), 9),)))
        self.reboot()
        self.restore(saved)
        self.assertEqual((True, 16, [(9, 0)], []), self.on_gpu())

    def test_instances_keep_functions_from_being_made(self):
        self.machine.sriov_manage(self.gpu, False)
        self.stranger(9, 0, 4)
        self.assertEqual([], self.restore())
        self.assertEqual((True, 0, [(9, 0)], []), self.on_gpu())

    def test_server_that_is_shut_off(self):
        self.policy = policy.Policy('p', policy.Mode.PASSTHROUGH)
        self.claims = 'it was last reported as a whole'
        self.assertEqual([], self.restore())
        self.claims = ''
        self.assertEqual(['disable virtual functions', 'turn MIG mode off'],
                         self.restore())

    def test_what_is_bound_and_blocked_is_refused(self):
        self.bind('1g.5gb')
        self.reboot()
        self.machine.add_process(self.gpu, 4711)
        error = self.assertRaises(exception.ChangeRefused, self.restore)
        self.assertIn('4711', str(error))

    def test_unbinding_is_not_brought_back(self):
        self.bind('1g.5gb')
        (entry,) = self.records.claims()
        self.records.put_claims(dataclasses.replace(
            entry, phase=gpu_record.Phase.UNBINDING))
        self.reboot()
        self.restore()
        self.assertEqual([], self.on_gpu()[3])

    def change_killed(self):
        """Let a process die after it has created an instance of 2g.10gb."""
        transactions = self.node.transactions
        now = transactions.read(self.live.gpu(self.address))
        step = change.Step(change.Action.CREATE_INSTANCE,
                           spec.profile(now, 14), model.Placement(4, 2))

        def die(_gpu):
            raise KeyboardInterrupt

        self.assertRaises(KeyboardInterrupt, transactions.run, now, (step,),
                          die)

    def test_reboot_in_the_middle_of_a_change(self):
        """No instance from before the reboot blocks virtual functions."""
        self.bind('1g.5gb')
        before = self.on_gpu()
        self.change_killed()
        self.reboot()
        self.assertIn('roll back an interrupted change', self.restore())
        self.assertEqual(before, self.on_gpu())
        self.assertEqual([], self.restore())
