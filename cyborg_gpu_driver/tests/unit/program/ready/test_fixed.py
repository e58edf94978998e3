# SPDX-License-Identifier: Apache-2.0

"""Fixed vGPUs: made in an order that works, kept, and removed if idle."""

import dataclasses
import errno

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.program import nodes
from cyborg_gpu_driver.tests.unit.program.ready import ready_case

_UUID = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_12Q, _24Q, _6Q = 1153, 1155, 1151


class FixedCase(ready_case.ReadyCase):

    host = 'l40sx4'

    def ready(self, mode='vgpu', **options):
        """Govern, and do all that an agent does when it reports."""
        if options or mode != 'vgpu':
            self.govern(mode, **options)
        else:
            self.start()
        self.outcome = self.prepare()
        return self.outcome

    def reboot(self):
        self.machine.reboot()
        self.start()


class TimeSlicedTest(FixedCase):

    def test_the_lowest_functions_once(self):
        self.ready(fixed_vgpus=(('L40S-12Q', 2),))
        self.assertEqual({0: _12Q, 1: _12Q}, self.vgpus())
        self.assertEqual((), self.ready().done)
        self.assertEqual('', self.outcome.reason)

    def test_the_same_functions_after_a_reboot_and_another_policy(self):
        self.ready(fixed_vgpus=(('L40S-12Q', 3),))
        self.ready(fixed_vgpus=(('L40S-12Q', 2),))
        self.assertEqual({0: _12Q, 1: _12Q}, self.vgpus())
        self.ready(fixed_vgpus=(('L40S-12C', 1), ('L40S-12Q', 2)))
        self.assertEqual({0: _12Q, 1: _12Q, 2: 1180}, self.vgpus())
        self.reboot()
        self.assertEqual({}, self.vgpus())
        self.ready()
        self.assertEqual({0: _12Q, 1: _12Q, 2: 1180}, self.vgpus())

    def test_no_type_is_left_for_which_there_is_no_room(self):
        self.ready(fixed_vgpus=(('L40S-12Q', 5),))
        self.assertIn('at most 4', self.outcome.reason)
        self.ready(fixed_vgpus=(('L40S-12Q', 1), ('L40S-24Q', 1)))
        self.assertIn('several framebuffer sizes', self.outcome.reason)
        self.assertEqual({}, self.vgpus())

    def test_mixed_sizes(self):
        self.ready(fixed_vgpus=(('L40S-12Q', 2), ('L40S-24Q', 1)),
                   mixed_sizes=True)
        self.assertEqual('', self.outcome.reason)
        self.assertEqual({0: _12Q, 1: _12Q, 2: _24Q}, self.vgpus())
        # The largest ones come first, because they have the fewest places.
        made = [words for words in self.outcome.done if 'L40S' in words]
        self.assertIn('24Q', made[0])
        with self.machine.operation():
            self.assertEqual(
                {f'vgpu-placement-id={vgpu.placement}'
                 for vgpu in self.state().vgpus},
                {vgpu.params for vgpu in self.state().vgpus})
        for vf in self.gpu().vfs[:3]:
            self.machine.start_guest(str(vf.address))
        before = {vf.index: vf.placement_id for vf in self.gpu().vfs}
        for vf in self.gpu().vfs[:3]:
            self.machine.stop_guest(str(vf.address))
        self.reboot()
        self.ready()
        self.assertEqual(before, {vf.index: vf.placement_id
                                  for vf in self.gpu().vfs})

    def test_left_alone(self):
        self.govern('vgpu', fixed_vgpus=(('L40S-12Q', 2),))
        for changes in ({'prepare': False},
                        {'ignored_addresses': {self.address}}):
            settings, self.settings = self.settings, dataclasses.replace(
                self.settings, **changes)
            self.ready()
            self.assertEqual({}, self.vgpus(), changes)
            self.settings = settings

    def test_not_before_the_gpu_is_ready(self):
        self.govern('vgpu', fixed_vgpus=(('L40S-12Q', 2),))
        self.machine.add_process(str(self.address), 4711)
        self.assertEqual((), self.ready().done)
        self.assertIn('4711', self.outcome.reason)

    def test_lists_are_read_again_after_each_write(self):
        """The driver's list of types is valid only until the next write."""
        self.ready(fixed_vgpus=(('L40S-12Q', 1),))
        self.set_type(4, _12Q)
        self.set_type(5, _12Q)
        self.set_type(6, _12Q)
        made = self.ready(fixed_vgpus=(('L40S-12Q', 4),))
        self.assertEqual('', made.reason)
        self.assertEqual({0, 4, 5, 6}, set(self.vgpus()))


