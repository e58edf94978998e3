# SPDX-License-Identifier: Apache-2.0

"""Every call of an apply fails in turn, and a process dies at each point."""

import collections
import ctypes
import os

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import plan
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.program import layouts

_CODES = (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_IN_USE,
          pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
          pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_TIMEOUT)
_HOST = """
driver_version: '550.144.02'
gpus:
  - {model: a100-80, address: '0000:07:00.0', mig: true, framework: mdev}
"""
"""A host with one GPU, because these tests apply thousands of layouts."""


class Scenario(layouts.LayoutCase):
    """A GPU's present layout, and the layout that it is to get."""

    before = {'_3g_40gb': 1, '_1g_10gb': 4}
    after = {'_1c_3g_40gb': 2, '_2g_20gb': 1, '_1g_10gb': 1}

    def setUp(self):
        super().setUp()
        if self.before is None:
            state = self.saved()
            state.mig = state.pending = False
            self.load(state)
            self.restart()
        else:
            self.apply(**self.before)
        self.start = self.saved()
        self.old = self.truth()
        self.restart()
        self.start_host = self.host
        self.again()
        self.calls = []
        self.machine.faults.wait = self.calls.append
        self.change()
        del self.machine.faults.wait
        self.new = self.truth()
        self.assertNotEqual(self.old, self.new)

    def use(self, name):
        path = os.path.join(self.state_path, 'host.yaml')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(_HOST)
        super().use(path)

    def change(self):
        if self.after is None:
            return self.apply(enabled=False)
        return self.apply(**self.after)

    def again(self):
        """Put the machine back as it was at first, with a new process."""
        self.machine.faults.clear()
        self.load(self.start)
        self.records.put(self.address, change=None)
        self.restart(self.start_host)

    def steps(self):
        """Yield the number of each call to fail, and whether it is a change.

        Of each function that only reads, those that ``scope`` leaves.
        """
        places = collections.defaultdict(list)
        for nth, symbol in enumerate(self.calls, 1):
            places[symbol].append(nth)
        for symbol, each in places.items():
            changes = symbol in layouts.MUTATING
            for nth in each if changes else scope.some(each):
                yield nth, changes

    def try_change(self):
        try:
            self.change()
        except exception.GpuDriverError as error:
            return error
        return None

    def assert_whole(self, error, what):
        """Assert that all is as before or as wanted, or else recorded."""
        self.machine.faults.clear()
        if error is None:
            self.assertEqual(self.new, self.truth(), what)
            self.assertIsNone(self.change_record(), what)
            return
        record = self.change_record()
        if record is None:
            self.assertEqual(self.old, self.truth(), f'{what}: {error}')
            return
        self.assertTrue(record.problem, what)
        self.assertIn('layout restore', str(error), what)
        self.assertEqual(self.old[2], sorted(
            (cut.placement.start, cut.placement.size, cut.profile_id,
             list(cut.compute)) for cut in record.before.instances), what)
        self.change()
        self.assertEqual(self.new, self.truth(), what)
        self.assertIsNone(self.change_record(), what)


class SingleFaults(Scenario):
    """One call fails, before or after it has had its effect."""

    def test_each_call_once(self):
        tried = undone = 0
        for nth, changes in self.steps():
            for number, code in enumerate(_CODES):
                if not (scope.ALL or changes or number == nth % len(_CODES)):
                    continue
                tried += 1
                self.again()
                # With this code, NVML reports that it created nothing. An
                # error of nvmlInit, whatever it is, means that no session
                # was opened.
                after = (bool((nth + number) % 2)
                         and code != pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
                         and not self.calls[nth - 1].startswith('nvmlInit'))
                self.machine.faults.fail('*', code, nth=nth, after=after)
                error = self.try_change()
                what = f'call {nth}, code {code}, after {after}'
                record = self.change_record()
                self.assertIsNone(record, f'{what}: {record}')
                undone += error is not None
                self.assert_whole(error, what)
        self.assertGreater(undone, tried / len(_CODES))

