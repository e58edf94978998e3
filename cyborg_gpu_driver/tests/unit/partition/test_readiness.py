# SPDX-License-Identifier: Apache-2.0

import dataclasses

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import readiness
from cyborg_gpu_driver.tests.unit.partition import boards

Step = change.Action
BEST = model.SchedulerPolicy.BEST_EFFORT
FIXED = model.SchedulerPolicy.FIXED_SHARE
BOTH = (BEST, FIXED)


def a100(enabled=False, vfs=0, **fields):
    return boards.gpu(boards.A100_40, enabled=enabled, **{
        'sriov_totalvfs': 16, 'sriov_numvfs': vfs, 'vfs': boards.vfs(vfs),
        'mixed_sizes': None if enabled else False,
        'scheduler': None if enabled else model.Scheduler(
            BEST, 2_000_000, BOTH), **fields})


def t4(**fields):
    return boards.gpu((), **{'mig': None, **fields})


def rules(mode, **fields):
    return policy.Policy('p', policy.Mode(mode), **fields)


def steps(gpu, governing):
    return readiness.actions(gpu, readiness.wants(gpu, governing))


def handed_over(**fields):
    """A GPU that this library bound to vfio-pci."""
    return a100(**{'driver': 'vfio-pci', 'visible_to_nvml': False,
                   'mig': None, 'mixed_sizes': None, 'scheduler': None,
                   'bound_from': 'nvidia', 'recorded_at': 1.0, **fields})


class TestWants(base.BaseTestCase):

    def test_each_mode(self):
        for gpu, governing, expected in (
                (a100(), rules('off'), ()),
                (a100(), rules('passthrough'),
                 (False, False, None, None, 'vfio-pci')),
                (a100(), rules('mig'), (True, True)),
                (a100(), rules('vgpu'), (False, True, False)),
                (a100(), rules('vgpu', mixed_sizes=True),
                 (False, True, True)),
                (a100(True), rules('vgpu'), (False, True)),
                (a100(True), rules('vgpu', mixed_sizes=True),
                 (False, True, True)),
                (a100(), rules('vgpu', scheduler=FIXED, time_slice=5),
                 (False, True, False, (FIXED, 5))),
                (a100(), rules('vgpu', scheduler=BEST),
                 (False, True, False, (BEST, None))),
                (t4(), rules('vgpu'), ()), (t4(), rules('mig'), ()),
                (t4(), rules('passthrough'),
                 (None, None, None, None, 'vfio-pci')),
                # The GPU cannot mix sizes, so no step asks for it.
                (a100(mixed_sizes=None), rules('vgpu', mixed_sizes=True),
                 (False, True))):
            self.assertEqual(readiness.Wants(*expected),
                             readiness.wants(gpu, governing), governing)

    def test_what_nvml_does_not_see_is_left_alone(self):
        for fields in ({'visible_to_nvml': False},
                       {'physfn': model.PciAddress(0, 1, 0, 0)}):
            for mode in policy.Mode:
                self.assertEqual(readiness.Wants(), readiness.wants(
                    a100(**fields), rules(mode.value)))


