# SPDX-License-Identifier: Apache-2.0
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
