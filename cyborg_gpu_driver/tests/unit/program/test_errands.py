# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.
"""Things done about GPUs by threads that nobody waits for."""

import queue
import threading

from oslotest import base

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.program import errands

_A = model.PciAddress.parse('0000:07:00.0')
_B = model.PciAddress.parse('0000:0f:00.0')
_SECONDS = 30
"""More than anything here takes."""


class ErrandsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.begun, self.done = queue.Queue(), queue.Queue()
        self.gates = {_A: threading.Semaphore(0), _B: threading.Semaphore(0)}
        self.errands = errands.Errands(self.act)

    def act(self, address):
        self.begun.put(address)
        self.assertTrue(self.gates[address].acquire(timeout=_SECONDS))
        self.done.put(address)

    def test_one_that_waits_holds_up_neither_the_caller_nor_another(self):
        self.errands.ask(_A)
        self.assertEqual(_A, self.begun.get(timeout=_SECONDS))
        self.errands.ask(_B)
        self.assertEqual(_B, self.begun.get(timeout=_SECONDS))
        self.gates[_B].release()
        self.assertEqual(_B, self.done.get(timeout=_SECONDS))
        self.gates[_A].release()
        self.assertEqual(_A, self.done.get(timeout=_SECONDS))

    def test_what_comes_meanwhile_is_done_once_more(self):
        self.errands.ask(_A)
        self.begun.get(timeout=_SECONDS)
        for _ in range(3):
            self.errands.ask(_A)
        self.gates[_A].release(2)
        self.assertEqual([_A, _A], [self.done.get(timeout=_SECONDS)
                                    for _ in range(2)])
        self.errands.ask(_A)
        self.gates[_A].release()
        self.assertEqual(_A, self.done.get(timeout=_SECONDS))
        self.assertTrue(self.done.empty())

    def test_an_error_ends_nothing(self):
        failed = threading.Event()
        told = queue.Queue()

        def act(address):
            if not failed.is_set():
                failed.set()
                raise ValueError(address)
            told.put(address)

        self.errands = errands.Errands(act)
        self.errands.ask(_A)
        self.assertTrue(failed.wait(_SECONDS))
        self.errands.ask(_A)
        self.assertEqual(_A, told.get(timeout=_SECONDS))
