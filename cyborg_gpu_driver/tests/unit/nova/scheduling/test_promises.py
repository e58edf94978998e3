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
"""Choices that Placement does not show yet."""

from __future__ import annotations

import dataclasses

import fixtures
from oslotest import base

from cyborg_gpu_driver.nova.scheduling import promises
from cyborg_gpu_driver.nova.weighing import published

OFFER = published.Offer('provider', '1g', 'CUSTOM_X', 2, 5)


class PromisesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.scheduling.promises.time.monotonic',
            lambda: self.now))
        self.promises = promises.Promises()
        self.promises.add(OFFER, 1)
        self.promises.add(OFFER, 2)

    def test_what_was_chosen_is_not_left(self):
        self.assertEqual(2, self.promises.left(OFFER))
        other = dataclasses.replace(OFFER, provider='other')
        self.assertEqual(5, self.promises.left(other))

    def test_what_shows_is_not_counted_twice(self):
        shown = dataclasses.replace(OFFER, used=4, free=3)
        for _ in range(2):
            self.assertEqual(2, self.promises.left(shown))

    def test_what_others_took_shows_as_well(self):
        shown = dataclasses.replace(OFFER, used=7, free=0)
        self.assertEqual(0, self.promises.left(shown))

    def test_a_choice_is_forgotten_after_a_while(self):
        self.now += promises.KEEP + 1
        self.assertEqual(5, self.promises.left(OFFER))
