# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

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

    def test_nova_alone_takes_the_host_with_fewest_servers(self):
        cloud = self.cloud(scheduling.WITHOUT)
        hosts = [cloud.request(SMALL).gpu[0] for _ in range(4)]
        self.assertEqual([0, 0, 1, 1], sorted(hosts))
        self.assertNotEqual(hosts[0], hosts[1])
        self.assertNotEqual(hosts[2], hosts[3])

    def test_the_weigher_fills_what_is_begun(self):
        cloud = self.cloud(scheduling.WITH)
        self.assertEqual(1, len({cloud.request(SMALL).gpu
                                 for _ in range(3)}))

    def test_spreading_takes_the_emptiest(self):
        cloud = self.cloud('weigher, spread')
        self.assertEqual(4, len({cloud.request(SMALL).gpu
                                 for _ in range(4)}))

    def test_isolation_keeps_projects_apart(self):
        cloud = self.cloud(scheduling.ISOLATED)
        owners = {}
        for _ in range(40):
            place = cloud.request(SMALL)
            if place is not None:
                owners.setdefault(place.gpu, set()).add(cloud._project)
        self.assertEqual(4, len(owners))
        self.assertEqual([1] * 4, [len(found) for found in owners.values()])

    def test_what_is_full_is_refused_until_something_goes(self):
        for name in scheduling.WAYS:
            cloud = self.cloud(name, *[WHOLE] * 3)
            last = cloud.request(WHOLE)
            self.assertIsNone(cloud.request(SMALL), name)
            cloud.remove(last)
            self.assertEqual(last.gpu, cloud.request(HALF).gpu, name)


class FiguresTest(base.BaseTestCase):

    def line(self, way, acceptance, mix='uniform'):
        return scheduling.Line(
            hosts=1, gpus=1, load=1.0, mix=mix, way=way,
            acceptance=acceptance, slice_acceptance=0.0, ratio=1.0,
            gap_closed=None, milliseconds=0.0)

    def test_gap(self):
        self.assertAlmostEqual(0.75, scheduling.gap_closed(0.8, 0.95, 1.0))
        self.assertIsNone(scheduling.gap_closed(0.9, 0.95, 0.9))

    def test_mixes_count_alike(self):
        lines = [self.line(way, acceptance, mix)
                 for mix, figures in (('uniform', (0.8, 1.0, 1.0)),
                                      ('small', (0.8, 0.8, 1.0)))
                 for way, acceptance in zip(
                     (scheduling.WITHOUT, scheduling.WITH,
                      scheduling.REPACKING), figures, strict=True)]
        self.assertAlmostEqual(0.5, scheduling.total(lines))


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
