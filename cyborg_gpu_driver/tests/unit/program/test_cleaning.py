# SPDX-License-Identifier: Apache-2.0

"""Whole GPUs cleaned between tenants, on simulated hardware."""

import dataclasses
import errno
import logging
import os
from unittest import mock

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning as states
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program import cleaning
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.program import nodes

_STATE = states.State
_H100 = model.PciAddress.parse('0000:81:00.0')
_BLIND = model.PciAddress.parse('0000:c1:00.0')


class Ledger:
    """Allocations of one inventory, by Placement's rules."""

    def __init__(self):
        self.tenants = set()
        self.generation = 3
        self.reserved = 0
        self.ours = 0
        self.answers = True

    def seen(self, provider):
        if not self.answers:
            raise ConnectionError('no route')
        return states.Seen(tuple(sorted(self.tenants)), self.generation,
                           self.ours)

    def generations(self, providers):
        return {provider: self.seen(provider).generation
                for provider in providers}

    def close(self, provider, resource_class, seen):
        if self.generation != seen.generation:
            return None
        self.reserve(1)
        return self.seen(provider)

    def reserve(self, number):
        """Reserve a number of units, as the report does after each look."""
        if self.reserved != number:
            self.reserved = number
            self.generation += 1
            self.ours += 1

    def allocate(self, tenant):
        self.tenants.add(tenant)
        self.generation += 1

    def delete(self, tenant):
        self.tenants.remove(tenant)


class CleaningCase(base.BaseTestCase):

    address = _H100

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        self.log = self.useFixture(fixtures.FakeLogger(
            'cyborg_gpu_driver', level=logging.INFO))
        self.machine = simulator.Machine.load('mixed')
        self.addCleanup(self.machine.uninstall)
        self.ledger = Ledger()
        self.now = 1000.0
        self.enabled = True
        self.use(platform.open_platform(self.machine))
        # The first report comes before Cyborg has created the provider.
        self.ledger.seen, seen = lambda provider: None, self.ledger.seen
        self.look()
        self.ledger.seen = seen
        self.look()

    def use(self, machine):
        self.platform = machine
        privileged.run_here(machine)
        self.start()

    def start(self):
        """Start an agent that has written nothing yet."""
        self.ledger.ours = 0
        node = nodes.Node(
            self.platform, self.state_path, policies.Settings(
                policies=(policy.Policy('p', policy.Mode.PASSTHROUGH),)))
        self.live = node.live
        self.cleaner = cleaning.Cleaner(
            node.resetter, self.state_path, self.ledger, node.history,
            self.enabled, lambda: self.now)

    def look(self):
        """Run a report. Return whether the GPU is withheld after it."""
        gpu = self.live.refresh().gpu(self.address)
        self.cleaner.look([cleaning.Whole(gpu, 'provider', 'PGPU')])
        withheld = self.withheld()
        self.ledger.reserve(int(withheld))
        return withheld

    def withheld(self):
        return self.cleaner.withholds(
            self.live.offers(self.live.gpu(self.address)))

    def tenancy(self):
        return store.of(self.state_path).read(self.address).tenancy

    def use_up(self, tenant='server'):
        """Let a server have the GPU during a report, and then release it."""
        self.ledger.allocate(tenant)
        self.assertTrue(self.look())
        self.ledger.delete(tenant)

    def resets(self):
        """How often the GPU was reset, as the simulator knows it."""
        with self.machine.operation():
            return self.machine.gpu(self.address).state.resets

    def whats(self):
        return [record.what for record
                in host_files.audit(self.state_path)]

    def evidence(self):
        return host_files.audit(self.state_path)[-1].evidence

    def state(self):
        """The state as it is on the disk."""
        return self.tenancy().state


