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

"""The documentation has a table of each benchmark."""

import re
import types

from oslotest import base

from cyborg_gpu_driver.tests.unit.benchmarks import documented
from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

run = test_packing.program('run')


class DocumentedTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.page = documented.PAGE.read_text(encoding='utf-8')

    def test_the_page_includes_every_table(self):
        included = re.findall(r':file: performance/(\w+)\.csv', self.page)
        self.assertEqual(sorted([*run.BENCHMARKS, 'misses', 'runs']),
                         sorted(included))
        self.assertEqual(sorted(included), sorted(
            path.stem for path in documented.TABLES.iterdir()))

    def test_every_table_has_figures(self):
        for name in run.BENCHMARKS:
            shown = documented.rows(name)
            self.assertTrue(shown, name)
            self.assertEqual(set(run.tables.COLUMNS), set(shown[0]), name)

    def test_when_and_where_each_was_measured(self):
        self.assertEqual(sorted(run.BENCHMARKS), [
            row['benchmark'] for row in documented.rows('runs')])

    def test_every_miss_is_a_row_of_its_table(self):
        for miss in documented.rows('misses'):
            self.assertIn(
                (miss['figure'], miss['value']),
                [(row['figure'], row['value'])
                 for row in documented.rows(miss['benchmark'])])

    def test_what_is_missing_is_found(self):
        first = documented.rows('scrape')[0]['figure']
        self.assertEqual(['# new ones'], documented.missing('scrape', [
            types.SimpleNamespace(name=name)
            for name in (first, '12 new ones', '0.5 new ones')]))
