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

"""The picture of measured slowdowns as PNG, read back with Pillow."""

from __future__ import annotations

import io
import sys
import unittest
from unittest import mock

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import heat_map
from cyborg_gpu_driver.interference import heat_map_png

try:
    from PIL import Image
except ImportError:
    Image = None

_SLOWDOWNS = {'alpha': {'alpha': 1.0, 'b': 3.0}, 'b': {'alpha': None}}


@unittest.skipUnless(Image, 'Pillow is not installed')
class PngTest(base.BaseTestCase):

    def read(self, picture):
        image = Image.open(io.BytesIO(heat_map_png.encode(picture)))
        self.assertEqual('PNG', image.format)
        return image.convert('RGB')

    def test_boxes_and_texts(self):
        picture = heat_map.draw(['alpha', 'b'], _SLOWDOWNS)
        image = self.read(picture)
        self.assertEqual((2 * picture.width, 2 * picture.height), image.size)
        for part in picture.parts:
            if isinstance(part, heat_map.Box):
                self.assertEqual(part.fill, self.colour(
                    image, 2 * part.x + 3, 2 * part.y + 3), part.title)
                self.assertEqual('#ffffff', self.colour(
                    image, 2 * (part.x + part.width), 2 * part.y + 3))
            else:
                self.assert_legible(image, part)

    def assert_legible(self, image, text):
        """Check that the text is inside the picture, in its colour."""
        width = 2 * 8 * len(text.text)
        left = 2 * text.x - {'start': 0, 'middle': width / 2,
                             'end': width}[text.anchor]
        area = image.crop((
            max(0, int(left)), int(2 * text.y) - 22,
            min(image.width, int(left + width)), int(2 * text.y) + 1))
        ink = sum(count for count, colour in area.getcolors(1 << 20)
                  if '#%02x%02x%02x' % colour == text.fill)
        self.assertGreater(ink, 10 * len(text.text), text.text)

    def colour(self, image, x, y):
        return '#%02x%02x%02x' % image.getpixel((int(x), int(y)))

    def test_names_beyond_ascii(self):
        self.read(heat_map.draw(['n' * 60, '\u5185'], {}))

    def test_large_picture_has_fewer_pixels(self):
        picture = heat_map.Picture(6000, 6000, ())
        self.assertEqual((6000, 6000), self.read(picture).size)

    def test_too_large_picture(self):
        error = self.assertRaises(
            exception.InvalidValue, heat_map_png.encode,
            heat_map.Picture(60000, 60000, ()))
        self.assertIn('.svg', str(error))


class NoPillowTest(base.BaseTestCase):

    def test_error_names_the_extra(self):
        with mock.patch.dict(sys.modules, {'PIL': None}):
            error = self.assertRaises(exception.InvalidValue,
                                      heat_map_png.check)
        self.assertIn('cyborg_gpu_driver[png]', str(error))
        self.assertIn('.svg', str(error))
