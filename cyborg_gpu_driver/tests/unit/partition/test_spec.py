# SPDX-License-Identifier: Apache-2.0

"""The layout that a GPU has, in the form of a wanted layout."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.tests.unit.partition import boards


class LayoutOfTest(base.BaseTestCase):

    def test_a_mode_that_waits_for_a_reset(self):
        gpu = boards.gpu(boards.A100_40)
        for enabled, pending in ((True, False), (False, True)):
            self.assertEqual(
                spec.MigLayout(enabled, pending),
                spec.layout_of(dataclasses.replace(
                    gpu, mig=dataclasses.replace(
                        gpu.mig, enabled=enabled, pending=pending,
                        instances=()))))

    def test_a_gpu_without_mig(self):
        gpu = dataclasses.replace(boards.gpu(boards.A100_40), mig=None)
        self.assertEqual(spec.MigLayout(False, False), spec.layout_of(gpu))

    def test_the_order_in_which_it_was_read_says_nothing(self):
        gpu = boards.gpu(boards.A100_40)
        parts = (model.ComputeInstance(2, 1, 0),
                 model.ComputeInstance(0, 1, 1))
        instances = (
            model.GpuInstance(model.Placement(4, 4), 9, 2, compute=parts),
            model.GpuInstance(model.Placement(0, 2), 14, 3))
        self.assertEqual(
            (spec.MigInstanceSpec(model.Placement(0, 2), 14),
             spec.MigInstanceSpec(model.Placement(4, 4), 9,
                                  ((0, 1), (2, 1)))),
            spec.layout_of(dataclasses.replace(
                gpu, mig=dataclasses.replace(
                    gpu.mig, instances=instances))).instances)
