# SPDX-License-Identifier: Apache-2.0

"""How much memory processes use."""

from __future__ import annotations

import os
import pathlib
import threading

import fixtures
from oslotest import base

from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.interference import process
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.host import base as host_base


class ProcTest(base.BaseTestCase):
    """A temporary directory in place of /proc."""

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test_tree(self):
        self.write('10/task/10/children', '11 12 ')
        self.write('10/task/15/children', '13 ')
        self.write('11/task/11/children', '14 ')
        self.assertEqual({10, 11, 12, 13, 14},
                         process.tree(10, str(self.root)))

    def test_kills_of_the_machine(self):
        self.write('vmstat', 'nr_free_pages 5\noom_kill 3\n')
        self.assertEqual((3,), self.kills())

    def test_kills_of_the_cgroup(self):
        self.write('self/cgroup', '1:name=systemd:/x\n0::/user.slice/a\n')
        self.write('cgroup/user.slice/a/memory.events',
                   'oom 5\noom_kill 2\noom_group_kill 0\n')
        self.assertEqual((2,), self.kills())

    def kills(self):
        return process.oom_kills(str(self.root), str(self.root / 'cgroup'))


class PeakTest(base.BaseTestCase):

    def test_the_most_counts(self):
        values, seen = [3 << 20, (5 << 20) + 1, None, 1 << 20], \
            threading.Event()

        def used(pids):
            self.assertIn(os.getpid(), pids)
            if len(values) == 1:
                seen.set()
                return values[0]
            return values.pop(0)

        with process.Peak(os.getpid(), used) as peak:
            self.assertTrue(seen.wait(scope.HANG))
        self.assertEqual((5 << 20) + 1, peak.bytes)


class GpuMemoryTest(host_base.SimulatedTestCase):
    """What NVML reports about processes, on a simulated host."""

    def test_sum_of_the_gpus(self):
        self.machine.add_process(str(self.first), 5)
        self.machine.add_process(str(self.addresses[1]), 5)
        self.machine.add_process(str(self.first), 6)
        self.assertEqual(2 << 28, self.used({5, 7}))
        self.assertEqual(3 << 28, self.used({5, 6}))

    def test_smallest_gpu(self):
        self.assertEqual(80 << 30, nvml_process.smallest(
            self.nvml, self.addresses))
        self.assertIsNone(nvml_process.smallest(self.nvml, []))

    def used(self, pids):
        return nvml_process.memory(self.nvml, self.addresses, pids)