class TenantsTest(CleaningCase):

    def test_a_bind_waits_for_the_reset_unless_the_gpu_is_parted(self):
        self.use_up()
        whole = cleaning.Whole(self.live.gpu(self.address), 'provider',
                               'PGPU')
        self.assertIn('has not been reset yet',
                      self.cleaner.take(whole, True, False))
        self.assertEqual('', self.cleaner.take(whole, True, True))

    def test_the_evidence_of_a_reset(self):
        self.machine.set_health(str(self.address), uncorrected=2)
        self.use_up()
        self.look()
        record = host_files.audit(self.state_path)[-1]
        self.assertEqual('server', record.subject)
        before, after = (record.evidence[name]
                         for name in ('before', 'after'))
        self.assertEqual((2, 0), (before['ecc_uncorrected'],
                                  after['ecc_uncorrected']))
        self.assertEqual(('nvidia', 0, 0, 81559), tuple(
            after[name] for name in ('driver', 'processes',
                                     'memory_used_mib', 'memory_mib')))
        self.assertTrue(after['uuid'].startswith('GPU-'))

    def test_between_two_reports(self):
        self.assertEqual([], self.look_at_changed())
        self.ledger.allocate('server')
        self.assertEqual([self.address], self.look_at_changed())
        self.assertTrue(self.withheld())
        self.assertEqual([], self.look_at_changed())
        self.ledger.delete('server')
        self.assertEqual([self.address], self.look_at_changed())
        self.ledger.allocate('second')
        self.ledger.delete('second')
        self.assertEqual([self.address], self.look_at_changed())
        self.assertEqual(2, self.resets())
        self.ledger.allocate('third')
        self.look_at_changed()
        self.ledger.delete('third')
        # Only a report asks about a GPU that a server has for a while.
        self.now += 100
        self.assertEqual([], self.look_at_changed())
        self.look()
        self.assertEqual(3, self.resets())
        self.ledger.answers = False
        self.assertEqual([], self.look_at_changed())
        self.assertEqual(1, self.log.output.count('Cannot read from'))

    def look_at_changed(self):
        return self.cleaner.look_at_changed([cleaning.Whole(
            self.live.gpu(self.address), 'provider', 'PGPU')])

    def test_who_may_have_got_it_uncleaned_is_named(self):
        self.ledger.allocate('first')
        self.ledger.delete('first')
        self.ledger.allocate('second')
        self.assertTrue(self.look())
        self.assertEqual(0, self.resets())
        self.assertIn('may not have been reset before second',
                      self.log.output)
        self.assertIn('another server', self.evidence()['doubt'])

    def test_nobody_is_reset_who_comes_while_it_is_looked_at(self):
        self.use_up()
        seen = self.ledger.seen
        self.ledger.reserved = 0

        def late(provider):
            found = seen(provider)
            self.ledger.allocate('other')
            return found

        self.ledger.seen = late
        self.assertTrue(self.look())
        self.ledger.seen = seen
        self.assertTrue(self.look())
        self.assertEqual(0, self.resets())
        self.assertEqual(['given', 'returned', 'not-cleaned', 'given'],
                         self.whats())

    def test_a_provider_that_placement_refuses_stops_no_other(self):
        self.use_up()
        answer = self.ledger.seen

        def seen(provider):
            if provider == 'refused':
                raise exception.PlacementRefused(what='GET', code=500,
                                                 text='')
            return answer(provider)

        self.ledger.seen = seen
        wholes = [cleaning.Whole(gpu, 'provider' if gpu.address
                                 == self.address else 'refused', 'PGPU')
                  for gpu in self.live.refresh().gpus]
        self.assertNotEqual('provider', wholes[0].provider)
        for _ in range(2):
            self.cleaner.look(wholes)
        self.assertEqual(1, self.resets())
        self.assertFalse(self.withheld())
        self.assertEqual(1, self.log.output.count('Cannot read from'))

    def test_of_another_mode_it_does_not_matter(self):
        self.use_up()
        self.look()
        self.use_up()
        self.assertTrue(self.withheld())
        (whole,) = self.live.offers(self.live.gpu(self.address))
        self.assertFalse(self.cleaner.withholds(
            [dataclasses.replace(whole, mode=policy.Mode.MIG)]))

    def test_it_is_left_to_whoever_turns_it_off(self):
        self.use_up()
        self.enabled = False
        self.start()
        self.assertFalse(self.look())
        self.assertEqual(0, self.resets())
        self.assertIsNone(self.tenancy())
        self.enabled = True
        self.start()
        self.assertFalse(self.look())
        self.assertEqual(1, self.resets())

    def test_a_gpu_that_is_no_longer_offered_as_a_whole(self):
        self.ledger.allocate('server')
        self.look()
        self.cleaner.look((), {self.address})
        self.assertIs(_STATE.USED, self.tenancy().state)
        self.ledger.delete('server')
        for _ in range(2):
            self.cleaner.look(())
            self.assertIs(_STATE.DIRTY, self.tenancy().state)
        self.assertEqual(['given', 'returned'], self.whats())
        # Its former server is remembered if it is offered as a whole again.
        self.assertFalse(self.look())
        self.assertEqual(1, self.resets())


