# SPDX-License-Identifier: Apache-2.0
"""A GPU whose NVML calls never return, under the released services."""

import os
import signal
import subprocess
import sys
import time
import uuid

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud

GPU = '0000:07:00.0'
OTHER = '0000:0f:00.0'
_TIMEOUT = 2

_AGENT = """
import sys
import cyborg.cmd
from cyborg.common import service
from cyborg_gpu_driver import driver
service.prepare_service(['cyborg-agent', '--config-file', sys.argv[1]])
print('drivers:', len(driver.GPUDriver().discover()), flush=True)
"""

_COMMAND = """
import signal
import sys
# Python leaves it ignored where it was, as in a job in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
from cyborg_gpu_driver.cmd import main
print('reading', flush=True)
sys.exit(main.main(sys.argv[1:]))
"""


class HungGpuTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    clean_checks = 1
    overrides = {'gpu': {'policies': 'slices', 'nvml_timeout': _TIMEOUT},
                 'gpu_policy:slices': {'mode': 'mig',
                                       'match_address': f'{GPU},{OTHER}',
                                       'profiles': '3g.40gb'}}

    def hang(self):
        """Let no call about the first GPU return, in any process."""
        self.world.hang_gpu(GPU)
        self.addCleanup(self.answer)

    def answer(self):
        """Let the GPU answer; return when this process has noticed."""
        self.world.hang_gpu(GPU, False)
        worker = deadline._workers.get(model.PciAddress.parse(GPU))
        if worker is not None and worker.stuck:
            worker._late[0].answer.exception(scope.HANG)

    def wait_for(self, condition):
        """Wait until the condition holds, which must not take long."""
        end = time.monotonic() + scope.HANG
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def timed(self, act, *arguments):
        """Call something that must not hang; return its result."""
        began = time.monotonic()
        found = act(*arguments)
        self.assertLess(time.monotonic() - began, scope.HANG)
        return found

    def everything_reserved(self, gpu):
        return all(total == reserved for total, reserved
                   in self.reserved(gpu).values())

    def asked(self, gpu):
        """Return the arguments of each bind of one of a GPU's slices."""
        self.without_allocations()
        agent = self.driver._running()
        (offer,) = agent.live.offers(agent.live.gpu(
            model.PciAddress.parse(gpu)))
        carriers = [function for function, _ in self.mdevs(gpu).values()]
        return [(str(function), offer.vgpu_type_id, str(uuid.uuid4()))
                for function in offer.parents
                if str(function) not in carriers]

    def test_reports_and_binds_elsewhere_go_on(self):
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_3G_40GB'))
        (asked, *_), other = self.asked(GPU), self.asked(OTHER)
        self.hang()
        self.timed(self.report)
        self.assertTrue(self.everything_reserved(GPU))
        self.assertEqual(2, len(self.cloud.cyborg.devices()))
        self.assertIsNotNone(self.driver._running().health.unhealthy(
            model.PciAddress.parse(GPU)))
        # Bind as many as fit on the GPU that answers, and one more, which is
        # refused: the driver then reads that GPU again, and no other.
        made = len(self.mdevs(OTHER))
        for each in other[:2 - made]:
            self.timed(self.driver.bind, *each)
        self.assertEqual(2, len(self.mdevs(OTHER)))
        self.assertRaises(exception.GpuDriverError, self.timed,
                          self.driver.bind, *other[0][:2],
                          str(uuid.uuid4()))
        error = self.assertRaises(exception.BindRefused, self.timed,
                                  self.driver.bind, *asked)
        self.assertIn('does not answer', str(error))
        before = self.hardware(GPU)
        for each in other[:2 - made]:
            self.timed(self.driver.unbind, *each)
        self.assertEqual(made, len(self.mdevs(OTHER)))
        self.timed(self.report)
        self.assertEqual(before, self.hardware(GPU))
        self.answer()
        for _ in range(3):
            self.report()
        self.assertFalse(self.everything_reserved(GPU))
        self.cloud.unbind(server)
        self.report()
        self.assertEqual(self.untouched, self.everything())

    def test_an_agent_ends(self):
        self.hang()
        self.driver._role.release()
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', _AGENT,
             self.cloud.cloud.config_path], capture_output=True, text=True,
            check=False, timeout=scope.HANG)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn('\ndrivers: 2\n', done.stdout)
        self.assertNotIn('Traceback', done.stderr)

    def test_a_command_ends_when_it_is_interrupted(self):
        self.hang()
        with open(self.cloud.cloud.config_path, encoding='utf-8') as stream:
            patient = stream.read().replace(
                f'nvml_timeout = {_TIMEOUT}', 'nvml_timeout = 3600')
        self.assertIn('3600', patient)
        path = os.path.join(self.state_path, 'patient.conf')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(patient)
        command = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', _COMMAND, '--config-file',
             path, 'gpu', 'list'], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(command.kill)
        self.assertEqual('reading\n', command.stdout.readline())
        self.wait_for(lambda: command.pid in dict(self.world.holders(OTHER)))

        def ends():
            # Python loses an interrupt that comes in a finalizer.
            command.send_signal(signal.SIGINT)
            return command.poll() is not None

        self.wait_for(ends)
        command.communicate(timeout=scope.HANG)
        self.assertNotEqual(0, command.returncode)
