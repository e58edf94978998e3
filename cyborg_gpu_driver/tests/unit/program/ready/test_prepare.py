# SPDX-License-Identifier: Apache-2.0

"""Making GPUs ready: which steps, in which order, and when none."""

import contextlib
import dataclasses
import errno
import os

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.steps import vfio
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.program.ready import ready_case

_UUID = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_EQUAL = model.SchedulerPolicy.EQUAL_SHARE
_BUSY = pynvml.NVML_ERROR_IN_USE


class StepsTest(ready_case.ReadyCase):

    def test_mig_on_ampere_takes_a_reset_before_the_functions(self):
        self.govern('mig')
        self.assertEqual(['ENABLE_MIG', 'ENABLE_FUNCTIONS'], self.steps())
        self.assertEqual((True, 20), self.is_now())
        self.assertEqual([], self.steps())

    def test_functions_go_where_the_mode_has_to_change(self):
        self.machine.sriov_manage(str(self.address))
        self.govern('mig')
        self.assertEqual(['DISABLE_FUNCTIONS', 'ENABLE_MIG',
                          'ENABLE_FUNCTIONS'], self.steps())
        self.assertEqual((True, 20), self.is_now())
        self.govern('passthrough')
        self.assertEqual(['DISABLE_FUNCTIONS', 'DISABLE_MIG', 'BIND_VFIO'],
                         self.steps())
        self.assertEqual((False, 0), self.is_now())
        self.govern('vgpu', vgpu_types=('A100DX-8C',))
        self.assertEqual(['BIND_NVIDIA', 'ENABLE_FUNCTIONS'], self.steps())
        self.assertEqual((False, 20), self.is_now())

    def test_mixed_sizes_and_scheduler_come_after_the_functions(self):
        self.govern('vgpu', mixed_sizes=True, scheduler=_EQUAL,
                    time_slice=2000000)
        self.assertEqual(['ENABLE_FUNCTIONS', 'MIXED_ON', 'SCHEDULER'],
                         self.steps())
        gpu = self.gpu()
        self.assertTrue(gpu.mixed_sizes)
        self.assertEqual((_EQUAL, 2000000), (gpu.scheduler.policy,
                                             gpu.scheduler.time_slice))
        self.assertEqual([], self.steps())
        self.govern('vgpu')
        self.assertEqual(['MIXED_OFF'], self.steps())
        self.assertIs(False, self.gpu().mixed_sizes)

    def test_driver_that_takes_no_time_slice(self):
        """Drivers from 595 on always adapt it."""
        self.useFixture(fixtures.MonkeyPatch(
            'pynvml.nvmlSystemGetDriverVersion', lambda: '595.45.04'))
        self.govern('vgpu', scheduler=_EQUAL, time_slice=2000000)
        self.assertEqual(['ENABLE_FUNCTIONS', 'SCHEDULER'], self.steps())
        now = self.gpu().scheduler
        self.assertEqual((_EQUAL, None, True),
                         (now.policy, now.time_slice, now.adaptive))
        self.assertEqual([], self.steps())

    def test_scheduler_of_instances_that_vgpus_share(self):
        self.use('rtxpro6000x8')
        self.govern('mig')
        self.steps()
        for profile, start in ((47, 0), (14, 3), (47, 6)):
            self.platform.nvml.create_gpu_instance(
                self.platform.nvml.device(self.address), profile,
                model.Placement(start, 3))
        self.govern('mig', scheduler=_EQUAL, time_slice=2000000)
        outcome = self.prepare()
        self.assertEqual(
            ('set the vGPU scheduler of 1g.24gb+gfx at 0:3',
             'set the vGPU scheduler of 1g.24gb+gfx at 6:3'), outcome.done)
        self.assertEqual(
            [(_EQUAL, 2000000), None, (_EQUAL, 2000000)],
            [item.scheduler and (item.scheduler.policy,
                                 item.scheduler.time_slice)
             for item in self.gpu().mig.instances])
        self.assertEqual([], self.steps())

    def test_dead_functions_are_made_anew(self):
        self.use('l40sx4')
        self.govern('vgpu', vgpu_types=('L40S-12Q',))
        self.steps()
        gpu_health = self.preparer._health
        functions = {item.address for item in self.gpu().vfs[:2]}
        for function in functions:
            gpu_health.function_died(self.address, function)
        self.machine.add_process(str(self.address), 4711)
        self.assertIn('4711', self.prepare().reason)
        self.assertEqual(functions, gpu_health.dead_functions(self.address))
        self.machine.remove_process(4711)
        self.now += 3600
        self.assertEqual(['DISABLE_FUNCTIONS', 'ENABLE_FUNCTIONS'],
                         self.steps())
        self.assertEqual(set(), gpu_health.dead_functions(self.address))
        self.assertEqual([], self.steps())

    def test_dead_functions_of_a_gpu_that_is_not_prepared(self):
        self.use('l40sx4')
        self.machine.sriov_manage(str(self.address))
        self.settings = policies.Settings()
        self.start()
        self.preparer._health.function_died(
            self.address, self.gpu().vfs[0].address)
        self.assertEqual([], self.steps())

    def test_left_alone(self):
        with_policy = policies.Settings(policies=(
            policy.Policy('p', policy.Mode.MIG),))
        for settings in (
                policies.Settings(prepare=False),
                policies.Settings(policies=with_policy.policies,
                                  prepare=False),
                policies.Settings(policies=with_policy.policies,
                                  ignored_addresses={self.address}),
                policies.Settings(policies=(policy.Policy(
                    'p', policy.Mode.MIG, match_model=('*T4*',)),))):
            self.settings = settings
            self.start()
            self.assertEqual([], self.steps())
        self.govern('off')
        self.assertEqual([], self.steps())
        self.assertEqual((False, 0), self.is_now())

    def test_without_policies_a_gpu_stays_as_it_was_prepared(self):
        self.machine.sriov_manage(str(self.address))
        self.settings = policies.Settings()
        self.start()
        self.assertEqual([], self.steps())
        self.assertEqual((False, 20), self.is_now())

    def test_a_plan_changes_nothing(self):
        self.govern('mig')
        planned = self.preparer.plan(self.gpu())
        self.assertEqual(['ENABLE_MIG', 'ENABLE_FUNCTIONS'],
                         [step.action.name for step in planned.steps])
        self.assertEqual((False, 0), self.is_now())
        self.machine.add_process(str(self.address), 4711)
        self.assertIn('4711', self.preparer.plan(self.gpu()).reason)


