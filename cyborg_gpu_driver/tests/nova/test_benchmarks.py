# SPDX-License-Identifier: Apache-2.0

"""Small runs of the benchmark that needs the released nova-scheduler."""

import contextlib
import io

import fixtures
from oslotest import base

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

providers = test_packing.program('providers')
refusals = test_packing.program('refusals')
packing = refusals.packing


class ProvidersTest(base.BaseTestCase):

    @scope.only_in_all
    def test_each_provider_costs_one_request(self):
        self.useFixture(fixtures.MonkeyPatch('providers.GPUS', 1))
        found = {figure.name: figure for figure in providers.measure(1)}
        for count in providers.PROFILES:
            claim = found[f'{count} providers: requests of a claim']
            tree = found[f'{count} providers: requests to read the tree']
            self.assertEqual(count + 1, claim.value)
            self.assertLess(3 * claim.value, tree.value)


class RefusalsTest(base.BaseTestCase):

    def measure(self, count=12):
        """The figures of one host that gets more requests than it can serve.
        """
        self.useFixture(fixtures.MonkeyPatch('refusals.WARM_UP', 0.0))
        self.useFixture(fixtures.MonkeyPatch('refusals.SHARE', 1.0))
        with contextlib.redirect_stderr(io.StringIO()):
            return {figure.name.rpartition(': ')[2]: figure
                    for figure in refusals.measure(
                        1, 3.0, ('uniform',), count)}

    @scope.only_in_all
    def test_all_ways(self):
        found = self.measure()
        self.assertEqual((12, 12), (found['requests'].value,
                                    found['requests'].baseline))
        self.assertEqual(0, found['refused though a GPU had room'].value)
        for way in (refusals.ALONE, refusals.WEIGHED):
            refused = found[f'refused, {way}']
            # Each way must refuse some of the requests, but not all.
            self.assertLess(0, refused.value)
            self.assertLess(refused.value, 12)
            self.assertLess(0, refused.floor)


class LayoutsTest(base.BaseTestCase):

    def test_all_of_one_gpu(self):
        found = {layout for (layout,) in refusals.layouts(1)}
        self.assertIn((7, 0, 0, 0, 0), found)
        self.assertIn((0, 0, 1, 1, 0), found)
        self.assertIn((0, 0, 0, 0, 1), found)
        self.assertIn(refusals.BALANCED, found)
        # No layout leaves room on which another 1g fits.
        self.assertNotIn((6, 0, 0, 0, 0), found)
