# SPDX-License-Identifier: Apache-2.0

"""Binds of servers that have no allocation in Placement."""

import threading

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.program import cordons
from cyborg_gpu_driver.program.bind import admission
from cyborg_gpu_driver.tests import thread_limit
from cyborg_gpu_driver.tests.unit.program.bind import binder_case

_SECONDS = 60


class AllocationTest(binder_case.BinderCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(admission.__name__))
        self.asked = []
        self.units = {}
        self.cloud.allocated = self.allocated
        self.restart()

    def allocated(self, item):
        self.asked.append(item.profile)
        return self.units

    def bind(self, number, profile='1g.5gb'):
        self.binder.bind(*self.handle(profile, number))

    def assert_refused(self, number):
        before = self.truth()
        error = self.assertRaises(exception.BindRefused, self.bind, number)
        self.assertIn('no allocation', str(error))
        self.assertEqual(before, self.truth())
        self.assertEqual(len(before[1]), len(self.records.claims()))

    def test_each_bind_needs_a_unit_of_its_own(self):
        self.assert_refused(0)
        self.units = {'a': 1, 'b': 2}
        for number in range(3):
            self.bind(number)
        self.assert_refused(3)
        # Cyborg repeats a bind: its own unit counts.
        self.bind(1)
        self.assertEqual(['1g.5gb'] * 6, self.asked)

    def test_a_unit_is_free_again_after_an_unbind(self):
        self.units = {'a': 1}
        self.bind(0)
        self.assert_refused(1)
        self.binder.unbind(*self.handle('1g.5gb', 0))
        self.bind(1)

    def test_a_bind_that_failed_holds_no_unit(self):
        self.units = {'a': 1}
        self.stranger(0, 0, 8)
        self.assertRaises(exception.BindRefused, self.bind, 0)
        self.assertEqual({}, self.binder._admission._units)

    def test_a_handle_whose_server_is_gone_holds_no_other_up(self):
        """Cyborg may have lost the unbind of the first server."""
        self.units = {'a': 1}
        self.bind(0)
        self.units = {'b': 1}
        self.bind(1)

    def test_handles_of_an_earlier_process_hold_no_other_up(self):
        self.units = {'a': 1, 'b': 1}
        self.bind(0)
        self.restart()
        self.bind(1)

    def test_unknown(self):
        self.units = None
        self.bind(0)

    def test_an_error_is_said_once_and_binds_go_on(self):
        def fail(item):
            raise ConnectionError('no route')

        self.cloud.allocated = fail
        for number in range(2):
            self.bind(number)
        self.assertEqual(1, self.log.output.count('Binds go on'))
        self.assertIn('no route', self.log.output)
        self.cloud.allocated = self.allocated
        self.assert_refused(2)

    def test_who_does_not_answer_is_waited_for_once(self):
        self.patch(admission, '_SECONDS', 0.1)
        over = threading.Event()
        self.addCleanup(over.set)

        def hang(item):
            self.asked.append(item.profile)
            over.wait(_SECONDS)
            return {}

        self.cloud.allocated = hang
        for number in range(3):
            self.bind(number)
        self.assertEqual(1, len(self.asked))
        self.assertEqual(1, self.log.output.count('Binds go on'))
        over.set()
        self.binder._admission._stuck.result(_SECONDS)
        self.assert_refused(3)

    def test_without_a_thread(self):
        with thread_limit.reached('the allocation of'):
            self.assert_refused(0)


class CordonTest(binder_case.BinderCase):

    def setUp(self):
        super().setUp()
        self.gpu_cordons = cordons.GpuCordons(self.state_path)

    def test_only_a_new_server_is_refused(self):
        old, new = self.handle('1g.5gb'), self.handle('1g.5gb', 1)
        self.binder.bind(*old)
        before = self.truth()
        self.gpu_cordons.add(self.address, 'root', 'a fan is broken')
        error = self.assertRaises(exception.BindRefused, self.binder.bind,
                                  *new)
        self.assertRegex(
            str(error), f'GPU {self.address} is cordoned: cordoned on the '
            'host by root since .*: a fan is broken')
        # Nova repeats a bind to which it got no answer.
        self.binder.bind(*old)
        self.assertEqual(before, self.truth())
        self.binder.unbind(*old)
        self.assertEqual(([], []), self.truth())
        self.gpu_cordons.lift(self.address)
        self.binder.bind(*new)
        self.assertEqual(1, len(self.truth()[1]))
