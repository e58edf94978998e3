# SPDX-License-Identifier: Apache-2.0

"""The applications that are measured: files and options."""

from __future__ import annotations

import testscenarios
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import applications

load_tests = testscenarios.load_tests_apply_scenarios


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


class WrongFileTest(base.BaseTestCase):

    scenarios = [(text, {'text': text, 'words': words}) for text, words in (
        ('{applications: {a: {command: b}}}', 'version'),
        ('{version: 2, applications: {a: {command: b}}}', 'version'),
        ('{version: 1, applications: {}}', 'applications'),
        ('{version: 1, applications: {a b: {command: c}}}', 'a b'),
        ('{version: 1, applications: {a: {command: 3}}}', 'command'),
        ('{version: 1, applications: {a: {command: []}}}', 'command'),
        ('{version: 1, applications: {a: {command: ""}}}', 'a program'),
        ('{version: 1, applications: {a: {command: "\'b"}}}', 'quotation'),
        ('{version: 1, applications: {a: {command: b, shell: true}}}',
         'shell'),
        ('{version: 1, applications: {a: {command: b, '
         'out_of_memory_exit_codes: [0]}}}', 'out_of_memory_exit_codes'),
        ('[', 'file'))]

    def test_error_names_the_place(self):
        error = self.assertRaises(exception.DocumentError,
                                  applications.parse, self.text, 'file')
        self.assertIn('file', str(error))
        self.assertIn(self.words, str(error))


class WrongOptionTest(base.BaseTestCase):

    scenarios = [(text, {'text': text}) for text in (
        'a', '=b', 'a=', 'a b=c', "a='")]

    def test_error_names_the_option(self):
        error = self.assertRaises(
            exception.DocumentError, applications.from_options, [self.text],
            '--application')
        self.assertIn(f'--application {self.text}', str(error))

    def test_name_twice(self):
        twice = applications.from_options(['a=b', 'a=c'], '--application')
        error = self.assertRaises(exception.InvalidValue,
                                  applications.checked, twice, frozenset())
        self.assertIn("'a'", str(error))
