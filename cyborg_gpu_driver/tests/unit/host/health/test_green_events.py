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

"""Receiving errors in a process whose threads are eventlet's."""

import subprocess
import sys

from oslo_utils import importutils
from oslotest import base

from cyborg_gpu_driver.tests import scope

_PROGRAM = """
import eventlet
eventlet.monkey_patch()

import time

from cyborg_gpu_driver.host.health import events
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.simulator.machine import machine as simulator

machine = simulator.Machine.load('dgx-a100-80').install()
gpu = model.PciAddress.parse('0000:07:00.0')
heard = []
watcher = events.Watcher(nvml.NvmlSession(), heard.append)
watcher.watch([gpu])
longest, began = 0, time.monotonic()
machine_told = False
while not heard and time.monotonic() - began < 30:
    before = time.monotonic()
    eventlet.sleep(0.01)
    longest = max(longest, time.monotonic() - before)
    if not machine_told and before - began > 0.3:
        machine_told = True
        machine.raise_xid(str(gpu), 62)
watcher.stop()
print([event.xid for event in heard], longest < 0.6)
"""


_HUNG = """
import eventlet
eventlet.monkey_patch()

from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.simulator import platform

machine = simulator.Machine.load('dgx-a100-80')
opened = platform.open_platform(machine)
hosts = reader.HostReader(opened)
hosts.snapshot()
machine.hang_gpu('0000:07:00.0')
opened.nvml.timeout = 2
turns = 0
def other():
    global turns
    while True:
        eventlet.sleep(0.01)
        turns += 1
eventlet.spawn(other)
for _ in range(2):
    found = hosts.snapshot()
    print([gpu.visible_to_nvml for gpu in found.gpus])
print(turns > 20)
machine.hang_gpu('0000:07:00.0', False)
"""


class GreenTest(base.BaseTestCase):

    def run_program(self, program):
        """Return what a program prints."""
        if importutils.try_import('eventlet') is None:
            self.skipTest('this release of OpenStack is without eventlet')
        done = subprocess.run([sys.executable, '-W', 'ignore', '-c',
                               program],
                              capture_output=True, text=True, check=False,
                              timeout=scope.HANG)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout

    def test_waiting_holds_up_no_other_thread(self):
        self.assertEqual('[62] True\n', self.run_program(_PROGRAM))

    def test_a_gpu_that_does_not_answer_holds_up_no_other_thread(self):
        well = ', '.join(['True'] * 7)
        self.assertEqual(f'[False, {well}]\n' * 2 + 'True\n',
                         self.run_program(_HUNG))
