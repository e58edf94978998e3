# SPDX-License-Identifier: Apache-2.0

"""Which sessions may open NVML, in one process and in several."""

import contextlib
import multiprocessing
import os
import queue
import shutil
import threading
import time
import types

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.nvml import access
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests import thread_limit


class Session(gate.Gate):
    """A session that opens nothing."""

    def __init__(self, shared):
        super().__init__(scope.HANG, shared)

    @property
    def open(self):
        return self.session is not None

    def use(self, seconds=None):
        with self.kept(seconds):
            if not self.open:
                self.opening()
                # Not the library of pynvml: nvmlShutdown is not called.
                self.session = types.SimpleNamespace(library=object())


def _another_process(state_path, connection):
    """Use NVML, or take it alone, as each order says."""
    session = Session(access.Access(state_path, 0.3))
    while (order := connection.recv()) != 'end':
        try:
            if order == 'alone':
                with session.alone():
                    connection.send('alone')
                    connection.recv()
            elif order == 'hang':
                with session.kept():
                    session.use()
                    connection.send('hangs')
                    connection.recv()
            else:
                session.use()
            connection.send(('open', session.open))
        except exception.GpuDriverError as error:
            connection.send(str(error))


class GateTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path

    def access(self, timeout=scope.HANG):
        return access.Access(self.state_path, timeout)

    def session(self, timeout=scope.HANG):
        """A session like another process's: it shares only the files."""
        session = Session(self.access(timeout))
        self.addCleanup(session.reset)
        return session

    def process(self):
        """Return another process, and a pipe for orders and answers."""
        mine, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context('fork').Process(
            target=_another_process, args=(self.state_path, theirs))
        process.start()
        theirs.close()
        self.addCleanup(process.join, scope.HANG)
        self.addCleanup(self._end, mine)
        return process, mine

    def _end(self, connection):
        with contextlib.suppress(BrokenPipeError):
            connection.send('end')

    def in_thread(self, act):
        answers = queue.Queue()
        threading.Thread(target=lambda: answers.put(act()),
                         daemon=True).start()
        return answers

    def test_an_idle_session_is_closed_for_who_wants_nvml(self):
        one, other = self.session(), self.session()
        one.use()
        other.use()
        with other.alone():
            self.assertEqual([False, False], [one.open, other.open])
            other.use()
        self.assertFalse(other.open)
        one.use()
        self.assertTrue(one.open)

    def test_a_session_that_cannot_be_closed_stops_no_other(self):
        log = self.useFixture(fixtures.FakeLogger(gate.__name__))
        broken, one, other = self.session(), self.session(), self.session()
        broken.use()
        # Attempts to close an idle session fail.
        wanted = self.useFixture(fixtures.MockPatchObject(
            broken.access, 'wanted', side_effect=OSError('no file'))).mock
        end = time.monotonic() + scope.HANG
        while wanted.call_count < 3 and time.monotonic() < end:
            time.sleep(access.POLL)
        self.assertGreaterEqual(wanted.call_count, 3)
        one.use()
        broken.reset()
        self.assertEqual('alone', self._alone(other))
        self.assertEqual(1, log.output.count('cannot be closed for another'))

    def test_in_memory_it_is_the_same(self):
        shared = access.Access(None, scope.HANG)
        one, other = Session(shared), Session(shared)
        one.use()
        with other.alone():
            self.assertFalse(one.open)
        self.assertRaises(exception.NvmlClosed, self._while_alone, other,
                          one)

    def _while_alone(self, owner, other):
        with owner.alone():
            error = self.in_thread(
                lambda: self._error_of(other, 0)).get(timeout=scope.HANG)
            raise error

    def _error_of(self, session, seconds):
        try:
            session.use(seconds)
        except exception.NvmlClosed as error:
            return error
        return AssertionError('it was opened')

    def test_a_series_of_calls_is_not_torn(self):
        one, other = self.session(), self.session()
        with one.kept():
            one.use()
            waiting = self.in_thread(lambda: self._alone(other))
            while not one.access.wanted():
                pass
            one.use()
            self.assertTrue(one.open)
        self.assertFalse(one.open)
        self.assertEqual('alone', waiting.get(timeout=scope.HANG))

    def _alone(self, session):
        with session.alone():
            return 'alone'

    def test_nobody_opens_it_before_the_other_is_done(self):
        one, other = self.session(), self.session()
        with other.alone():
            waiting = self.in_thread(one.use)
            self.assertRaises(queue.Empty, waiting.get, timeout=0.2)
            self.assertFalse(one.open)
        waiting.get(timeout=scope.HANG)
        self.assertTrue(one.open)

    def test_who_does_not_let_go_is_named(self):
        process, other = self.process()
        other.send('hang')
        self.assertEqual('hangs', other.recv())
        error = self.assertRaises(exception.StepFailed, self._alone,
                                  self.session(0.3))
        self.assertIn(f'process {process.pid} (', str(error))
        other.send('go on')
        other.recv()
        self.assertEqual('alone', self._alone(self.session()))

    def test_who_has_it_alone_is_named(self):
        process, other = self.process()
        other.send('alone')
        self.assertEqual('alone', other.recv())
        session = self.session(0.3)
        error = self.assertRaises(exception.NvmlClosed, session.use)
        self.assertIn(f'process {process.pid} (', str(error))
        self.assertEqual('nvmlInit', error.call)
        # The next call does not wait again for the same process.
        session.access.timeout = scope.HANG
        self.assertRaises(exception.NvmlClosed, session.use)
        other.send('go on')
        self.assertEqual(('open', False), other.recv())
        session.use()
        self.assertTrue(session.open)

    def test_a_process_that_is_killed_holds_nothing(self):
        for order in ('alone', 'hang'):
            process, other = self.process()
            other.send(order)
            other.recv()
            process.kill()
            process.join(scope.HANG)
            session = self.session()
            session.use()
            self.assertEqual('alone', self._alone(session))

    def test_a_forked_child_holds_nothing(self):
        one = self.session()
        one.use()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        self.addCleanup(os.close, read)
        self.addCleanup(os.waitpid, child, 0)
        self.addCleanup(os.close, write)
        self.assertEqual('alone', self._alone(self.session()))

    def test_an_access_that_is_gone_has_no_file_open(self):
        for end in (lambda shared: None, access.Access.forget):
            shared = access.Access(self.state_path)
            self.assertFalse(shared.wanted())
            self.assertEqual(1, self._open_files())
            end(shared)
            del shared
            self.assertEqual(0, self._open_files())

    def _open_files(self):
        """Count the files below the state path that this process has open."""
        found = 0
        for number in os.listdir('/proc/self/fd'):
            # Other threads may have closed it by now.
            with contextlib.suppress(OSError):
                found += os.readlink(f'/proc/self/fd/{number}').startswith(
                    self.state_path)
        return found

    def test_files_that_were_removed(self):
        one, other = self.session(), self.session()
        for _ in range(2):
            one.use()
            self.assertFalse(one.access.wanted())
            shutil.rmtree(os.path.join(self.state_path, 'locks'))
            # The thread that closes sessions may not have looked yet.
            one.yield_to_others()
            self.assertFalse(one.open)
            with other.alone():
                self.assertTrue(one.access.wanted())

    def test_a_directory_that_cannot_be_used(self):
        os.rmdir(self.state_path)
        session = self.session()
        session.use()
        self.assertEqual('alone', self._alone(session))
        self.assertFalse(os.path.exists(self.state_path))
        os.mkdir(self.state_path)

    def test_without_a_thread_that_closes_it_nothing_is_opened(self):
        # Sessions of other tests may keep the thread of the process alive.
        self.useFixture(fixtures.MonkeyPatch(
            f'{gate.__name__}._closer', deadline.Repeated(
                gate._close_for_others, access.POLL, 'closer')))
        one, other = self.session(), self.session(0)
        with thread_limit.reached():
            self.assertRaises(RuntimeError, one.use)
            with other.alone():
                self.assertFalse(one.open)
        one.use()
        self.assertEqual('alone', self._alone(self.session()))
        self.assertFalse(one.open)

    def test_nested(self):
        session = self.session()
        with session.alone(), session.alone():
            session.use()
            with session.lent():
                session.use()
            self.assertFalse(session.open)

    def test_lent_by_who_has_it_alone(self):
        owner, daemon = self.session(), self.session()
        with owner.alone():
            with daemon.lent():
                daemon.use()
                self.assertTrue(daemon.open)
            self.assertFalse(daemon.open)
            self.assertRaises(exception.NvmlClosed, daemon.use, 0)