class InUseTest(ready_case.ReadyCase):
    """A GPU in use stays as it is, and the reason names its user."""

    def waits(self, words):
        outcome = self.prepare()
        self.assertIn(words, outcome.reason)
        self.assertEqual((), outcome.steps)

    def test_process(self):
        self.govern('mig')
        self.machine.add_process(str(self.address), 4711)
        self.waits('process 4711')
        self.assertEqual((False, 0), self.is_now())
        self.machine.remove_process(4711)
        self.assertEqual(['ENABLE_MIG', 'ENABLE_FUNCTIONS'], self.steps())

    def test_gpu_instance_that_nobody_uses(self):
        self.govern('mig')
        self.steps()
        privileged.create_gpu_instance(str(self.address), 19, 0, 1)
        self.govern('vgpu')
        self.waits('GPU instance at 0:1')
        self.assertEqual((True, 20), self.is_now())
        with self.machine.operation():
            self.assertEqual(1, len(self.state().instances))

    def test_mdev_on_the_gpu_itself(self):
        """The mdev belongs to a server that is shut off."""
        self.use('t4x4')
        self.platform.sysfs.write(
            _UUID, 'class', 'mdev_bus', str(self.address),
            'mdev_supported_types', 'nvidia-231', 'create')
        self.govern('passthrough')
        self.waits(_UUID)
        self.assertEqual('nvidia', self.gpu().driver)

    def test_journal_entry(self):
        self.govern('mig')
        self.records.put_claims(gpu_record.Claim(
            handle=_UUID, gpu=self.address, function=self.address,
            mdev_type='nvidia-474', profile='1g.10gb',
            phase=gpu_record.Phase.UNBINDING))
        self.waits(_UUID)
        self.records.remove_claims(_UUID)
        self.steps()

    def test_change_that_a_dead_process_left(self):
        self.govern('mig')
        self.steps()
        number, start, size = privileged.create_gpu_instance(
            str(self.address), 19, 0, 1)
        records = store.of(self.state_path)
        records.put(self.address, change=gpu_record.Change(
            self.address, spec.MigLayout(True, True), ('a',), touched=(
                spec.MigInstanceSpec(model.Placement(start, size), 19),)))
        self.assertEqual(('roll back an interrupted change',),
                         self.prepare().done)
        self.assertEqual([], self.cuts())
        self.assertIsNone(records.read(self.address).change)

    def test_record_that_cannot_be_read(self):
        self.govern('mig')
        path = store.of(self.state_path).path(self.address)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('{')
        self.waits('cannot be read')
        self.assertEqual((False, 0), self.is_now())

    def test_guest_and_vgpu_without_mdev(self):
        self.use('l40sx4')
        self.govern('vgpu')
        self.steps()
        vgpu = self.gpu().vfs[1]
        self.platform.sysfs.write(
            str(self.gpu().vgpu_types[0].type_id), 'bus', 'pci', 'devices',
            str(vgpu.address), 'nvidia', 'current_vgpu_type')
        self.govern('passthrough')
        self.waits(f'vGPU {vgpu.address}')
        self.machine.start_guest(str(vgpu.address))
        self.govern('vgpu', scheduler=_EQUAL)
        self.waits('a guest with a nvidia-')
        self.machine.stop_guest(str(vgpu.address))
        self.assertEqual(['SCHEDULER'], self.steps())

    def test_vfio_devices_that_are_or_may_be_open(self):
        self.govern('vgpu')
        self.steps()
        held = str(self.gpu().vfs[3].address)

        def unknown(function):
            raise exception.UsageUnknown(what=function, reason='no access')

        self.govern('mig')
        for holders, words in (
                (lambda function: (4711,) if function == held else (),
                 f'{held} is held by process 4711'), (unknown, 'no access')):
            privileged.run_here(dataclasses.replace(
                self.platform, vfio_holders=holders))
            self.waits(words)
            self.assertEqual((False, 20), self.is_now())

    def test_a_gpu_that_cannot_be_read_after_a_step(self):
        self.govern('mig')
        gpu = self.gpu()
        self.machine.faults.fail(
            'nvmlDeviceGetGpuInstanceProfileInfo*', pynvml.NVML_ERROR_UNKNOWN,
            times=None)
        outcome = self.preparer.prepare(gpu)
        self.assertEqual(['ENABLE_MIG'],
                         [step.action.name for step in outcome.steps])
        self.assertIn('profiles', outcome.reason)
        self.assertEqual((True, 0), self.is_now())


