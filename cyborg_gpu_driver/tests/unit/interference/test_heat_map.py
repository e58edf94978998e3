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

    def test_colours(self):
        matrix = {'a': {'a': 1.0, 'b': 3.0}, 'b': {'a': None}}
        pixels = self.colours(heat_map.draw(['a', 'b'], matrix, 'png'))
        for colour in '#eeeeee', '#4d4d4d':
            self.assertIn(colour, pixels)
        self.assertNotIn('#eeeeee', self.colours(heat_map.draw(
            ['a'], {'a': {'a': 1.0}}, 'png')))

    def colours(self, content):
        import io

        from matplotlib import image
        pixels = image.imread(io.BytesIO(content), 'png')
        return {'#' + ''.join(f'{round(part * 255):02x}'
                              for part in pixel[:3])
                for row in pixels[::4] for pixel in row[::4]}

    def test_no_slowdown_at_all(self):
        self.assertIn('0.90', self.texts(['a'], {'a': {'a': 0.9}}))

    def test_names_are_no_formulas(self):
        for name in '<&>', '$x', '$\\frac$':
            self.assertIn(name, self.texts([name], {name: {name: 2.0}}))

    def test_nothing(self):
        self.texts([], {})

    def test_the_same_numbers_give_the_same_file(self):
        for form in heat_map.FORMATS:
            self.assertEqual(*(heat_map.draw(['a'], {'a': {'a': 2.0}}, form)
                               for _ in range(2)))


class MissingTest(base.BaseTestCase):

    def test_the_error_names_the_package(self):
        with mock.patch.dict(sys.modules, {'matplotlib': None,
                                           'matplotlib.figure': None}):
            self.assertIn('matplotlib', str(self.assertRaises(
                exception.InvalidValue, heat_map.check)))