class ObstacleTest(CleaningCase):

    def test_processes_and_holders_are_waited_for(self):
        self.use_up()
        self.machine.add_process(str(self.address), 4711)
        for _ in range(3):
            self.assertTrue(self.look())
        self.machine.remove_process(4711)
        self.machine.add_holder(str(self.address), 815, 'nv-hostengine')
        self.assertTrue(self.look())
        self.assertEqual(0, self.resets())
        self.assertIn('process 815 (nv-hostengine): stop the unit',
                      self.evidence()['reason'])
        self.machine.remove_holder(815)
        self.assertFalse(self.look())
        self.assertEqual(1, self.resets())
        self.assertEqual(['given', 'returned', 'not-cleaned', 'not-cleaned',
                          'cleaned'], self.whats())
        self.assertEqual(2, self.log.output.count('is not offered until'))
        self.assertEqual(1, self.log.output.count('offered again'))

    def test_a_reset_that_fails_is_tried_again_in_a_while(self):
        self.use_up()
        self.machine.faults.fail('nvidia-smi', errno.EIO, times=2)
        self.assertTrue(self.look())
        self.assertIs(_STATE.STUCK, self.state())
        self.now += 299
        self.assertTrue(self.look())
        self.assertIs(_STATE.STUCK, self.state())
        self.now += 2
        self.assertTrue(self.look())
        self.now += 301
        self.assertFalse(self.look())
        self.assertEqual(['given', 'returned', 'not-cleaned', 'cleaned'],
                         self.whats())

    def test_a_gpu_that_another_process_holds_is_reset_by_the_next_report(
            self):
        self.use_up()
        self.patch(locks, 'REPORT_SECONDS', 0.0)
        with locks.gpu(self.state_path, self.address):
            self.assertTrue(self.look())
        self.assertIs(_STATE.DIRTY, self.state())
        self.assertFalse(self.look())

    def test_a_gpu_that_shows_what_was_on_it(self):
        self.machine.set_health(str(self.address), uncorrected=2)
        self.use_up()
        # The kernel takes the reset for done, but the GPU is not reset.
        gpu = self.machine.gpu(str(self.address))
        gpu.clear = gpu.driver_leaves = lambda: None
        self.assertTrue(self.look())
        self.assertIs(_STATE.STUCK, self.state())
        self.assertIn('memory errors', self.evidence()['reason'])

    def test_nvidia_smi_needs_no_way_of_the_kernel_to_reset_it(self):
        self.hide_reset()
        self.use_up()
        self.assertFalse(self.look())
        self.assertIs(_STATE.FREE, self.state())

    def test_a_gpu_that_the_kernel_cannot_reset(self):
        self.hide_reset()
        self.machine.bind_driver(self.address, 'vfio-pci')
        self.assertFalse(self.look())
        self.assertFalse(self.look())
        self.assertEqual(1, self.log.output.count('cannot be reset'))
        self.use_up()
        self.assertTrue(self.look())
        self.assertIs(_STATE.STUCK, self.state())
        self.assertIn('clean_whole_gpus', self.evidence()['reason'])

    def hide_reset(self):
        """Let the kernel have no way to reset any GPU."""
        simulated = self.machine.os

        class WithoutReset:
            def __getattr__(self, name):
                return getattr(simulated, name)

            def stat(self, path):
                if path.endswith('/reset'):
                    raise FileNotFoundError(errno.ENOENT, 'no', path)
                return simulated.stat(path)

        self.platform.sysfs._os = WithoutReset()

    def test_a_driver_that_tells_nothing_of_its_users(self):
        self.use_up()
        self.machine.bind_driver(str(self.address), 'nouveau')
        before = self.resets()
        self.assertTrue(self.look())
        self.assertEqual(before, self.resets())
        self.assertIn('nouveau', self.evidence()['reason'])

