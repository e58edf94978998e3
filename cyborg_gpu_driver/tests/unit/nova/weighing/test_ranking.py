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

    def test_the_best_is_one_and_the_worst_nothing(self):
        self.assertEqual([0.75, 0, 1], cost.weights([2.0, 5.0, 1.0]))

    def test_equal_ones_weigh_nothing(self):
        self.assertEqual([0, 0], cost.weights([2, 2]))

    def test_the_unknown_is_as_the_mean(self):
        self.assertEqual([0, 0.5, 1], cost.weights([3, None, 1]))
        self.assertEqual([0, 0], cost.weights([None, None]))

    def test_the_impossible_is_last_and_leaves_the_others(self):
        self.assertEqual([0, cost.IMPOSSIBLE, 1],
                         cost.weights([3, math.inf, 1]))
        self.assertEqual([cost.IMPOSSIBLE],
                         cost.weights([math.inf]))
