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

import contextlib
import fcntl
import os
import sqlite3
from unittest import mock

import fixtures
from oslotest import base

from cyborg_gpu_driver.tests.functional import kept


class KeptTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.MockPatchObject(
            kept, '_root', lambda: self.root))
        self.made = []

    def make(self, directory):
        self.made.append(directory)
        path = os.path.join(directory, 'one.sqlite')
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute('CREATE TABLE texts (text TEXT)')
            connection.executemany('INSERT INTO texts VALUES (?)',
                                   [('x' * 1000,)] * 20)
            connection.commit()

    def find(self, made_from='this', seconds=60):
        return os.path.join(
            kept.find('kind', made_from, self.make, seconds), 'one.sqlite')

    def test_it_is_made_once_for_what_it_is_made_from(self):
        path = self.find()
        self.assertEqual(path, self.find())
        self.assertNotEqual(path, self.find('another'))
        self.assertEqual(path, self.find())
        self.assertEqual(2, len(self.made))

    def test_what_is_damaged_is_made_again(self):
        path = self.find()
        size = os.stat(path).st_size
        for kept_size in (0, 100, size // 2):
            os.truncate(path, kept_size)
            self.find()
            self.assertEqual(size, os.stat(path).st_size)
        with open(path, 'r+b') as stream:
            stream.seek(size // 2)
            stream.write(b'\xff' * 4096)
        os.remove(self.find())
        self.find()
        self.assertEqual(6, len(self.made))

    def test_what_was_not_finished_is_not_kept(self):
        make = self.make

        def stop(directory):
            make(directory)
            raise KeyboardInterrupt

        with mock.patch.object(self, 'make', stop):
            self.assertRaises(KeyboardInterrupt, self.find)
        self.find()
        self.assertEqual(2, len(self.made))
        self.assertEqual(2, len(os.listdir(self.root)))

    def test_another_process_waits_until_it_is_made(self):
        make = self.make

        def look(directory):
            make(directory)
            (name,) = (name for name in os.listdir(self.root)
                       if name.endswith('.lock'))
            with open(os.path.join(self.root, name), encoding='utf-8') as lock:
                self.assertRaises(BlockingIOError, fcntl.flock, lock,
                                  fcntl.LOCK_EX | fcntl.LOCK_NB)

        with mock.patch.object(self, 'make', look):
            self.find()
        self.assertEqual(1, len(self.made))

    def test_what_is_old_is_made_again_and_removed(self):
        for name in ('this', 'another'):
            os.utime(os.path.dirname(self.find(name)), (0, 0))
        self.find()
        self.assertEqual(3, len(self.made))
        self.assertEqual(1, len([name for name in os.listdir(self.root)
                                 if not name.endswith('.lock')]))

    def test_code_and_services_are_named(self):
        self.assertIn('openstack_cyborg-', kept.services())
        self.assertIn('openstack_placement-', kept.services())
        self.assertEqual(kept.CODE, kept._hash_code())
