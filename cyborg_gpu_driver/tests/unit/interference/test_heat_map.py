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

from xml.etree import ElementTree

from oslotest import base

from cyborg_gpu_driver.interference import heat_map

_SPACE = '{http://www.w3.org/2000/svg}'


class HeatMapTest(base.BaseTestCase):

    def draw(self, names, slowdowns):
        """Return the cells' colours by tooltip, and keep the texts."""
        root = ElementTree.fromstring(
            heat_map.svg(heat_map.draw(names, slowdowns)))
        self.texts = [item.text for item in root.iter(f'{_SPACE}text')]
        return {item[0].text: item.get('fill')
                for item in root.iter(f'{_SPACE}rect') if len(item)}

    def test_cells(self):
        cells = self.draw(['a', 'b'], {'a': {'a': 1.0, 'b': 3.0},
                                       'b': {'a': None}})
        self.assertEqual({
            'a beside a: 1.00': '#ffffe5', 'a beside b: 3.00': '#b2182b',
            'b beside a: do not fit together': '#4d4d4d',
            'b beside b: not measured': '#eeeeee'}, cells)
        self.assertEqual({'1.00', '3.00', 'memory'},
                         {'1.00', '3.00', 'memory'} & set(self.texts))

    def test_no_slowdown_at_all(self):
        self.assertEqual({'a beside a: 0.90': '#ffffe5'},
                         self.draw(['a'], {'a': {'a': 0.9}}))

    def test_names_are_escaped(self):
        self.assertIn('<&> beside <&>: 2.00',
                      self.draw(['<&>'], {'<&>': {'<&>': 2.0}}))
        self.assertIn('<&>', self.texts)

    def test_nothing(self):
        self.assertEqual({}, self.draw([], {}))
