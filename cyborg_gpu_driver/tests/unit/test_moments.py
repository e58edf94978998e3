# SPDX-License-Identifier: Apache-2.0

"""Numbers of seconds that users type, and times that they read."""

import argparse
import datetime

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import moments


class SecondsTest(base.BaseTestCase):

    def refusal(self, read, text):
        return str(self.assertRaises(argparse.ArgumentTypeError, read, text))

    def test_a_fraction(self):
        read = moments.seconds(0.1, 3600)
        self.assertEqual((0.1, 2.5, 3600), tuple(
            map(read, ('0.1', '2.5', '3600'))))
        for text in ('0.09', '3600.1', '-1', 'nan', 'inf', 'x', ''):
            self.assertIn('is not a number of seconds from 0.1 to 3600',
                          self.refusal(read, text))


class WritingTest(base.BaseTestCase):

    def test_seconds_of_the_epoch(self):
        self.assertEqual('2026-11-21T09:30:00+00:00',
                         moments.iso(1795253400.9))
        self.assertEqual(1795253400.5, moments.of(1795253400.5).timestamp())
        self.assertEqual(datetime.timedelta(0), moments.of(0).utcoffset())
        for seconds in (float('nan'), 1e300, float('inf')):
            self.assertRaises((ValueError, OverflowError, OSError),
                              moments.of, seconds)


class ReadingTest(base.BaseTestCase):

    def test_iso_8601(self):
        expected = datetime.datetime(2026, 11, 21, 9, 30,
                                     tzinfo=datetime.timezone.utc)
        for text in ('2026-11-21T09:30', '2026-11-21 09:30:00',
                     '2026-11-21T09:30:00Z', '2026-11-21T10:30:00+01:00',
                     '20261121T0930', '2026-11-21T11:30+02'):
            found = moments.parse('--start', text)
            self.assertEqual(expected, found, text)
            self.assertEqual(datetime.timedelta(0), found.utcoffset())
        self.assertEqual(moments.parse('--start', '20261121'),
                         moments.parse('--start', '2026-11-21'))

    def test_what_is_no_time(self):
        for text in ('', 'x', '2026', '3600', '7', '2026-13-01',
                     '0001-01-01T00:00+14:00', '9999-12-31T23:59-10:00',
                     '999999w', '7y'):
            error = self.assertRaises(exception.InvalidValue,
                                      moments.parse, '--start', text)
            self.assertIn('--start', str(error))
            self.assertIn('expected a time such as', str(error))