class SlicedTest(FixedCase):

    host = 'rtxpro6000x8'

    def test_instances_before_types(self):
        self.ready('mig', fixed_vgpus=(('DC-1-8Q', 4), ('DC-1-24Q', 1)))
        self.assertEqual('', self.outcome.reason)
        self.assertEqual([1555] * 4 + [1561],
                         [self.vgpus()[index] for index in range(5)])
        self.assertEqual(3, len(self.cuts()))
        self.assertEqual(
            ['instance'] * 3 + ['vGPU'] * 5,
            [words.split()[1] for words in self.outcome.done
             if words.startswith('create')])

    def test_an_instance_goes_with_its_last(self):
        self.ready('mig', fixed_vgpus=(('DC-1-8Q', 4),))
        self.assertEqual(2, len(self.cuts()))
        stranger = privileged.create_gpu_instance(str(self.address), 47, 0,
                                                  3)
        self.ready('mig', fixed_vgpus=(('DC-1-8Q', 1),))
        self.assertEqual({0: 1555}, self.vgpus())
        self.assertEqual(2, len(self.cuts()))
        self.ready('mig')
        self.assertEqual({}, self.vgpus())
        self.assertEqual([(47, stranger[1])], self.cuts())

    def test_a_release_that_was_killed_is_gone_on_with(self):
        self.ready('mig', fixed_vgpus=(('DC-1-8Q', 4),))
        for index in self.vgpus():
            self.set_type(index, 0)
        self.assertEqual(2, len(self.cuts()))
        self.ready('mig', fixed_vgpus=(('DC-1-8Q', 4),))
        self.assertEqual((4, 2), (len(self.vgpus()), len(self.cuts())))
        for index in self.vgpus():
            self.set_type(index, 0)
        self.ready('mig')
        self.assertEqual([], self.cuts())

    def test_places_of_old_are_forgotten(self):
        """What an operator creates there later belongs to the operator."""
        self.ready('mig', fixed_vgpus=(('DC-1-8Q', 1),))
        ((profile_id, start),) = self.cuts()
        (item,) = self.gpu().mig.instances
        self.reboot()
        self.govern('mig')
        self.prepare()
        privileged.create_gpu_instance(str(self.address), profile_id, start,
                                       item.placement.size)
        self.ready('mig')
        self.assertEqual([(profile_id, start)], self.cuts())

    def test_what_the_driver_does_not_list_is_not_written(self):
        self.ready('mig')
        number, _, _ = privileged.create_gpu_instance(str(self.address), 47,
                                                      0, 3)
        self.machine.add_process(str(self.address), 4711, number)
        self.ready('mig', fixed_vgpus=(('DC-1-24Q', 1),))
        self.assertIn('the driver cannot create DC-1-24Q',
                      self.outcome.reason)
        self.assertEqual({}, self.vgpus())

    def test_another_mode(self):
        self.ready('mig', fixed_vgpus=(('DC-1-24Q', 2),))
        vf = str(self.gpu().vfs[1].address)
        self.machine.start_guest(vf)
        self.ready('passthrough')
        self.assertIn('in use', self.outcome.reason)
        self.assertEqual((True, len(self.gpu().vfs)), self.is_now())
        self.machine.stop_guest(vf)
        self.ready('passthrough')
        self.assertEqual('', self.outcome.reason)
        self.assertEqual((False, 0), self.is_now())
        self.assertTrue(store.of(self.state_path).read(
            self.address).fixed.is_empty)


