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
"""The weights of hosts."""

from __future__ import annotations

import math

from oslotest import base

from cyborg_gpu_driver.nova.weighing import cost


class RankingTest(base.BaseTestCase):

    def test_weights(self):
        none = cost.IMPOSSIBLE
        for figures, expected in (
                ([2.0, 5.0, 1.0], [0.75, 0, 1]), ([2, 2], [0, 0]),
                # The unknown is as the mean.
                ([3, None, 1], [0, 0.5, 1]), ([None, None], [0, 0]),
                ([3, math.inf, 1], [0, none, 1]), ([math.inf], [none])):
            self.assertEqual(expected, cost.weights(figures))
