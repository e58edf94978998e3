# SPDX-License-Identifier: Apache-2.0

"""Files are complete or the old ones; errors say what is wrong with them."""

import json
import os
import stat
import tempfile
import unittest

import fixtures
from oslotest import base

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks


class DurableTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(self.directory, 'below', 'file.json')

    def test_what_was_written_is_read(self):
        content = {'a': [1, None, 'ä']}
        durable.write(self.path, 'thing', 1, content)
        self.assertEqual(content, durable.read(self.path, 'thing', 1))

    def test_it_is_on_the_disk_when_it_has_been_written(self):
        # Otherwise a power cut may leave an empty file, or the old one.
        durable.write(self.path, 'thing', 1, 'old')
        done, sync, replace = [], os.fsync, os.replace

        def synced(descriptor):
            done.append(('sync', os.readlink(
                f'/proc/self/fd/{descriptor}')))
            sync(descriptor)

        def replaced(new, path):
            done.append(('replace', new))
            replace(new, path)

        self.useFixture(fixtures.MonkeyPatch('os.fsync', synced))
        self.useFixture(fixtures.MonkeyPatch('os.replace', replaced))
        durable.write(self.path, 'thing', 1, 'new')
        _, new = done[0]
        self.assertEqual(
            [('sync', new), ('replace', new),
             ('sync', os.path.dirname(self.path))], done)

    def test_the_group_may_look(self):
        durable.write(self.path, 'thing', 1, 1)
        lock = os.path.join(self.directory, 'lock')
        durable.make_file(lock)
        self.assertEqual(
            [0o750, 0o640],
            [stat.S_IMODE(os.stat(path).st_mode)
             for path in (os.path.dirname(self.path), lock)])

    def test_each_damage_is_named(self):
        durable.write(self.path, 'thing', 1, {'a': 1})
        whole = open(self.path, encoding='utf-8').read()
        changed = dict(json.loads(whole), content={'a': 2})
        for text, words in (
                (whole[:-3], 'cannot be read'),
                ('[]', 'is not a thing'),
                (whole.replace('"thing"', '"other"'), 'is not a thing'),
                (whole.replace('"version": 1', '"version": 2'),
                 'version 2'),
                (json.dumps(changed), 'checksum')):
            with open(self.path, 'w', encoding='utf-8') as stream:
                stream.write(text)
            error = self.assertRaises(exception.JournalError, durable.read,
                                      self.path, 'thing', 1)
            self.assertIn(words, str(error))
            self.assertIn(self.path, str(error))

    def test_a_write_that_fails_leaves_the_old_file(self):
        durable.write(self.path, 'thing', 1, 'old')
        self.assertRaises(TypeError, durable.write, self.path, 'thing', 1,
                          object())
        self.assertEqual('old', durable.read(self.path, 'thing', 1))
        self.assertEqual(['file.json'],
                         os.listdir(os.path.dirname(self.path)))

    def test_one_that_cannot_be_replaced_leaves_nothing_else(self):
        os.makedirs(self.path)
        error = self.assertRaises(exception.JournalError, durable.write,
                                  self.path, 'thing', 1, 1)
        self.assertIn(self.path, str(error))
        self.assertEqual(['file.json'],
                         os.listdir(os.path.dirname(self.path)))

    @unittest.skipIf(os.geteuid(), 'only root can give files away')
    def test_what_root_writes_belongs_to_whom_the_directory_does(self):
        os.chown(self.directory, 4711, 4712)
        durable.write(self.path, 'thing', 1, 1)
        with locks.audit(self.directory):
            pass
        found = {(os.stat(path).st_uid, os.stat(path).st_gid)
                 for path in (self.path, os.path.dirname(self.path),
                              os.path.join(self.directory, 'locks'),
                              os.path.join(self.directory, 'locks',
                                           'cyborg-gpu-audit'))}
        self.assertEqual({(4711, 4712)}, found)

    @unittest.skipIf(os.geteuid(), 'only root can give files away')
    def test_root_gives_away_what_it_made_and_nothing_else(self):
        """The owner of the directory puts a link in the way."""
        target = os.path.join(self.useFixture(fixtures.TempDir()).path, 'x')
        with open(target, 'w', encoding='utf-8'):
            pass
        os.chown(self.directory, 4711, 4712)
        make = tempfile.mkstemp

        def swapped(**arguments):
            descriptor, path = make(**arguments)
            os.unlink(path)
            os.symlink(target, path)
            return descriptor, path

        self.useFixture(fixtures.MonkeyPatch('tempfile.mkstemp', swapped))
        durable.write(self.path, 'thing', 1, 1)
        durable.make_file(os.path.join(self.directory, 'lock'))
        self.assertEqual(0, os.stat(target).st_uid)

    def test_nobody_waits_for_the_other_end_of_a_pipe(self):
        os.mkfifo(fifo := os.path.join(self.directory, 'fifo'))
        for use in (lambda: durable.read(fifo, 'thing', 1),
                    lambda: durable.make_file(fifo),
                    lambda: open(fifo, opener=durable.regular)):
            error = self.assertRaises((OSError, exception.JournalUnreadable),
                                      use)
            self.assertIn('Not a regular file', str(error))

    def test_a_link_that_leads_nowhere_is_no_file(self):
        path = os.path.join(self.directory, 'lock')
        os.symlink(os.path.join(self.directory, 'nowhere'), path)
        self.assertRaises(FileNotFoundError, durable.make_file, path)
        self.assertEqual(['lock'], os.listdir(self.directory))

    def test_the_same_trouble_has_the_same_text(self):
        with open(os.path.join(self.directory, 'below'), 'w',
                  encoding='utf-8'):
            pass
        for make in (lambda: durable.write(self.path, 'thing', 1, 1),
                     lambda: durable.write('/proc/self/x', 'thing', 1, 1)):
            texts = {str(self.assertRaises(exception.JournalError, make))
                     for _ in range(2)}
            self.assertEqual(1, len(texts), texts)
            self.assertIn('check that its directory', *texts)
