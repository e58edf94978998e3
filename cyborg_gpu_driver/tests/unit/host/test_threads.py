# SPDX-License-Identifier: Apache-2.0

"""Threads that the operating system does not start at once."""

import queue
import threading
from unittest import mock

import fixtures
from oslotest import base

from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.tests import thread_limit

_SECONDS = 60


class RepeatedTest(base.BaseTestCase):

    def test_an_error_ends_neither_the_thread_nor_the_log(self):
        log = self.useFixture(fixtures.FakeLogger())
        called = queue.Queue()

        def act():
            called.put(threading.current_thread())
            raise OSError('no room')

        repeated = deadline.Repeated(act, 0.0, 'the test')
        repeated.start()
        repeated.start()
        self.assertEqual(1, len({called.get(timeout=_SECONDS)
                                 for _ in range(3)}))
        self.assertTrue(repeated.stop())
        self.assertEqual(1, log.output.count('Traceback'))
        while not called.empty():
            called.get()
        repeated.start()
        self.assertTrue(called.get(timeout=_SECONDS).is_alive())
        repeated.stop()

    def test_it_waits_unless_it_is_asked(self):
        called = threading.Event()
        repeated = deadline.Repeated(called.set, 10 * _SECONDS, 'the test')
        repeated.start()
        self.addCleanup(repeated.stop)
        repeated.ask()
        self.assertTrue(called.wait(_SECONDS))


class BeginTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.act = mock.Mock(
            side_effect=lambda *arguments: self.where.append(
                threading.current_thread()))
        self.where = []

    def test_in_a_thread_of_its_own(self):
        called = queue.Queue()
        deadline.begin_thread(lambda word: called.put(
            (word, threading.current_thread().name)), 'it', name='test')
        self.assertEqual(('it', 'test'), called.get(timeout=_SECONDS))

    def test_in_the_callers_if_none_can_start(self):
        with thread_limit.reached():
            deadline.begin_thread(self.act, 1, 2, name='test')
        self.act.assert_called_once_with(1, 2)
        self.assertEqual([threading.current_thread()], self.where)

    def test_the_caller_gets_no_error(self):
        self.act.side_effect = OSError('no room')
        with thread_limit.reached():
            deadline.begin_thread(self.act, name='the write')
        self.assertIn('the write', self.log.output)
        self.assertIn('no room', self.log.output)
