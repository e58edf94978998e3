# SPDX-License-Identifier: Apache-2.0

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