class FailureTest(ready_case.ReadyCase):
    """A step that fails leaves the GPU as it is, and gives the reason."""

    def fails(self, step, words):
        outcome = self.prepare()
        self.assertEqual(step, outcome.steps[-1].action.name)
        self.assertIn(words, outcome.reason)
        return outcome

    def test_a_holder(self):
        self.govern('mig')
        self.machine.add_holder(str(self.address), 815, 'nv-hostengine')
        self.fails('ENABLE_MIG', 'process 815 (nv-hostengine): stop the unit')
        self.assertEqual((False, 0), self.is_now())
        self.machine.remove_holder(815)
        self.now += 60
        self.steps()
        self.assertEqual((True, 20), self.is_now())

    def test_each_step_of_a_policy(self):
        mixed, scheduler = ('nvmlDeviceSetVgpuHeterogeneousMode',
                            'nvmlDeviceSetVgpuSchedulerState')
        for options, fault, code, step, words, is_now in (
                ({'mode': 'mig'}, 'sriov-manage', errno.EIO,
                 'ENABLE_FUNCTIONS', 'sriov-manage failed', (True, 0)),
                ({'mode': 'vgpu'}, 'nvmlDeviceSetMigMode', _BUSY,
                 'DISABLE_MIG', 'cannot be turned off', (True, 0)),
                ({'mode': 'vgpu', 'mixed_sizes': True}, mixed, _BUSY,
                 'MIXED_ON', 'IN_USE', (False, 20)),
                ({'mode': 'vgpu', 'scheduler': _EQUAL}, scheduler, _BUSY,
                 'SCHEDULER', 'IN_USE', (False, 20)),
                ({'mode': 'passthrough'}, 'sriov-manage', errno.EIO,
                 'DISABLE_FUNCTIONS', 'sriov-manage failed', (False, 20))):
            self.govern(**options)
            self.machine.faults.fail(fault, code, times=None)
            self.fails(step, words)
            self.assertEqual(is_now, self.is_now())
            self.machine.faults.clear()
            if step != 'DISABLE_MIG':
                continue
            self.now += 60
            self.assertEqual(['DISABLE_MIG', 'ENABLE_FUNCTIONS'],
                             self.steps())

    def test_a_time_slice_out_of_range(self):
        self.govern('vgpu', scheduler=_EQUAL, time_slice=1 << 31)
        self.fails('SCHEDULER', 'is not within 1000 to 30000')

    def test_scheduler_of_an_instance(self):
        self.use('rtxpro6000x8')
        self.govern('mig')
        self.steps()
        self.platform.nvml.create_gpu_instance(
            self.platform.nvml.device(self.address), 47,
            model.Placement(0, 3))
        self.govern('mig', scheduler=_EQUAL)
        self.machine.faults.fail('nvmlGpuInstanceSetVgpuSchedulerState',
                                 _BUSY)
        self.fails('SCHEDULER', 'IN_USE')
        self.govern('mig', scheduler=_EQUAL, time_slice=1 << 31)
        self.fails('SCHEDULER', 'is not within 1000 to 30000')

    def test_scheduler_that_the_gpu_does_not_have(self):
        self.govern('vgpu', scheduler=_EQUAL)
        self.steps()
        self.machine.faults.fail(
            'nvmlDeviceGetVgpuSchedulerCapabilities',
            pynvml.NVML_ERROR_NOT_SUPPORTED, times=None)
        self.machine.reboot()
        self.fails('SCHEDULER', 'does not schedule vGPUs')

    def test_step_that_says_it_worked(self):
        """The mode is read again, whatever NVML has answered."""
        self.govern('vgpu', mixed_sizes=True)
        self.machine.faults.fail('nvmlDeviceSetVgpuHeterogeneousMode',
                                 pynvml.NVML_SUCCESS)
        self.fails('MIXED_ON', 'had no effect')

    def test_tried_again_after_a_minute_and_said_once(self):
        self.govern('mig')
        self.machine.faults.fail('nvmlDeviceSetMigMode', _BUSY, times=None)
        with self.assertLogs('cyborg_gpu_driver.program.ready.prepare',
                             'WARNING') as logs:
            for seconds, calls in ((0, 1), (59, 1), (2, 2), (58, 2), (3, 3)):
                self.now += seconds
                self.fails('ENABLE_MIG', 'cannot be turned on')
                self.assertEqual(
                    calls, self.machine.calls['nvmlDeviceSetMigMode'])
        self.assertEqual(1, len(logs.output))


