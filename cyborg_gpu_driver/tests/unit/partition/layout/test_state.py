# SPDX-License-Identifier: Apache-2.0


import dataclasses

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import plan
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import state as layout_state
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition import playing


def gpu(*live, layouts=None, **fields):
    return playing.with_compute(
        boards.gpu(boards.A100_40, live, **fields), layouts)


class ExportTestCase(base.BaseTestCase):

    def sections(self, *gpus):
        found = layout_state.export(gpus, 'now')
        self.assertEqual(
            found, layout_file.LayoutFile.parse(found.dump(), found.source))
        for index, wanted in found.entry('now').for_host(gpus).items():
            self.assertTrue(plan.plan(gpus[index], wanted).is_empty)
        return [section.to_dict() for section in
                found.entry('now').sections]

    def test_gpus_that_are_all_the_same(self):
        self.assertEqual(
            [{'devices': 'all', 'mig-enabled': True,
              'mig-devices': {'1g.5gb': 2, '3g.20gb': 1}}],
            self.sections(
                gpu(('1g.5gb', 0), ('1g.5gb', 1), ('3g.20gb', 4)),
                gpu(('1g.5gb', 6), ('1g.5gb', 5), ('3g.20gb', 0))))

    def test_gpus_that_are_not(self):
        self.assertEqual(
            [{'devices': [0, 3], 'mig-enabled': False},
             {'devices': [1], 'mig-enabled': True, 'mig-devices': {}},
             {'devices': [2], 'mig-enabled': True,
              'mig-devices': {'1c.3g.20gb': 2}}],
            self.sections(
                gpu(enabled=False), gpu(),
                gpu(('3g.20gb', 0), layouts={0: (1, 1)}),
                boards.gpu((), mig=None)))

    def test_an_instance_without_parts_is_a_whole_one(self):
        empty = boards.gpu(boards.A100_40, [('3g.20gb', 0)])
        found = layout_state.export([empty]).entry()
        self.assertEqual({'3g.20gb': 1}, found.sections[0].mig_devices)

    def test_what_a_file_cannot_describe(self):
        empty = boards.gpu(boards.A100_40, [('3g.20gb', 0)])
        leaving = dataclasses.replace(gpu(), mig=dataclasses.replace(
            gpu().mig, pending=False))
        used = {0: {model.Placement(0, 4): 'mdev 1'}}
        for item in empty, leaving:
            self.assertRaises(
                exception.DocumentError, layout_state.check_described, [item],
                layout_state.export([item]), {})
        layout_state.check_described([empty], layout_state.export([empty]),
                                     used)