class InUseTest(FixedCase):
    """A vGPU that is in use, bound or another tool's is never cleared."""

    def test_guest(self):
        self.ready(fixed_vgpus=(('L40S-12Q', 2),))
        vf = str(self.gpu().vfs[1].address)
        self.machine.start_guest(vf)
        with self.assertLogs('cyborg_gpu_driver.program.ready.prepare',
                             'WARNING') as logs:
            for _ in range(3):
                self.govern('vgpu', fixed_vgpus=(('L40S-12Q', 1),))
                self.assertIn(vf, self.prepare().reason)
                self.assertEqual({0: _12Q, 1: _12Q}, self.vgpus())
            for _ in range(3):
                self.prepare()
        self.assertEqual(3, len(logs.output))
        self.machine.stop_guest(vf)
        self.prepare()
        self.assertEqual({0: _12Q}, self.vgpus())

    def test_device_that_is_or_may_be_open(self):
        def unknown(function):
            raise exception.UsageUnknown(what=function, reason='no access')

        self.ready(fixed_vgpus=(('L40S-12Q', 1),))
        vf = str(self.gpu().vfs[0].address)
        for holders, words in (
                (lambda function: (4711,) if function == vf else (), '4711'),
                (unknown, 'no access')):
            self.platform = dataclasses.replace(self.platform,
                                                vfio_holders=holders)
            privileged.run_here(self.platform)
            self.ready(fixed_vgpus=(('L40S-24Q', 1),))
            self.assertIn(words, self.outcome.reason)
            self.assertIn('existing vGPUs that are not in fixed_vgpus',
                          self.outcome.reason)
            self.assertEqual({0: _12Q}, self.vgpus())

    def test_handle_of_the_journal(self):
        self.ready(fixed_vgpus=(('L40S-12Q', 1),))
        self.records.put_claims(gpu_record.Claim(
            handle=_UUID, gpu=self.address,
            function=self.gpu().vfs[0].address, mdev_type=f'nvidia-{_12Q}',
            profile='L40S-12Q', phase=gpu_record.Phase.BOUND, vfio=True))
        self.ready('off')
        self.assertEqual({0: _12Q}, self.vgpus())

    def test_made_by_somebody_else(self):
        self.ready(fixed_vgpus=(('L40S-12Q', 1),))
        self.set_type(3, _12Q)
        self.ready('off')
        self.assertEqual({3: _12Q}, self.vgpus())

    def test_another_type_on_a_function_that_was_ours(self):
        self.ready(fixed_vgpus=(('L40S-12Q', 1),))
        self.set_type(0, 0)
        self.set_type(0, _6Q)
        self.ready('off')
        self.assertEqual({0: _6Q}, self.vgpus())

    def test_a_new_mode_waits_for_the_others(self):
        """Fixed vGPUs stay while another tool's vGPU blocks a new mode."""
        self.ready(fixed_vgpus=(('L40S-12Q', 1),))
        self.set_type(3, _12Q)
        self.ready(fixed_vgpus=(('L40S-12Q', 1),), mixed_sizes=True)
        self.assertIn('in use', self.outcome.reason)
        self.assertEqual({0: _12Q, 3: _12Q}, self.vgpus())
        self.set_type(3, 0)
        self.ready(fixed_vgpus=(('L40S-12Q', 1),), mixed_sizes=True)
        self.assertEqual(
            ['DESTROY_VGPU', 'MIXED_ON', 'CREATE_VGPU'],
            [step.action.name for step in self.outcome.steps])
        self.assertEqual({0: _12Q}, self.vgpus())


