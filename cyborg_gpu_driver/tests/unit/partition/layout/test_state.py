# SPDX-License-Identifier: Apache-2.0


import dataclasses

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import state as layout_state
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition import playing


def gpu(*live, layouts=None, **fields):
    return playing.with_compute(
        boards.gpu(boards.A100_40, live, **fields), layouts)


class DifferencesTestCase(base.BaseTestCase):

    def differences(self, gpu, devices, in_use=None):
        return layout_state.differences(
            gpu, target.wanted(gpu, True, devices), in_use or {})

    def test_as_wanted_wherever_it_lies(self):
        for start in (0, 4):
            self.assertEqual((), self.differences(
                gpu(('3g.20gb', start)), {'3g.20gb': 1}))

    def test_too_many_too_few_and_others(self):
        self.assertEqual(
            ('3g.20gb: 0 instead of 1', '1g.5gb: 1 instead of 2',
             '2g.10gb: 1 instead of 0'),
            self.differences(gpu(('1g.5gb', 0), ('2g.10gb', 4)),
                             {'1g.5gb': 2, '3g.20gb': 1}))

    def test_parts(self):
        there = gpu(('3g.20gb', 0), layouts={0: (1, 1)})
        self.assertEqual((), self.differences(there, {'1c.3g.20gb': 2}))
        self.assertEqual(('1c.3g.20gb: 2 instead of 3',),
                         self.differences(there, {'1c.3g.20gb': 3}))

    def test_an_instance_without_parts(self):
        empty = boards.gpu(boards.A100_40, [('3g.20gb', 0)])
        self.assertEqual(
            ('3g.20gb: 0 instead of 1',
             '3g.20gb at 0:4 has no compute instance'),
            self.differences(empty, {'3g.20gb': 1}))
        self.assertEqual(
            ('3g.20gb at 0:4 has no compute instance',),
            self.differences(empty, {}))
        self.assertEqual((), self.differences(
            empty, {'3g.20gb': 1}, {model.Placement(0, 4): 'mdev 1'}))

    def test_what_cannot_be_reached_differs_too(self):
        there = gpu(('1g.5gb', 2))
        self.assertEqual(
            ('4g.20gb: 0 instead of 1', '1g.5gb: 1 instead of 0'),
            self.differences(there, {'4g.20gb': 1},
                             {model.Placement(2, 1): 'somebody'}))

    def test_the_mode(self):
        on, off = gpu(), gpu(enabled=False)
        none = boards.gpu((), mig=None)
        leaving = dataclasses.replace(on, mig=dataclasses.replace(
            on.mig, pending=False))
        for there, wanted, expected in (
                (on, True, ()), (off, False, ()), (none, False, ()),
                (off, True, ('MIG mode is off instead of on',)),
                (on, False, ('MIG mode is on instead of off',)),
                (none, True, ('MIG mode is off instead of on',)),
                (leaving, True, (
                    'MIG mode is on, but off is pending',)),
                (leaving, False, (
                    'MIG mode is on instead of off, but off is pending',))):
            wanted = target.Wanted(wanted)
            self.assertEqual(
                expected, layout_state.mode_differences(there, wanted))
            self.assertEqual(
                expected, layout_state.differences(there, wanted))


class ExportTestCase(base.BaseTestCase):

    def sections(self, *gpus):
        found = layout_state.export(gpus, 'now')
        self.assertEqual(
            found, layout_file.LayoutFile.parse(found.dump(), found.source))
        for index, wanted in found.entry('now').for_host(gpus).items():
            self.assertEqual(
                (), layout_state.differences(gpus[index], wanted))
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
        for item, text in ((empty, '3g.20gb at 0:4 has no compute instance'),
                           (leaving, 'off is pending')):
            error = self.assertRaises(
                exception.DocumentError, layout_state.check_described, [item],
                layout_state.export([item]), {})
            self.assertIn(text, str(error))
        layout_state.check_described([empty], layout_state.export([empty]),
                                     used)
