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

from cyborg_gpu_driver.nova.weighing import ranking


class RankingTest(base.BaseTestCase):

    def weights(self, **figures):
        """The weights of hosts from the figures of their attempts."""
        hosts = [host for host, row in figures.items() for _ in row]
        found = iter(ranking.weights(
            [figure for row in figures.values() for figure in row], hosts))
        return {host: [next(found) for _ in row]
                for host, row in figures.items()}

    def test_the_best_is_one_and_the_worst_nothing(self):
        self.assertEqual({'a': [0.75], 'b': [0], 'c': [1]},
                         self.weights(a=[2.0], b=[5.0], c=[1.0]))

    def test_equal_ones_weigh_nothing(self):
        self.assertEqual({'a': [0], 'b': [0]}, self.weights(a=[2], b=[2]))

    def test_the_unknown_is_as_the_mean(self):
        self.assertEqual({'a': [0], 'b': [0.5], 'c': [1]},
                         self.weights(a=[3], b=[None], c=[1]))
        self.assertEqual({'a': [0], 'b': [0]},
                         self.weights(a=[None], b=[None]))

    def test_the_impossible_is_last_and_leaves_the_others(self):
        found = self.weights(a=[3], b=[math.inf], c=[1])
        self.assertEqual(([0], [1]), (found['a'], found['c']))
        self.assertLess(found['b'][0], -ranking.FURTHER)

    def test_hosts_come_before_further_attempts(self):
        found = self.weights(a=[3, 1, 2, math.inf], b=[9])
        order = sorted(((weight, host, number)
                        for host, row in found.items()
                        for number, weight in enumerate(row)), reverse=True)
        self.assertEqual(
            [('a', 1), ('b', 0), ('a', 2), ('a', 0), ('a', 3)],
            [(host, number) for _weight, host, number in order])
        self.assertEqual((1, 0), (found['a'][1], found['b'][0]))
        self.assertLess(found['a'][2], 1 - ranking.FURTHER)

    def test_what_is_known_is_tried_before_the_unknown(self):
        found = self.weights(a=[None, 1])
        self.assertGreater(found['a'][1], found['a'][0])
