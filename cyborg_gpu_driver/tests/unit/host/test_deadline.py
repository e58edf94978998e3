# SPDX-License-Identifier: Apache-2.0

"""Calls that may never return."""

import os
import subprocess
import sys
import threading
import uuid

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base

_SHORT = 0.1
"""Seconds after which a blocked call is abandoned."""

_EXIT = """
import threading
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
try:
    deadline.run('it', 0.05, 'block', threading.Event().wait)
except exception.NvmlNotAnswering as error:
    print(error, flush=True)
"""


class DeadlineTest(base.LogTestCase):

    def setUp(self):
        super().setUp()
        self.owner = f'GPU {uuid.uuid4()}'
        self.release = threading.Event()
        self.addCleanup(self.release.set)

    def run_it(self, function, *arguments, seconds=scope.HANG):
        return deadline.run(self.owner, seconds, 'call', function, *arguments)

    def block(self):
        """Let a call hang until it is abandoned."""
        return self.assertRaises(exception.NvmlNotAnswering, self.run_it,
                                 self.release.wait, seconds=_SHORT)

    def wait_until_idle(self):
        """Release the hung call; return when the thread is free again."""
        worker = deadline._worker(self.owner)
        call = worker._late[0]
        self.release.set()
        call.answer.result(scope.HANG)

    def test_what_does_not_return_is_told_once_each_way(self):
        error = self.block()
        self.assertEqual('NOT_ANSWERING', error.symbol)
        self.assertEqual('call', error.call)
        self.assertEqual(f'{self.owner} does not answer: call did not return '
                         'within 0.1 s', str(error))
        for _ in range(3):
            again = self.assertRaises(exception.NvmlNotAnswering,
                                      self.run_it, max, 3, 7)
            self.assertEqual(str(error), str(again))
        self.assertEqual((f'call ({self.owner})',), deadline.stuck())
        self.wait_until_idle()
        self.assertEqual((), deadline.stuck())
        for _ in range(3):
            self.assertEqual(7, self.run_it(max, 3, 7))
        self.assertEqual(1, len(self.log.about('does not answer')))
        self.assertEqual(1, len(self.log.about('answers again')))

    def test_what_has_not_begun_is_never_done(self):
        begun, done = threading.Event(), []

        def hang():
            begun.set()
            self.release.wait()

        first = threading.Thread(target=self.run_it, args=(hang,))
        first.start()
        self.assertTrue(begun.wait(scope.HANG))
        self.assertRaises(exception.NvmlNotAnswering, self.run_it,
                          done.append, 1, seconds=_SHORT)
        self.assertEqual((), deadline.stuck())
        self.release.set()
        first.join()
        self.run_it(done.append, 2)
        self.assertEqual([2], done)

    def test_a_call_within_a_call_ends_with_it(self):
        done = []

        def several(wait):
            deadline.run(self.owner, 0, 'inner', wait)
            deadline.run(self.owner, 0, 'more', done.append,
                         deadline.owner())

        self.run_it(several, int)
        self.assertEqual([self.owner], done)
        self.assertIsNone(deadline.owner())
        error = self.assertRaises(
            exception.NvmlNotAnswering, self.run_it, several,
            self.release.wait, seconds=_SHORT)
        self.assertEqual('inner', error.call)
        late = deadline._worker(self.owner)._late[0].answer
        self.release.set()
        self.assertIsInstance(late.exception(scope.HANG),
                              exception.NvmlNotAnswering)
        self.assertEqual(1, len(done))

    def test_a_child_has_threads_of_its_own(self):
        self.block()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if not deadline.stuck() and self.run_it(max, 3, 7) == 7:
                    status = 0
            finally:
                os._exit(status)
        self.assertEqual(0, os.waitpid(child, 0)[1])

    def test_at_the_same_time(self):
        everybody = threading.Barrier(3)

        def wait(item):
            everybody.wait(scope.HANG)
            return item * 2

        self.assertEqual([2, 4, 6], deadline.each(wait, [1, 2, 3]))
        self.assertEqual([], deadline.each(wait, []))
        self.assertRaises(ZeroDivisionError, deadline.each,
                          lambda item: 1 / item, [1, 0, 2])

    def test_a_process_ends_whatever_hangs(self):
        done = subprocess.run([sys.executable, '-c', _EXIT], check=False,
                              capture_output=True, text=True,
                              timeout=scope.HANG)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn('does not answer', done.stdout)
