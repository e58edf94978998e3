# SPDX-License-Identifier: Apache-2.0

"""One writer for each GPU; binds wait for it, but not for long."""

import queue
import threading

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests import thread_limit
from cyborg_gpu_driver.tests.unit.report import placements

_A = model.PciAddress.parse('0000:07:00.0')
_B = model.PciAddress.parse('0000:0f:00.0')


class PublisherTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.begun, self.done = queue.Queue(), queue.Queue()
        self.gates = {_A: threading.Semaphore(0), _B: threading.Semaphore(0)}
        self.failing = set()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.publisher = publishing.Publisher(self.write, scope.HANG)

    def write(self, address, generations):
        self.begun.put((address, generations))
        self.assertTrue(self.gates[address].acquire(timeout=scope.HANG))
        if address in self.failing:
            raise ConnectionError('no route')
        self.done.put((address, generations))

    def wait(self, queue_, address, generations=None):
        self.assertEqual((address, generations),
                         queue_.get(timeout=scope.HANG))

    def said(self):
        return self.log.output.count('cannot be written')

    def test_without_a_thread_the_caller_writes(self):
        self.gates[_A].release(2)
        with thread_limit.reached():
            self.publisher.publish(_A)
            self.wait(self.done, _A)
            self.failing.add(_A)
            self.publisher.publish(_A)
        self.assertEqual(1, self.said())
        self.publisher.ask(_A)
        self.wait(self.begun, _A)

    def test_one_that_waits_holds_up_neither_the_caller_nor_another(self):
        self.publisher.ask(_A)
        self.wait(self.begun, _A)
        self.publisher.ask(_B)
        self.wait(self.begun, _B)
        self.gates[_B].release()
        self.wait(self.done, _B)
        self.gates[_A].release()
        self.wait(self.done, _A)

    def test_a_bind_waits_for_a_writing_that_began_after_it(self):
        self.publisher.ask(_A)
        self.wait(self.begun, _A)
        bind = threading.Thread(target=self.publisher.publish, args=(_A,))
        bind.start()
        self.gates[_A].release()
        self.wait(self.done, _A)
        self.wait(self.begun, _A)
        self.assertTrue(bind.is_alive())
        self.gates[_A].release()
        bind.join(scope.HANG)
        self.assertFalse(bind.is_alive())
        self.wait(self.done, _A)

    def test_what_was_begun_before_is_over_when_it_is_settled(self):
        found = []
        for fails in (False, True):
            self.publisher.ask(_A)
            self.wait(self.begun, _A)
            thread = threading.Thread(target=lambda: found.append(
                self.publisher.settle(_A)))
            thread.start()
            self.gates[_A].release()
            self.wait(self.done, _A)
            self.wait(self.begun, _A)
            self.assertTrue(thread.is_alive())
            self.failing = {_A} if fails else set()
            self.gates[_A].release()
            thread.join(scope.HANG)
        self.assertEqual([True, False], found)

    def test_binds_do_not_wait_again_until_a_report_has_written(self):
        self.publisher = publishing.Publisher(self.write, 0.1)
        self.publisher.publish(_A)
        self.assertEqual(1, self.said())
        # If these waited too, they would wait that long, or forever.
        self.publisher._seconds = 3600.0
        for _ in range(5):
            self.publisher.publish(_A)
        self.publisher.publish(_B)
        self.gates[_A].release(7)
        self.gates[_B].release(2)
        self.assertTrue(self.publisher.enforce([_A, _B], {}))
        self.publisher.recovered()
        self.gates[_A].release()
        self.publisher.publish(_A)
        self.assertEqual(1, self.said())

    def test_an_error_is_said_once_and_ends_nothing(self):
        self.failing.add(_A)
        self.gates[_A].release(3)
        self.gates[_B].release(3)
        for _ in range(2):
            self.publisher.publish(_A)
        self.assertEqual(1, self.said())
        self.publisher.publish(_B)
        self.wait(self.done, _B)
        self.failing.clear()
        self.publisher.publish(_A)
        self.wait(self.done, _A)

    def test_a_report_writes_the_others_where_one_fails(self):
        self.failing.add(_A)
        self.gates[_A].release()
        self.gates[_B].release()
        generations = {'a provider': 3}
        self.assertFalse(self.publisher.enforce([_A, _B], generations))
        self.wait(self.done, _B, generations)
        self.assertEqual(1, self.said())

    def test_a_report_does_not_wait_for_ever(self):
        self.patch(publishing, '_REPORT_SECONDS', 0.1)
        self.assertFalse(self.publisher.enforce([_A, _B], {'one': 1}))
        self.assertEqual(1, self.said())
        for gate in self.gates.values():
            gate.release()


class SenselessTest(base.BaseTestCase):
    """What a proxy may answer instead of Placement, with status 200."""

    def get(self, url, version):
        return placements.Answer(200, self.body)

    def test_it_is_not_taken_for_an_answer(self):
        tree = publishing.ProviderTree(lambda: self)
        writer = reserved.ReservedWriter(tree)
        for self.body in (
                None, [], 'text', 7, {'usages': {'PGPU': 'one'}},
                {'resource_provider_generation': None, 'allocations': {}},
                {'total': 1, 'reserved': None}):
            for ask in (tree.get, tree.usages, writer.seen):
                self.assertRaises(exception.PlacementRefused, ask, 'one')
