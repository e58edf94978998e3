# SPDX-License-Identifier: Apache-2.0

"""Runs of real commands, and how much memory processes use."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.interference import applications
from cyborg_gpu_driver.interference import process
from cyborg_gpu_driver.interference import results
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base as host_base
from cyborg_gpu_driver.tests.unit.interference import commands

Outcome = results.Outcome


class RunCase(commands.CommandsCase):

    def run_one(self, application, companion=None, timeout=scope.HANG,
                endings=None):
        return process.run(application, companion, timeout,
                           lambda _pids: None, endings)


class RunTest(RunCase):

    def outcome(self, text, codes=()):
        return self.run_one(self.script('a', text, codes)).outcome

    def test_failure_has_the_last_complaint(self):
        found = self.run_one(self.script(
            'a', 'echo one >&2; echo two >&2; echo >&2; exit 3'))
        self.assertEqual((Outcome.FAILED, 'a: exit code 3: two', ()),
                         (found.outcome, found.problem, found.seconds))

    def test_exit_codes_of_out_of_memory(self):
        self.assertEqual(Outcome.OUT_OF_MEMORY, self.outcome('exit 77', [77]))
        self.assertEqual(Outcome.FAILED, self.outcome('exit 78', [77]))

    def test_killed_without_lack_of_memory(self):
        self.assertEqual(Outcome.FAILED, self.outcome('kill -9 $$'))

    def test_killed_for_lack_of_memory(self):
        # The command itself is killed, or its shell reports the kill.
        for text in 'kill -9 $$', 'sh -c "kill -9 \\$\\$"; exit $?':
            counts = iter([(5,), (6,)])
            with process.Child(self.script('a', text),
                               lambda counts=counts: next(counts)) as child:
                process.wait([child], time.monotonic() + scope.HANG)
                child.ended()
            self.assertEqual(Outcome.OUT_OF_MEMORY, child.outcome)

    def test_program_that_is_missing(self):
        error = self.assertRaises(
            exception.InvalidValue, self.run_one,
            applications.Application('a', (f'{self.directory}/none',)))
        self.assertIn('command of a', str(error))

    def test_timeout(self):
        found = self.run_one(self.script(
            'a', 'mkfifo $D/f; read x < $D/f'), timeout=0.1)
        self.assertEqual(Outcome.TIMED_OUT, found.outcome)
        self.assertIn('0.1 s', found.problem)

    def test_stop_ends_the_whole_group(self):
        os.mkfifo(self.directory / 'ready')
        with process.Child(self.script(
                'a', 'mkfifo $D/f; echo $$ >> $D/pids; '
                'sh -c \'trap "" TERM; echo $$ >> $0/pids; : > $0/ready; '
                "read x < $0/f' $D & read x < $D/f")) as child:
            (self.directory / 'ready').read_text()
        self.assertEqual(2, len(self.pids()))
        self.assert_ended(self.pids())
        self.assertEqual(Outcome.FAILED, child.outcome)

    def test_companion_that_fails(self):
        forever = self.script('a', 'mkfifo $D/f; read x < $D/f')
        for text, outcome in ('exit 4', Outcome.FAILED), (
                'exit 5', Outcome.OUT_OF_MEMORY):
            with process.Repeated(self.script('b', text, [5])) as companion:
                found = self.run_one(forever, companion)
            self.assertEqual(outcome, found.outcome)
            self.assertIn('b: exit code', found.problem)


class EndingsTest(RunCase):

    def check(self, number, error):
        """Run a command that sends a signal to this process."""
        before = signal.default_int_handler
        # The tests may run with the signal ignored (nohup).
        self.addCleanup(signal.signal, number, signal.signal(number, before))
        with process.Endings() as endings:
            found = self.assertRaises(error, self.run_one, self.script(
                'a', f'echo $$ >> $D/pids; mkfifo $D/f; '
                f'kill -{int(number)} {os.getpid()}; read x < $D/f'),
                endings=endings)
        self.assert_ended(self.pids())
        self.assertEqual(before, signal.getsignal(number))
        return found

    def test_ctrl_c(self):
        self.check(signal.SIGINT, KeyboardInterrupt)

    def test_other_signals(self):
        self.assertEqual(128 + signal.SIGTERM,
                         self.check(signal.SIGTERM, SystemExit).code)
        self.assertEqual(128 + signal.SIGHUP,
                         self.check(signal.SIGHUP, SystemExit).code)

    def test_ignored_signal_stays_ignored(self):
        self.addCleanup(signal.signal, signal.SIGHUP,
                        signal.signal(signal.SIGHUP, signal.SIG_IGN))
        with process.Endings() as endings:
            found = self.run_one(self.script(
                'a', f'kill -1 {os.getpid()}'), endings=endings)
        self.assertEqual(Outcome.MEASURED, found.outcome)


class ProcTest(base.BaseTestCase):
    """A temporary directory in place of /proc."""

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test_tree(self):
        self.write('10/task/10/children', '11 12 ')
        self.write('10/task/15/children', '13 ')
        self.write('11/task/11/children', '14 ')
        self.assertEqual({10, 11, 12, 13, 14},
                         process.tree(10, str(self.root)))

    def test_kills_of_the_machine(self):
        self.write('vmstat', 'nr_free_pages 5\noom_kill 3\n')
        self.assertEqual((3,), self.kills())

    def test_kills_of_the_cgroup(self):
        self.write('self/cgroup', '1:name=systemd:/x\n0::/user.slice/a\n')
        self.write('cgroup/user.slice/a/memory.events',
                   'oom 5\noom_kill 2\noom_group_kill 0\n')
        self.assertEqual((2,), self.kills())

    def kills(self):
        return process.oom_kills(str(self.root), str(self.root / 'cgroup'))


class PeakTest(base.BaseTestCase):

    def test_the_most_counts(self):
        values, seen = [3 << 20, (5 << 20) + 1, None, 1 << 20], \
            threading.Event()

        def used(pids):
            self.assertIn(os.getpid(), pids)
            if len(values) == 1:
                seen.set()
                return values[0]
            return values.pop(0)

        with process.Peak(os.getpid(), used) as peak:
            self.assertTrue(seen.wait(scope.HANG))
        self.assertEqual((5 << 20) + 1, peak.bytes)


class GpuMemoryTest(host_base.SimulatedTestCase):
    """What NVML reports about processes, on a simulated host."""

    def test_sum_of_the_gpus(self):
        self.machine.add_process(str(self.first), 5)
        self.machine.add_process(str(self.addresses[1]), 5)
        self.machine.add_process(str(self.first), 6)
        self.assertEqual(2 << 28, self.used({5, 7}))
        self.assertEqual(3 << 28, self.used({5, 6}))

    def test_smallest_gpu(self):
        self.assertEqual(80 << 30, nvml_process.smallest(
            self.nvml, self.addresses))
        self.assertIsNone(nvml_process.smallest(self.nvml, []))

    def used(self, pids):
        return nvml_process.memory(self.nvml, self.addresses, pids)
