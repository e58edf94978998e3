# SPDX-License-Identifier: Apache-2.0

import contextlib
import fcntl
import gc
import logging
import os
import subprocess
import sys
import threading

import fixtures
from oslotest import base

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests import scope

_GPU = model.PciAddress.parse('0000:07:00.0')
_OTHER = model.PciAddress.parse('0000:0f:00.0')
_HOLD = """
import fcntl, sys
with open(sys.argv[1], 'a') as stream:
    fcntl.lockf(stream, fcntl.LOCK_EX)
    print('held', flush=True)
    sys.stdin.read()
"""

_TRY = """
import fcntl, sys
with open(sys.argv[1], 'a') as stream:
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(1)
"""


class _Said(logging.Handler):
    """Log handler that keeps messages and sets an event with the first."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.event = threading.Event()

    def emit(self, record):
        self.lines.append(record.getMessage())
        self.event.set()


class LockTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(self.state_path, 'locks',
                                 f'cyborg-gpu-gpu-{_GPU}')

    def gpu(self, seconds=0.0, purpose='a test'):
        return locks.gpu(self.state_path, _GPU, seconds, purpose)

    def refused(self, seconds=0.0):
        lock = self.gpu(seconds)
        return str(self.assertRaises(exception.LockTimeout, lock.__enter__))

    def hold_elsewhere(self):
        """Let another process hold the lock. Return it, to end it."""
        with self.gpu():
            pass
        child = subprocess.Popen(
            [sys.executable, '-c', _HOLD, self.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.stdin.close)
        self.assertEqual('held\n', child.stdout.readline())
        return child

    def test_a_wait_for_a_thread_ends_and_names_it(self):
        with self.gpu(purpose='bind of handle 1'):
            self.assertEqual(
                'GPU 0000:07:00.0 is locked: bind of handle 1 (in this '
                'process) did not release it within 0.1 s',
                self.refused(0.1))
            with locks.gpu(self.state_path, _OTHER, 0.0):
                pass
        with self.gpu():
            pass

    def test_a_wait_for_a_process_ends_and_names_it(self):
        child = self.hold_elsewhere()
        self.assertIn(f'process {child.pid} (', self.refused(0.1))
        # A refused caller holds nothing that the next one needs.
        self.assertIn(f'process {child.pid} (', self.refused())
        child.stdin.close()
        child.wait()
        with self.gpu():
            pass

    def test_a_host_has_one_agent(self):
        role = locks.agent(self.state_path)
        role.release()
        self.path = role.path
        child = self.hold_elsewhere()
        self.assertIn(f'process {child.pid} (', str(self.assertRaises(
            exception.InvalidConfiguration, locks.agent, self.state_path)))
        child.stdin.close()
        child.wait()
        locks.agent(self.state_path).release()

    def test_a_report_waits_once_for_all_gpus(self):
        self.patch(locks, 'REPORT_SECONDS', 0.2)
        self.hold_elsewhere()
        with locks.report():
            self.assertIn('within 0.2 s', self.refused(None))
            for lock in (self.gpu(None), locks.gpus(self.state_path, [_GPU])):
                self.assertIn('within 0 s', str(self.assertRaises(
                    exception.LockTimeout, lock.__enter__)))
            with locks.gpu(self.state_path, _OTHER):
                pass
        self.assertIn('within 0.2 s', self.refused(None))

    def is_free_elsewhere(self):
        """Whether another process could take the lock now."""
        return subprocess.run([sys.executable, '-c', _TRY, self.path],
                              check=False).returncode == 0

    def test_a_refused_caller_does_not_end_the_lock_of_the_next(self):
        child = self.hold_elsewhere()
        refused = self.assertRaises(exception.LockTimeout,
                                    self.gpu().__enter__)
        child.stdin.close()
        child.wait()
        with self.gpu():
            # An error keeps the variables of the functions that raised it.
            del refused
            gc.collect()
            self.assertFalse(self.is_free_elsewhere())
        self.assertTrue(self.is_free_elsewhere())

    def test_the_creation_of_the_file_does_not_end_a_lock(self):
        link, held = os.link, contextlib.ExitStack()
        self.addCleanup(held.close)

        def link_and_lock(*names):
            link(*names)
            held.enter_context(self.gpu())

        os.mkdir(os.path.dirname(self.path))
        with fixtures.MonkeyPatch('os.link', link_and_lock):
            durable.make_file(self.path)
        self.assertFalse(self.is_free_elsewhere())

    def test_a_long_wait_is_logged_and_goes_on(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.locks._SAY_SECONDS', 0.0))
        held, said = threading.Event(), _Said()
        logger = logging.getLogger(locks.__name__)
        logger.addHandler(said)
        self.addCleanup(logger.removeHandler, said)

        def hold():
            with self.gpu(purpose='a reset'):
                held.set()
                said.event.wait(scope.HANG)

        thread = threading.Thread(target=hold)
        thread.start()
        self.assertTrue(held.wait(scope.HANG))
        with self.gpu(60.0, 'unbind of handle 2'):
            pass
        thread.join(scope.HANG)
        self.assertEqual(
            ['unbind of handle 2 waits for GPU 0000:07:00.0, which a reset '
             '(in this process) holds'], said.lines)

    def test_who_may_only_read_keeps_nobody_out(self):
        for hold in (self.gpu, self.record):
            with hold():
                pass
        names = []
        for directory, _, files in os.walk(self.state_path):
            names += [directory, *(os.path.join(directory, name)
                                   for name in files)]
        self.assertLess(3, len(names))
        for name in names:
            descriptor = os.open(name, os.O_RDONLY)
            self.addCleanup(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.locks._RECORD_SECONDS', 0.0))
        for hold in (self.gpu, self.record):
            with hold():
                pass

    def record(self):
        return locks.record(self.state_path, _GPU)
