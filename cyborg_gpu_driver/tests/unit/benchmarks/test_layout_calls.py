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

"""Keeping what is right makes fewer NVML calls than rebuilding."""

from oslotest import base

from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

layout_calls = test_packing.program('layout_calls')


class LayoutCallsTest(base.BaseTestCase):

    def test_each_pair(self):
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        rows = layout_calls.measure()
        self.assertGreater(len(rows), 10)
        for row in rows:
            self.assertLess(row['keeping'], row['rebuilding'], row)
