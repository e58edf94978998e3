# SPDX-License-Identifier: Apache-2.0

"""The scheduling benchmark: how each way chooses, and its arithmetic."""

import contextlib
import dataclasses
import io
import json
import random

from oslotest import base

from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

scheduling = test_packing.program('scheduling')

SMALL, HALF, WHOLE = 0, 2, 4


class WaysTest(base.BaseTestCase):
    """Clouds of two hosts with two GPUs each."""

    def cloud(self, name, *profiles):
        cloud = scheduling.WAYS[name](2, 2, random.Random(1))
        for profile in profiles:
            cloud.request(profile)
        return cloud

    def test_the_weigher_fills_what_is_begun(self):
        cloud = self.cloud(scheduling.WITH)
        self.assertEqual(1, len({cloud.request(SMALL).gpu
                                 for _ in range(3)}))

    def test_what_is_full_is_refused_until_something_goes(self):
        for name in scheduling.WAYS:
            cloud = self.cloud(name, *[WHOLE] * 3)
            last = cloud.request(WHOLE)
            self.assertIsNone(cloud.request(SMALL), name)
            cloud.remove(last)
            self.assertEqual(last.gpu, cloud.request(HALF).gpu, name)


class ProgramTest(base.BaseTestCase):

    def run_program(self, *arguments):
        printed, told = io.StringIO(), io.StringIO()
        with (contextlib.redirect_stdout(printed),
              contextlib.redirect_stderr(told)):
            code = scheduling.main([
                '--hosts', '2', '--gpus', '2', '--mix', 'uniform',
                '--requests', '600', '--seeds', '1', '--load', '0.9',
                '--role-gpus', '4', '--role-requests', '900',
                *arguments])
        return code, printed.getvalue(), told.getvalue()

    def test_json(self):
        _code, printed, _told = self.run_program('-f', 'json')
        answer = json.loads(printed)
        by_way = {line['way']: line for line in answer['cases']}
        self.assertEqual({field.name for field in
                          dataclasses.fields(scheduling.Line)},
                         set(by_way[scheduling.WITH]))
        self.assertEqual(1.0, by_way[scheduling.WITHOUT]['ratio'])
        self.assertLess(by_way[scheduling.WITHOUT]['acceptance'],
                        by_way[scheduling.REPACKING]['acceptance'])
        self.assertEqual(scheduling.LIMIT, answer['limit'])
        self.assertEqual(scheduling.roles.LIMIT, answer['elastic']['limit'])
        self.assertEqual({*scheduling.roles.MIXES}, {
            line['mix'] for line in answer['elastic']['cases']})

    def test_what_falls_short_ends_with_1(self):
        self.addCleanup(setattr, scheduling, 'LIMIT', scheduling.LIMIT)
        scheduling.LIMIT = 1.1
        code, printed, told = self.run_program(
            '--requests', '300', '--role-requests', '450')
        self.assertEqual(1, code)
        self.assertIn('gap closed', printed)
        self.assertIn('of the gap closed is less than 1.10', told)
        self.assertIn('limit 0.70', printed)
