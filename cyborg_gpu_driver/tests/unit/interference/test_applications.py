# SPDX-License-Identifier: Apache-2.0

"""The applications that are measured: files and options."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import applications


class ReadTest(base.BaseTestCase):

    def test_file(self):
        found = applications.parse('''
            version: 1
            applications:
              sort: {command: sort "a b"}
              train: {command: [python3, -c, ""],
                      out_of_memory_exit_codes: [77]}
            ''', 'file')
        self.assertEqual([
            applications.Application('sort', ('sort', 'a b')),
            applications.Application('train', ('python3', '-c', ''),
                                     frozenset({77}))], found)

    def test_options(self):
        self.assertEqual(
            [applications.Application('a', ('env', 'B=c d'))],
            applications.from_options(["a=env 'B=c d'"], '--application'))


class WrongTest(base.BaseTestCase):

    def test_a_file(self):
        for text, words in (
                ('{applications: {a: {command: b}}}', 'version'),
                ('{version: 2, applications: {a: {command: b}}}', 'version'),
                ('{version: 1, applications: {}}', 'applications'),
                ('{version: 1, applications: {a b: {command: c}}}', 'a b'),
                ('{version: 1, applications: {a: {command: 3}}}', 'command'),
                ('{version: 1, applications: {a: {command: []}}}', 'command'),
                ('{version: 1, applications: {a: {command: ""}}}',
                 'a program'),
                ('{version: 1, applications: {a: {command: "\'b"}}}',
                 'quotation'),
                ('{version: 1, applications: {a: {command: b, shell: true}}}',
                 'shell'),
                ('{version: 1, applications: {a: {command: b, '
                 'out_of_memory_exit_codes: [0]}}}',
                 'out_of_memory_exit_codes'), ('[', 'file')):
            error = self.assertRaises(exception.DocumentError,
                                      applications.parse, text, 'file')
            self.assertIn('file', str(error))
            self.assertIn(words, str(error))

    def test_options(self):
        for text in 'a', '=b', 'a=', 'a b=c', "a='":
            error = self.assertRaises(
                exception.DocumentError, applications.from_options, [text],
                '--application')
            self.assertIn(f'--application {text}', str(error))
        twice = applications.from_options(['a=b', 'a=c'], '--application')
        error = self.assertRaises(exception.InvalidValue,
                                  applications.checked, twice, frozenset())
        self.assertIn("'a'", str(error))
