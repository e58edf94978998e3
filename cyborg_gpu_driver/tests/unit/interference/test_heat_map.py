# SPDX-License-Identifier: Apache-2.0

"""The picture of measured slowdowns."""

from __future__ import annotations

import re
import sys
import unittest
from unittest import mock
from xml.etree import ElementTree

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import heat_map

try:
    import matplotlib
except ImportError:
    matplotlib = None

_TEXT = '{http://www.w3.org/2000/svg}text'


@unittest.skipUnless(matplotlib, 'matplotlib is not installed')
class HeatMapTest(base.BaseTestCase):

    def texts(self, names, slowdowns):
        root = ElementTree.fromstring(heat_map.draw(names, slowdowns, 'svg'))
        return [''.join(item.itertext()) for item in root.iter(_TEXT)]

    def test_cells(self):
        texts = self.texts(['a', 'b'], {'a': {'a': 1.0, 'b': 3.0},
                                        'b': {'a': None}})
        self.assertEqual(['a', 'b'] * 2, [
            text for text in texts if re.fullmatch('[ab]', text)])
        self.assertEqual(['1.00', '3.00', 'memory'], [
            text for text in texts if re.fullmatch(r'\d\.\d\d|memory', text)])

    def test_nothing(self):
        self.texts([], {})


class MissingTest(base.BaseTestCase):

    def test_the_error_names_the_package(self):
        with mock.patch.dict(sys.modules, {'matplotlib': None,
                                           'matplotlib.figure': None}):
            self.assertIn('matplotlib', str(self.assertRaises(
                exception.InvalidValue, heat_map.check)))
