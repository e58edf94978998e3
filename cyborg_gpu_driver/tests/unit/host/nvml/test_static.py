# SPDX-License-Identifier: Apache-2.0

"""The static facts of equal boards are read from one of them."""

import itertools
import threading

import fixtures
import pynvml
from oslotest import base as oslo_base

from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.nvml import static
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base

_PROFILE = 'nvmlDeviceGetGpuInstanceProfileInfoV'
_INDICES = 17 + 1
"""The calls that read the list of profiles of driver 570 to its end: one
fails."""


class AlikeTest(oslo_base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.alike = static.Alike(scope.HANG)
        self.numbers = itertools.count(1)
        self.problems = problems_module.Problems()

    def ask(self, kind='a', generation=1, problem=None):
        def read(found):
            if problem:
                found.add(problem)
            return next(self.numbers)

        return self.alike.of(generation, kind, read, self.problems)

    def test_a_board_that_hangs_does_not_keep_the_others(self):
        self.alike = static.Alike(0)
        begun, ended = threading.Event(), threading.Event()

        def hang(_problems):
            begun.set()
            ended.wait(scope.HANG)
            return 'late'

        thread = threading.Thread(target=self.alike.of, args=(
            1, 'a', hang, problems_module.Problems()))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(ended.set)
        self.assertTrue(begun.wait(scope.HANG))
        self.assertEqual([1, 2], [self.ask(), self.ask()])
        ended.set()
        thread.join()
        self.assertEqual('late', self.ask())

    def test_what_fails_is_tried_again(self):
        def read(found):
            raise ZeroDivisionError

        self.assertRaises(ZeroDivisionError, self.alike.of, 1, 'a', read,
                          self.problems)
        self.assertEqual(1, self.ask())

    def test_several_at_once(self):
        together = threading.Barrier(8)
        answers = []

        def ask():
            together.wait()
            answers.append(self.ask())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([1] * 8, answers)


class BoardsTest(base.SimulatedTestCase):

    MACHINE = 'dgx-a100-80'

    def counted(self, **how):
        self.machine.reset_calls()
        self.host = self.reader.snapshot(**how)
        return self.calls()

    def test_of_one_of_eight(self):
        calls = self.counted()
        self.assertEqual(_INDICES, calls[_PROFILE])
        types = {gpu.vgpu_types for gpu in self.host.gpus}
        self.assertEqual(1, len(types))
        self.assertEqual(len(*types), calls['nvmlVgpuTypeGetName'])
        self.assertEqual(8, calls['nvmlDeviceGetSerial'])
        self.assertEqual(8, len({gpu.serial for gpu in self.host.gpus}))
        self.assertEqual(1, len({gpu.mig.profiles
                                 for gpu in self.host.gpus}))

    def test_of_each_with_another_vbios(self):
        read = pynvml.nvmlDeviceGetVbiosVersion
        versions = itertools.count()

        def version(device):
            return f'{read(device)}.{next(versions) // 4}'

        self.useFixture(fixtures.MonkeyPatch(
            'pynvml.nvmlDeviceGetVbiosVersion', version))
        self.assertEqual(2 * _INDICES, self.counted()[_PROFILE])

    def test_one_that_fails_is_no_measure_for_the_others(self):
        self.machine.faults.fail(_PROFILE, pynvml.NVML_ERROR_UNKNOWN)
        self.counted()
        ill = [gpu for gpu in self.host.gpus if gpu.problems]
        self.assertEqual(1, len(ill))
        self.assertEqual(2, len({gpu.mig and gpu.mig.profiles
                                 for gpu in self.host.gpus}))
        self.counted()
        self.assertEqual((), sum((gpu.problems for gpu in self.host.gpus),
                                 ()))

    def test_links_where_they_are_asked_for(self):
        for name in self.counted(links=False):
            self.assertNotIn('NvLink', name)
        self.assertEqual({()}, {gpu.nvlink_peers for gpu in self.host.gpus})
        calls = self.counted()
        self.assertGreater(calls['nvmlDeviceGetNvLinkState'], 8)
        self.assertEqual({7}, {len(gpu.nvlink_peers)
                               for gpu in self.host.gpus})
        for name in self.counted():
            self.assertNotIn('NvLink', name)