class GuestTest(CleaningCase):
    """A GPU that is bound to vfio-pci, where NVML does not see it."""

    address = _BLIND

    def hold(self, *pids):
        def holders(function):
            if None in pids:
                raise exception.UsageUnknown(what=function, reason='why')
            return pids if function == str(_BLIND) else ()

        self.use(dataclasses.replace(self.platform, vfio_holders=holders))

    def test_it_is_reset_when_its_guest_is_gone(self):
        self.use_up()
        self.hold(4711)
        self.assertTrue(self.look())
        self.assertEqual(0, self.resets())
        self.assertIn('process 4711', self.evidence()['reason'])
        self.hold(None)
        self.assertTrue(self.look())
        self.assertEqual(0, self.resets())
        self.hold()
        self.assertFalse(self.look())
        self.assertEqual(1, self.resets())
        self.assertEqual('vfio-pci', self.evidence()['after']['driver'])


class CrashTest(CleaningCase):

    def test_a_restart_takes_a_clean_gpu_for_clean(self):
        self.use_up()
        self.look()
        self.look()
        self.start()
        self.assertFalse(self.look())
        self.assertEqual(1, self.resets())

    def test_a_crash_in_the_middle_cleans_again(self):
        class Crash(BaseException):
            pass

        self.use_up()
        with mock.patch('cyborg_gpu_driver.program.health.GpuHealth.'
                        'reset_done', autospec=True, side_effect=Crash):
            self.assertRaises(Crash, self.look)
        self.assertEqual(1, self.resets())
        self.start()
        self.assertTrue(self.withheld())
        self.assertIs(_STATE.CLEANING, self.tenancy().state)
        self.assertFalse(self.look())
        self.assertEqual(2, self.resets())

    def test_a_record_that_is_lost_or_damaged_is_a_reset(self):
        path = store.Store(self.state_path).path(self.address)
        for number, text in enumerate((None, 'nonsense', '{}'), 1):
            os.unlink(path)
            if text is not None:
                with open(path, 'w', encoding='utf-8') as stream:
                    stream.write(text)
            store.of(self.state_path).check()
            self.start()
            self.assertFalse(self.look())
            self.assertEqual(number, self.resets())

    def test_a_record_that_cannot_be_written_keeps_nobody_waiting(self):
        path = store.Store(self.state_path).path(self.address)
        before = os.stat(path)
        with mock.patch('os.fsync', autospec=True, side_effect=OSError(
                errno.ENOSPC, os.strerror(errno.ENOSPC))):
            self.use_up()
            self.assertTrue(self.withheld())
            self.assertFalse(self.look())
        self.assertEqual(before, os.stat(path))
        self.assertEqual(1, self.resets())
        self.assertEqual(1, self.log.output.count('kept in memory'))
        # Nothing is new, but the look writes what was kept in memory.
        self.assertFalse(self.look())
        self.assertNotEqual(before, os.stat(path))
        self.use_up()
        self.assertIs(_STATE.USED, self.state())
