# SPDX-License-Identifier: Apache-2.0

"""Apply layout after layout to each board, each without a retry."""

import collections
import random

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies

from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.partition.layout import state as layout_state
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.program import layouts


class BoardCase(layouts.LayoutCase):

    def entries(self):
        """(counts by device name) of all sensible layouts."""
        file = layout_state.generate([self.gpu])
        return [dict(section.mig_devices) for entry in file.entries
                for section in entry.sections if section.mig_enabled]

    def check_walk(self, counts):
        """Apply layouts one after the other and check each result."""
        for devices in counts:
            now = self.transactions.read(self.gpu)
            wanted = target.wanted(self.gpu, True, devices)
            planned = self.applier.plan(now, wanted)
            kept = {item.instance.placement: item.instance.instance_id
                    for item in planned.keep}
            self.machine.reset_calls()
            self.applier.apply(self.gpu, wanted)
            calls = self.machine.calls
            self.assertEqual(
                len(planned.create),
                calls['nvmlDeviceCreateGpuInstanceWithPlacement'])
            self.assertEqual(len(planned.destroy),
                             calls['nvmlGpuInstanceDestroy'])
            after = self.transactions.read(self.gpu)
            self.assertEqual((), layout_state.differences(after, wanted))
            found = collections.Counter(
                self.gpu.mig.profile_by_id(item.profile_id).name
                for item in after.mig.instances)
            self.assertEqual(collections.Counter(devices), found)
            self.assertLessEqual(kept.items(), {
                item.placement: item.instance_id
                for item in after.mig.instances}.items())

    def check_board(self):
        entries = self.entries()
        self.assertGreater(len(entries), 3)
        random.Random(1).shuffle(entries)
        self.check_walk(entries)


class A100Test(BoardCase):

    MACHINE = 'dgx-a100-40'

    def test_layouts(self):
        self.check_board()

    @settings(max_examples=scope.examples(25))
    @given(data=strategies.data())
    def test_any_walk(self, data):
        entries = self.entries()
        self.check_walk(data.draw(strategies.lists(
            strategies.sampled_from(entries), min_size=2, max_size=4)))


class H100Test(BoardCase):

    MACHINE = 'hgx-h100'

    def test_layouts(self):
        self.check_board()


class H200Test(BoardCase):

    MACHINE = 'hgx-h200'

    def test_layouts(self):
        self.check_board()


class A30Test(BoardCase):

    MACHINE = 'a30x4'

    def test_layouts(self):
        self.check_board()


class RtxPro6000Test(BoardCase):

    MACHINE = 'rtxpro6000x8'

    def test_layouts(self):
        self.check_board()


del BoardCase
