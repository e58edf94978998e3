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

"""The benchmark of cyborg-gpu's start measures every command."""

import fixtures
from oslotest import base

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

startup = test_packing.program('startup')


class StartupTest(base.BaseTestCase):

    @scope.only_in_all
    def test_each_command(self):
        limits = dict(scope.some(startup.LIMITS.items(), each=20))
        self.useFixture(fixtures.MonkeyPatch('startup.LIMITS', limits))
        baseline, *rows = startup.measure(1)
        self.assertEqual(('baseline', 1.0),
                         (baseline['command'], baseline['ratio']))
        self.assertEqual([' '.join(case) for case in startup.LIMITS],
                         [row['command'] for row in rows])
        # Times depend on the machine; the imported modules do not.
        for row in rows:
            self.assertGreater(row['modules'], baseline['modules'], row)
            self.assertGreater(row['cpu_ms'], 0, row)
