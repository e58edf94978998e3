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

"""The benchmark of a scrape."""

import contextlib
import io
import json

from oslotest import base

from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

scrape = test_packing.program('scrape')


class ScrapeTest(base.BaseTestCase):

    def test_it_counts_and_asks_no_more_than_a_bare_loop(self):
        # The speed of this machine is not tested here.
        limit = scrape.LIMIT_MS
        self.addCleanup(setattr, scrape, 'LIMIT_MS', limit)
        scrape.LIMIT_MS = float('inf')
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = scrape.main(['--repeat', '1', '-f', 'json'])
        found = {figure['name']: figure
                 for figure in json.loads(printed.getvalue())}
        self.assertEqual(
            (0, 56, 56), tuple(found[name]['value'] for name in (
                'scrape: NVML calls', 'assignments', 'GPU instances')))
        self.assertEqual(0, code)
