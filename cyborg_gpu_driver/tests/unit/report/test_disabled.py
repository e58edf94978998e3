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

import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import disabled

ONE, OTHER = (model.PciAddress(0, bus, 0, 0) for bus in (7, 0x41))


class DisabledTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.path = self.useFixture(fixtures.TempDir()).path
        self.file = store.Store(self.path).path(ONE)
        self.answer = frozenset()

    def updated(self):
        found = disabled.Disabled(self.path)
        found.update(self.answer)
        return found

    def test_what_was_said_last_counts(self):
        self.answer = frozenset({ONE})
        found = self.updated()
        self.assertIn(ONE, found)
        self.assertNotIn(OTHER, found)
        self.answer = None
        self.assertIn(ONE, self.updated())
        self.assertEqual({ONE}, disabled.remembered(self.path))
        self.answer = frozenset({OTHER})
        found.update(self.answer)
        self.assertEqual({OTHER}, found.known)
        self.assertEqual({OTHER}, disabled.remembered(self.path))

    def test_nothing_is_written_while_none_was_ever_disabled(self):
        self.assertEqual(frozenset(), self.updated().known)
        self.assertFalse(os.path.exists(self.file))
        self.assertEqual(frozenset(), disabled.remembered(self.path))

    def test_a_damaged_record(self):
        self.answer = frozenset({ONE})
        self.updated()
        for content in ('', '{}'):
            with open(self.file, 'w', encoding='utf-8') as stream:
                stream.write(content)
            self.assertEqual(frozenset(), disabled.Disabled(self.path).known)
            self.assertEqual({ONE}, self.updated().known)
            store.of(self.path).check()
            self.assertEqual({ONE}, self.updated().known)
            self.assertEqual({ONE}, disabled.remembered(self.path))