class FaultsTest(FixedCase):
    """Whatever fails, the run removes all that it has created."""

    host = 'rtxpro6000x8'
    wanted = (('DC-1-8Q', 4), ('DC-1-24Q', 1))

    def setUp(self):
        super().setUp()
        self.ready('mig')
        self.govern('mig', fixed_vgpus=self.wanted)

    def fails(self):
        self.assertIn('the GPU is as it was before', self.prepare().reason)
        self.assertEqual(({}, []), (self.vgpus(), self.cuts()))
        self.assertTrue(store.of(self.state_path).read(
            self.address).fixed.is_empty)

    def succeeds(self):
        self.machine.faults.clear()
        self.now += 60
        self.assertEqual('', self.prepare().reason)
        self.assertEqual((5, 3), (len(self.vgpus()), len(self.cuts())))

    def test_each_call_in_both_ways(self):
        faults = self.machine.faults
        for fail, name, code, calls in (
                (faults.fail_write, '*/current_vgpu_type', errno.EIO, 5),
                (faults.fail, 'nvmlDeviceCreateGpuInstanceWithPlacement',
                 pynvml.NVML_ERROR_UNKNOWN, 3)):
            for nth in range(1, calls + 1):
                for after in (False, True):
                    faults.clear()
                    fail(name, code, nth=nth, after=after)
                    self.now += 60
                    self.fails()
        self.succeeds()

    def test_each_list_read(self):
        for nth in range(1, 6):
            self.machine.faults.clear()
            gpu = self.gpu()
            self.machine.faults.fail_read('*/creatable_vgpu_types',
                                          errno.EIO, nth=nth + 1)
            self.now += 60
            made = self.preparer.prepare(gpu)
            self.machine.faults.clear()
            self.assertIn('the GPU is as it was before', made.reason)
            self.assertEqual(({}, []), (self.vgpus(), self.cuts()))
        self.succeeds()

    def test_not_tried_again_within_a_minute(self):
        self.machine.faults.fail_write('*/current_vgpu_type', errno.EIO,
                                       times=None)
        for _ in range(3):
            self.fails()
        self.assertEqual(3, self.machine.calls[
            'nvmlDeviceCreateGpuInstanceWithPlacement'])
        self.succeeds()

    def test_what_cannot_be_undone_is_said_and_stays_ours(self):
        self.machine.faults.fail_write('*/current_vgpu_type', errno.EIO,
                                       nth=3, times=None)
        self.assertIn('the rollback failed', self.prepare().reason)
        self.assertEqual(2, len(self.vgpus()))
        self.succeeds()
        self.ready('off')
        self.assertEqual(({}, []), (self.vgpus(), self.cuts()))


_LAID_OUT = (19, 0)
"""Profile id and start of a 1g.10gb that an operator has created."""


class LayoutTest(FixedCase):
    """Fixed vGPUs beside the operator's layout."""

    host = 'a100x4-vfio'

    def setUp(self):
        super().setUp()
        self.ready('mig', fixed_vgpus=(('A100D-3-40C', 1),))
        (self.fixed_cut,) = self.cuts()
        privileged.create_gpu_instance(str(self.address), *_LAID_OUT, 1)
        self.saved = apply.Applier(self.transactions).saved(
            self.transactions.read(self.gpu()))

    def restore(self):
        """Reboot and restore twice. Return the GPU instances after that."""
        self.reboot()
        for _ in range(2):
            nodes.Node(self.platform, self.state_path, self.settings
                       ).preparer.restore(self.gpu(), self.saved, [])
        return self.cuts()

    def test_each_is_restored_once(self):
        self.assertEqual([_LAID_OUT], [
            (cut.profile_id, cut.placement.start)
            for cut in self.saved.layout.instances])
        vgpus = self.vgpus()
        self.assertEqual(sorted([self.fixed_cut, _LAID_OUT]), self.restore())
        self.assertEqual(vgpus, self.vgpus())

    def test_what_no_policy_wants_any_more_stays_away(self):
        self.ready('mig')
        self.assertEqual([_LAID_OUT], self.cuts())
        self.assertEqual([_LAID_OUT], self.restore())