class LastingFaults(Scenario):
    """From some call on every call fails, also during the rollback."""

    def test_from_each_call_on(self):
        stuck = 0
        each = {symbol: range(1, self.calls.count(symbol) + 1)
                for symbol in layouts.MUTATING}
        each['*'] = sorted(nth for nth, _changes in self.steps())
        for symbol, places in each.items():
            for nth in places:
                self.again()
                self.machine.faults.fail(
                    symbol, pynvml.NVML_ERROR_UNKNOWN, nth=nth, times=None)
                error = self.try_change()
                stuck += self.change_record() is not None
                self.assert_whole(error, f'{symbol} from {nth} on')
        self.assertGreater(stuck, 10)

    def test_rollback_is_tried_again(self):
        self.again()
        self.machine.faults.fail('nvmlDeviceCreate*', 999, times=2)
        self.assert_whole(self.try_change(), 'create twice')
        self.assertEqual(self.old, self.truth())

    def test_rollback_goes_to_where_it_all_began(self):
        """Also after a second apply failed on what the first one left."""
        self.again()
        self.machine.faults.fail('nvmlDeviceCreate*', 999, times=None)
        self.try_change()
        left = self.truth()
        self.assertNotEqual(self.old, left)
        self.machine.faults.clear()
        self.machine.faults.fail('nvmlDeviceCreate*', 999, nth=2, times=None)
        self.assertRaises(exception.ChangeFailed, self.apply, _1g_10gb=6)
        self.machine.faults.clear()
        self.transactions.finish(self.gpu)
        self.assertEqual(self.old, self.truth())

    def test_rollback_knows_what_an_earlier_change_made(self):
        def nothing_goes_any_more(_seconds):
            for symbol in ('nvmlGpuInstanceDestroy',
                           'nvmlGpuInstanceCreateCompute*'):
                self.machine.faults.fail(symbol, 999, times=None)

        self.again()
        self.machine.faults.delay('nvmlDeviceCreateGpuInstanceWithPlacement',
                                  0, nothing_goes_any_more)
        self.try_change()
        self.assertIn(14, [item[2] for item in self.truth()[2]])
        self.machine.faults.clear()
        self.machine.faults.fail('nvmlDeviceCreate*', 999, times=None)
        self.assertRaises(exception.ChangeFailed, self.apply, _2g_20gb=2)
        self.machine.faults.clear()
        self.transactions.finish(self.gpu)
        self.assertEqual(self.old, self.truth())

    def test_rollback_leaves_away_what_somebody_else_destroyed(self):
        for again in (False, True):
            self.again()
            self.machine.faults.fail('nvmlDeviceCreate*', 999, times=None)
            self.try_change()
            gone = self.destroy_untouched()
            if again:
                # A second change, which wants that place.
                self.machine.faults.fail('nvmlDeviceCreate*', 999, nth=2,
                                         times=None)
                self.assertRaises(exception.ChangeFailed, self.apply,
                                  _1g_10gb=6)
                self.machine.faults.clear()
            self.assertTrue(self.transactions.finish(self.gpu))
            self.assertEqual(
                [item for item in self.old[2] if item != gone],
                self.truth()[2], again)

    def destroy_untouched(self):
        """Destroy an instance that no step touched, as an unbind does."""
        self.machine.faults.clear()
        touched = {(item.placement.start, item.profile_id)
                   for item in self.change_record().touched}
        with self.machine.operation(write=True):
            there = self.machine.gpu(self.address).state.instances
            number, item = next(
                (number, item) for number, item in there.items()
                if (item.start, item.profile_id) not in touched)
            del there[number]
        return (item.start, item.size, item.profile_id, sorted(
            (part.start, part.size) for part in item.compute.values()))


class ModeFaults(SingleFaults):
    """The change turns MIG mode on, with a reset, and creates instances."""

    before = None
    after = {'_7g_80gb': 1}

    def test_gpu_is_held(self):
        """The driver resets no GPU that another program has open."""
        self.again()
        self.machine.add_holder(str(self.address), 4711, 'nv-hostengine')
        error = self.try_change()
        self.machine.remove_holder(4711)
        self.assertIn('nv-hostengine', str(error))
        self.assert_whole(error, 'held')
        self.assertEqual((), self.machine.damage)
        self.assertEqual((), self.machine.blocked_unbinds)


class ModeOffFaults(ModeFaults):
    """The change destroys the instances and turns MIG mode off."""

    before = {'_3g_40gb': 1, '_1g_10gb': 1}
    after = None


class UnderstoodStates(Scenario):
    """What a failed change leaves behind is reported later."""

    def test_assert_tells_an_interrupted_change(self):
        self.again()
        self.machine.faults.fail('nvmlDeviceCreate*', 999, times=None)
        self.try_change()
        self.machine.faults.clear()
        now = self.transactions.read(self.gpu)
        self.assertFalse(plan.plan(
            now, self.wanted(**self.after)).is_empty)
        self.assertIn('the rollback is blocked', str(self.change_record()))
        self.assertIs(apply.Status.CHANGED, self.change())

    def test_instance_taken_meanwhile_stays(self):
        """The rollback does not destroy an instance that is in use by now."""
        self.again()
        self.machine.faults.fail('nvmlGpuInstanceCreateCompute*', 999,
                                 nth=2, times=None)
        self.machine.faults.delay('nvmlComputeInstanceDestroy', 0,
                                  self._take_new_instance)
        error = self.try_change()
        self.assertIn('4711', str(error))
        self.assertIn('4711', self.change_record().problem)
        self.machine.faults.clear()
        self.machine.remove_process(4711)
        self.transactions.finish(self.gpu)
        self.assertEqual(self.old, self.truth())

    def test_instance_of_another_that_appears_meanwhile_stays(self):
        """The change fails, and all but that instance is as it was before."""
        self.again()
        self.load(self.saved())
        with self.machine.operation(write=True):
            state = self.machine.gpu(self.address).state
            (gone,) = [key for key, item in state.instances.items()
                       if item.start == 3]
            del state.instances[gone]
        before = self.truth()
        self.machine.faults.delay('nvmlGpuInstanceCreateComputeInstance', 0,
                                  self._make_foreign)
        error = self.assertRaises(exception.ChangeFailed, self.apply,
                                  _1c_3g_40gb=2, _1g_10gb=3)
        self.assertIn('that was not asked for', str(error))
        self.assertEqual(
            sorted((*before[2], (3, 1, 19, []))), self.truth()[2])
        self.assertIsNone(self.change_record())

    def _make_foreign(self, _seconds):
        """Another program creates an instance while a change goes on.

        It calls NVML directly, because a session makes one call at a time.
        """
        if not any(item[:2] == (3, 1) for item in self.truth()[2]):
            pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                pynvml.nvmlDeviceGetHandleByPciBusId(str(self.address)), 19,
                ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(3, 1)))

    def _take_new_instance(self, _seconds):
        """Start a process on the instance that the change has created."""
        state = self.machine.gpu(self.address).state
        for key, item in state.instances.items():
            if item.profile_id == 14 and item.compute:
                self.machine.add_process(self.address, 4711, key, 0)
                self.machine.faults.delay('nvmlComputeInstanceDestroy', 0,
                                          lambda _: None)


del Scenario
