# SPDX-License-Identifier: Apache-2.0

"""The file with measured slowdowns."""

from __future__ import annotations

import json

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import applications
from cyborg_gpu_driver.interference import results
from cyborg_gpu_driver.nova.weighing import published

Outcome = results.Outcome
Runs = results.Runs


def measured():
    """Return the results of two applications, with several outcomes."""
    return results.Results(
        [applications.Application(name, ('true',)) for name in 'ab'], 3, 0, {
            ('a', None): Runs(seconds=(1.0, 9.0, 2.0)),
            ('b', None): Runs(seconds=(4.0,), gpu_memory_mib=7),
            ('a', 'a'): Runs(seconds=(3.0,)),
            ('a', 'b'): Runs(Outcome.OUT_OF_MEMORY, problem='exit code 2'),
            ('b', 'a'): Runs(Outcome.FAILED, problem='exit code 1'),
            ('b', 'b'): Runs(seconds=(4001.0,))})


class ResultsTest(base.BaseTestCase):

    def test_slowdown_is_the_ratio_of_medians(self):
        self.assertEqual({'a': {'a': 1.5, 'b': None}},
                         measured().slowdowns())
        self.assertEqual(1000.25, measured().ratio('b', 'b'))

    def test_nova_reads_the_file(self):
        matrix = published.parse(json.loads(measured().dump()))
        self.assertEqual(1.5, matrix.slowdown('a', ['a']))
        self.assertEqual(float('inf'), matrix.slowdown('a', ['b']))

    def test_what_is_written_is_read(self):
        found = results.parse(measured().dump(), 'file')
        self.assertEqual(measured().runs, found.runs)
        self.assertEqual(measured().slowdowns(), found.slowdowns())
        self.assertTrue(found.describes(measured()))
        self.assertEqual(measured().dump(), found.dump())

    def test_failures_are_tried_again(self):
        self.assertEqual([('b', 'a')], measured().open_steps())

    def test_steps_begin_with_each_alone(self):
        found = results.Results(measured().applications)
        self.assertEqual(
            [('a', None), ('b', None), ('a', 'a'), ('a', 'b'), ('b', 'a'),
             ('b', 'b')], found.steps())
        self.assertEqual(found.steps(), found.open_steps())

    def test_errors_name_the_place(self):
        for change in (
                {'slowdown': 1}, {'slowdown': {'a': {'b': 0}}},
                {'kind': 'other'}, {'version': 2}, {'repeats': 0},
                {'applications': {'a': {}}}, {'alone': {'a': {
                    'seconds': [0]}}}, {'pairs': {'a': {'b': {
                        'seconds': 1}}}}, {'pairs': {'a': {'b': {
                            'seconds': [], 'outcome': 'well'}}}}):
            document = {**json.loads(measured().dump()), **change}
            error = self.assertRaises(
                exception.DocumentError, results.parse, json.dumps(document),
                'results.json')
            self.assertIn(f'results.json: {next(iter(change))}', str(error))