class TestSteps(base.BaseTestCase):

    def test_nothing_wanted(self):
        for gpu in (a100(), a100(True, 16), t4()):
            self.assertEqual((), readiness.actions(gpu, readiness.Wants()))

    def test_in_the_order_that_works(self):
        mixed = rules('vgpu', mixed_sizes=True, scheduler=BEST)
        for gpu, governing, expected in (
                (a100(), rules('mig'),
                 (Step.ENABLE_MIG, Step.ENABLE_FUNCTIONS)),
                (a100(vfs=16), rules('mig'),
                 (Step.DISABLE_FUNCTIONS, Step.ENABLE_MIG,
                  Step.ENABLE_FUNCTIONS)),
                (a100(True), rules('mig'), (Step.ENABLE_FUNCTIONS,)),
                (a100(True, 16), rules('mig'), ()),
                (a100(True, 16), rules('passthrough'),
                 (Step.DISABLE_FUNCTIONS, Step.DISABLE_MIG,
                  Step.BIND_VFIO)),
                (a100(vfs=16), rules('passthrough'),
                 (Step.DISABLE_FUNCTIONS, Step.BIND_VFIO)),
                (a100(True, 16), mixed,
                 (Step.DISABLE_FUNCTIONS, Step.DISABLE_MIG,
                  Step.ENABLE_FUNCTIONS, Step.MIXED_ON, Step.SCHEDULER)),
                (a100(vfs=16), mixed, (Step.MIXED_ON,)),
                (a100(vfs=16, mixed_sizes=True), rules('vgpu'),
                 (Step.MIXED_OFF,)),
                # Enabling the functions resets the scheduler: set it again.
                (a100(scheduler=model.Scheduler(FIXED, 2, BOTH)),
                 rules('vgpu', scheduler=FIXED),
                 (Step.ENABLE_FUNCTIONS, Step.SCHEDULER)),
                # Enabling the functions turns mixed sizes off by itself.
                (a100(mixed_sizes=True), rules('vgpu'),
                 (Step.ENABLE_FUNCTIONS,))):
            self.assertEqual(expected, steps(gpu, governing), governing)

    def test_functions_counted_but_not_listed_are_there(self):
        self.assertEqual((), steps(a100(True, sriov_numvfs=16),
                                   rules('mig')))

    def test_functions_left_as_they_are_come_back(self):
        self.assertEqual(
            (Step.DISABLE_FUNCTIONS, Step.ENABLE_MIG,
             Step.ENABLE_FUNCTIONS),
            readiness.actions(a100(vfs=16), readiness.Wants(mig=True)))

    def test_scheduler(self):
        for now, wanted, needed in (
                ((BEST, 2), (BEST, None), False),
                ((BEST, 2), (BEST, 2), False),
                ((BEST, 2), (BEST, 3), True),
                ((BEST, None), (BEST, 3), True),
                ((BEST, 2), (FIXED, None), True),
                ((None, None), (BEST, None), True)):
            gpu = a100(vfs=16, scheduler=model.Scheduler(*now, BOTH))
            self.assertEqual(
                (Step.SCHEDULER,) if needed else (), readiness.actions(
                    gpu, readiness.Wants(scheduler=wanted)), (now, wanted))
        self.assertEqual((Step.SCHEDULER,), readiness.actions(
            t4(), readiness.Wants(scheduler=(BEST, None))))

    def test_scheduler_of_gpu_instances(self):
        board = boards.gpu(
            boards.RTX_PRO_6000, enabled=True,
            vgpu_types=(model.VgpuType(1, 'DC-1-8Q', 'Quadro', 8192, 12,
                                       47, 3),
                        model.VgpuType(2, 'DC-2-48Q', 'Quadro', 49152, 2,
                                       35, 1)))
        instances = [
            model.GpuInstance(model.Placement(start, size), profile, number,
                              scheduler=scheduler)
            for number, (start, size, profile, scheduler) in enumerate((
                (0, 3, 47, model.Scheduler(BEST)),
                (3, 3, 47, model.Scheduler(FIXED, 2)), (6, 6, 35, None)))]
        gpu = dataclasses.replace(board, mig=dataclasses.replace(
            board.mig, instances=tuple(instances)))
        for wanted, places in (((FIXED, None), [0]), ((FIXED, 2), [0]),
                               ((FIXED, 3), [0, 3]), ((BEST, None), [3]),
                               (None, [])):
            wants = readiness.Wants(mig=True, scheduler=wanted)
            found = readiness.steps(gpu, wants)
            self.assertEqual(places, [step.placement.start
                                      for step in found], wanted)
            self.assertEqual({Step.SCHEDULER} if places else set(),
                             {step.action for step in found})
        wants = readiness.wants(gpu, rules('mig', scheduler=FIXED))
        self.assertEqual((FIXED, None), readiness.instance_scheduler(
            gpu, wants, 47))
        self.assertIsNone(readiness.instance_scheduler(gpu, wants, 35))
        # The instances end with MIG mode. The GPU has its own scheduler.
        off = readiness.steps(gpu, readiness.Wants(
            mig=False, scheduler=(FIXED, None)))
        self.assertEqual([(Step.DISABLE_MIG, None), (Step.SCHEDULER, None)],
                         [(step.action, step.placement) for step in off])

class TestDriver(base.BaseTestCase):

    def wants(self, gpu, mode='passthrough'):
        return readiness.wants(gpu, rules(mode))

    def test_who_binds_it(self):
        for gpu, modes, expected in (
                (a100(), ('passthrough',), (Step.BIND_VFIO,)),
                (handed_over(), ('passthrough', 'off'), ()),
                # One that this library has bound goes back.
                (handed_over(), ('mig', 'vgpu'), (Step.BIND_NVIDIA,)),
                # One that the operator has bound stays.
                (handed_over(bound_from=None),
                 ('passthrough', 'mig', 'off'), ()),
                (handed_over(driver='nvgrace_gpu_vfio_pci', bound_from=None),
                 ('passthrough', 'mig', 'off'), ()),
                (handed_over(driver=None, bound_from=None),
                 ('passthrough',), (Step.BIND_VFIO,)),
                (handed_over(driver='nouveau', bound_from=None),
                 ('passthrough', 'mig'), ())):
            for mode in modes:
                self.assertEqual(expected, readiness.actions(
                    gpu, self.wants(gpu, mode)), (gpu.driver, mode))

    def test_what_nothing_else_may_be_changed_of(self):
        for gpu, expected in (
                (a100(), (Step.BIND_VFIO,)), (t4(), (Step.BIND_VFIO,)),
                (a100(True), ()), (a100(vfs=4), ()), (handed_over(), ())):
            self.assertEqual(expected, readiness.actions(
                gpu, readiness.driver_only(gpu, self.wants(gpu))))
