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

"""The scheduling benchmark's part about GPUs with several roles."""

import random

from oslotest import base

from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

scheduling = test_packing.program('scheduling')
roles = scheduling.roles
packing = scheduling.packing

WHOLE, VGPU, SMALL, MIDDLE, HALF = range(5)


def request(kind, arrival=100.0, end=200.0):
    return packing.Request(arrival, kind, end)


class ElasticTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.cloud = roles.Elastic(2, random.Random(1))

    def test_one_role_at_a_time(self):
        slice_ = self.cloud.request(SMALL)
        whole = self.cloud.request(WHOLE)
        self.assertNotEqual(slice_[0], whole[0])
        for kind in (WHOLE, VGPU):
            self.assertIsNone(self.cloud.request(kind))
        self.assertEqual(slice_[0], self.cloud.request(HALF)[0])
        self.cloud.remove(whole)
        self.assertEqual(whole[0], self.cloud.request(VGPU)[0])

    def test_idle_gpus_stay_idle(self):
        """Four of a kind fit on one GPU, and the other GPU remains whole."""
        for kind in (VGPU, SMALL):
            cloud = roles.Elastic(2, random.Random(1))
            self.assertEqual(1, len({cloud.request(kind)[0]
                                     for _ in range(4)}))
            self.assertIsNotNone(cloud.request(WHOLE))


class FramesTest(base.BaseTestCase):

    def test_clairvoyant_moves_what_runs(self):
        cloud = roles.Clairvoyant(2)
        for kind in (SMALL, VGPU):
            self.assertIsNotNone(cloud.request(kind))
        self.assertIsNone(cloud.request(WHOLE))
        cloud.remove((VGPU,))
        self.assertIsNotNone(cloud.request(WHOLE))
        for _ in range(6):
            self.assertIsNotNone(cloud.request(SMALL))
        self.assertIsNone(cloud.request(SMALL))

    def test_the_best_split(self):
        traffic = [request(kind) for kind in (WHOLE, VGPU, VGPU, HALF, HALF)]
        found, split = roles.best_split(3, traffic)
        self.assertEqual((1, 1, 1), split)
        self.assertEqual(1.0, found.acceptance)