class PrivilegedTest(ready_case.ReadyCase):

    def test_instances_keep_sriov_manage_from_running(self):
        self.govern('mig')
        self.steps()
        privileged.create_gpu_instance(str(self.address), 14, 2, 2)
        for enable in (True, False):
            error = self.assertRaises(
                exception.StepFailed, privileged_gpu.set_virtual_functions,
                str(self.address), enable)
            self.assertIn('may destroy', str(error))
        self.assertEqual((True, 20), self.is_now())
        with self.machine.operation():
            self.assertEqual(1, len(self.state().instances))

    def test_arguments_are_checked_again(self):
        address = str(self.address)
        for call, arguments in (
                (privileged_gpu.set_virtual_functions, ('../x', True)),
                (privileged_gpu.set_virtual_functions, ('', False)),
                (privileged_gpu.set_virtual_functions, (address, 1)),
                (privileged_gpu.set_mixed_sizes, (address, 1)),
                (privileged_gpu.set_mixed_sizes, ('x', True)),
                (privileged_gpu.set_scheduler, (address, 'fair', None)),
                (privileged_gpu.set_scheduler, (address, 'equal-share', 0)),
                (privileged_gpu.set_scheduler, (address, 'equal-share',
                                                '1'))):
            self.assertRaises(exception.InvalidValue, call, *arguments)


class HandOverTest(ready_case.ReadyCase):
    """The driver has consented to an unbind, and the process is gone."""

    def lock(self):
        with self.machine.operation(write=True):
            self.state().locked = True
        self.platform.nvml.reset()

    def test_it_begins_again(self):
        self.govern('passthrough')
        self.assertEqual(['BIND_VFIO'], self.steps())
        vfio.bind(self.platform, self.address, 'nvidia')
        self.lock()
        outcome = self.prepare()
        self.assertEqual('', outcome.reason)
        self.assertTrue(outcome.rolled_back)
        self.assertEqual('vfio-pci', self.gpu().driver)

    def test_of_another_tool(self):
        self.govern('passthrough')
        self.lock()
        self.assertFalse(self.prepare().rolled_back)
        self.assertTrue(self.state().locked)

    def test_an_unhealthy_gpu_stays_at_its_driver(self):
        self.govern('passthrough')
        self.preparer._health.event(condition.Event(self.address, 79))
        self.assertIn('unhealthy', self.prepare().reason)
        self.assertEqual('nvidia', self.gpu().driver)


class RolesTest(ready_case.ReadyCase):
    """A GPU of mode auto is read in each of its roles."""

    def setUp(self):
        super().setUp()
        self.govern('auto', roles=(policy.Mode.PASSTHROUGH, policy.Mode.MIG))

    def facts(self):
        return self.records.read(self.address).by_role

    def test_not_while_a_server_may_get_it(self):
        self.preparer._cloud.partitioning = (
            lambda address: contextlib.nullcontext('a server has it'))
        self.assertEqual('a server has it', self.prepare().reason)
        self.assertEqual({}, self.facts())

    def test_doubtful_facts_are_read_again(self):
        self.prepare()
        found = self.facts()
        self.assertEqual(['mig'], list(found))
        self.records.put(self.address, by_role={'mig': dataclasses.replace(
            found['mig'], is_doubtful=True)})
        self.start()
        self.prepare()
        self.assertEqual(found, self.facts())
