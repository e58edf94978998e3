# SPDX-License-Identifier: Apache-2.0

"""A GPU whose NVML calls never return."""

from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import health
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base

_1G = 19
_SOON = 0.5
"""Seconds that a call may take once a GPU hangs."""
_LATER = 5
"""The same, where much is read from the other GPUs."""


class HungGpuTest(base.SimulatedTestCase):

    def setUp(self):
        super().setUp()
        self.second = self.addresses[1]
        self.addCleanup(self.answer_again)

    def hang(self):
        """Let the first GPU hang, and shorten the timeout of calls."""
        self.machine.hang_gpu(str(self.first))
        self.nvml.timeout = _SOON

    def answer_again(self):
        """Let the GPU answer; return when nothing hangs any more."""
        self.machine.hang_gpu(str(self.first), False)
        self.nvml.timeout = 30
        worker = deadline._workers.get(self.first)
        if worker is not None and worker.stuck:
            worker._late[0].answer.exception(scope.HANG)
        # Logs the recovery now, so that the next test does not see it.
        deadline.run(self.first, 30, 'nothing', int)

    def check_others(self, host):
        self.assertEqual(8, len(host.gpus))
        for gpu in host.gpus[1:]:
            self.assertEqual(((), True, True),
                             (gpu.problems, gpu.visible_to_nvml,
                              gpu.mig.enabled))

    def test_the_snapshot_goes_on_without_it(self):
        before = self.reader.snapshot()
        self.hang()
        self.nvml.timeout = _LATER
        for _ in range(3):
            host = self.reader.snapshot()
            self.check_others(host)
            gpu = host.gpus[0]
            self.assertEqual(
                (False, None, 'nvidia', 20),
                (gpu.visible_to_nvml, gpu.mig, gpu.driver, len(gpu.vfs)))
            self.assertEqual(
                (f'NVML: GPU {self.first} does not answer: '
                 f'nvmlDeviceGetMigMode did not return within {_LATER} s',),
                gpu.problems)
        self.assertEqual(1, len(self.log.about('No other call is made')))
        self.answer_again()
        self.assertEqual(before, self.reader.snapshot())
        self.assertEqual(1, len(self.log.about('answers again')))

    def test_in_the_middle_of_a_reading(self):
        """Unknown facts are not read as empty, such as no processes."""
        self.nvml.call('nvmlDeviceGetMigMode', self.device())
        self.nvml.timeout = _SOON
        self.machine.faults.delay(
            'nvmlDeviceGetMemoryInfo', 0,
            lambda _: self.machine.hang_gpu(str(self.first)))
        gpu = self.reader.gpu(self.first)
        self.assertFalse(gpu.visible_to_nvml)
        self.assertIn('does not answer', gpu.problems[0])

    def test_whose_function_it_is_says_sysfs(self):
        self.hang()
        gpu = self.reader.gpu(self.second)
        function = gpu.vfs[3].address
        self.assertEqual(
            [self.second, self.second, None],
            [self.reader.owner(address) for address
             in (function, self.second, self.second.__class__.parse(
                 '0000:ff:00.0'))])
        self.assertEqual((), deadline.stuck())

    def test_it_is_unhealthy_and_the_others_are_asked(self):
        self.hang()
        facts = health.read(self.nvml, self.first)
        self.assertEqual((True, True, False), (
            facts.answered, facts.not_answering, facts.lost))
        self.nvml.timeout = scope.HANG
        facts = health.read(self.nvml, self.second)
        self.assertEqual((True, False), (facts.answered,
                                         facts.not_answering))

    def test_the_session_stays_open(self):
        self.reader.snapshot()
        self.hang()
        self.reader.snapshot()
        self.calls()
        for _ in range(3):
            # As while another process waits until NVML is closed.
            self.assertFalse(self.nvml.reset())
        self.assertNotIn('nvmlShutdown', self.calls())
        self.assertEqual(1, len(self.log.about('NVML cannot be closed')))
        self.assertEqual((), self.reader.gpu(self.second).problems)
        self.answer_again()
        self.assertTrue(self.nvml.reset())
        self.assertEqual(1, self.calls()['nvmlShutdown'])

    def test_errors_of_the_others_are_heard_of(self):
        self.reader.snapshot()
        self.hang()
        watched = health.EventSet(self.nvml, self.nvml.another())
        watched.settle(frozenset(self.addresses))
        self.assertEqual(7, len(watched.members))
        self.machine.raise_xid(str(self.second), 62)
        self.assertEqual([62], [event.xid for event in watched.wait(0)])
