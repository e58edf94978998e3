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

"""A layout takes few NVML calls, compared with mig-parted."""

import pathlib

import fixtures
from oslotest import base

from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

test_packing.program('figures')
test_packing.program('mig_parted')
layout_calls = test_packing.program('layout_calls')


class LayoutCallsTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)

    @scope.only_in_all
    def test_limits(self):
        measured = [*layout_calls.measure(self.directory)]
        limited = [figure for figure in measured if figure.limit is not None]
        self.assertEqual(8, len(limited))
        for figure in limited:
            self.assertGreater(figure.value, 0, figure)
            self.assertFalse(figure.is_exceeded, figure)
        calls = {figure.name: figure.baseline for figure in measured}
        # As many calls as mig-parted itself made, within a tenth.
        for name, counted in (('seven, again', 885),
                              ('seven to four and one', 4228),
                              ('four and one to seven', 3732)):
            self.assertLess(abs(calls[name] / counted - 1), 0.1, name)

    def test_two_sides_that_differ(self):
        self.useFixture(fixtures.MonkeyPatch(
            'layout_calls.Theirs.apply', lambda self, name: None))
        error = self.assertRaises(
            RuntimeError, list, layout_calls.measure(self.directory))
        self.assertIn('the two tools differ', str(error))
