# SPDX-License-Identifier: Apache-2.0


import dataclasses

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import plan
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import state
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


_IDS = {'A100-40': '20b0', 'A100-80': '20b2', 'H100-80': '2330',
        'H200-141': '2335', 'A30': '20b7', 'RTX PRO 6000': '2bb5'}


def host(*names):
    return [boards.gpu(boards.ALL[name], device_id=_IDS[name])
            for name in names]


class GenerateTestCase(base.BaseTestCase):

    def test_one_kind_of_board_needs_no_filter(self):
        found = state.generate(host('A30', 'A30'))
        self.assertEqual({
            'all-disabled': {},
            'all-enabled': {},
            'all-1g.6gb': {'1g.6gb': 4},
            'all-1g.6gb.me': {'1g.6gb+me': 1},
            'all-2g.12gb': {'2g.12gb': 2},
            'all-2g.12gb.me': {'2g.12gb+me': 1},
            'all-4g.24gb': {'4g.24gb': 1},
            'all-balanced': {'2g.12gb': 1, '1g.6gb': 2},
        }, {entry.name: dict(entry.sections[0].mig_devices)
            for entry in found.entries})
        for entry in found.entries:
            section, = entry.sections
            self.assertEqual((), section.devices.boards)
            self.assertIsNone(section.devices.indices)

    def test_eight_units(self):
        found = state.generate(host('A100-40'))
        self.assertEqual(
            {'3g.20gb': 1, '2g.10gb': 1, '1g.5gb': 2},
            found.entry('all-balanced').sections[0].mig_devices)

    def test_each_board_gets_its_own(self):
        gpus = host(*_IDS) + [boards.gpu((), mig=None, device_id='1eb8')]
        found = state.generate(gpus)
        self.assertEqual([
            (('0x20B010DE',), {'1g.10gb': 4}),
            (('0x20B210DE', '0x233010DE'), {'1g.10gb': 7}),
        ], [(section.devices.boards, section.mig_devices)
            for section in found.entry('all-1g.10gb').sections])
        enabled, = found.entry('all-enabled').sections
        self.assertEqual(6, len(enabled.devices.boards))
        disabled, = found.entry('all-disabled').sections
        self.assertEqual((), disabled.devices.boards)

    def test_every_layout_can_be_had(self):
        gpus = host(*_IDS)
        found = state.generate(gpus)
        self.assertEqual(
            found, layout_file.LayoutFile.parse(found.dump(), found.source))
        spoken_of = set()
        for entry in found.entries:
            for index, wanted in entry.for_host(gpus).items():
                spoken_of.add((entry.name, index))
                planned = plan.plan(gpus[index], wanted)
                mode, there = playing.play(planned)
                self.assertEqual(wanted.enabled, mode)
                self.assertEqual(sum(wanted.counts.values()), len(there))
        self.assertIn(('all-balanced', 5), spoken_of)

    def test_no_gpu(self):
        self.assertEqual((), state.generate([]).entries)
