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


"""Pictures match their sources; the README's grid matches the library."""

import contextlib
import io
import os
import re
from xml.etree import ElementTree

import yaml
from oslotest import base

from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import picture
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.mig import geometry
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine
from cyborg_gpu_driver.simulator.machine import patch
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests.unit.tools import documents
from cyborg_gpu_driver.tests.unit.tools import test_checks

draw = test_checks.script('draw')


class PicturesTest(base.BaseTestCase):

    def test_every_picture_is_as_its_source_says(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = draw.main(['--check'])
        self.assertEqual((0, ''), (code, printed.getvalue()))

    def test_every_picture_has_a_source_and_is_shown(self):
        pages = [*documents.SOURCE.rglob('*.rst'),
                 documents.ROOT / 'README.rst']
        text = ''.join(page.read_text(encoding='utf-8') for page in pages)
        found = sorted(draw.PICTURES.glob('*.svg'))
        self.assertTrue(found)
        for path in found:
            self.assertTrue(path.with_suffix('.yaml').exists(), path)
            self.assertIn(f'/{path.name}', text)
            # Browsers do not show invalid XML.
            ElementTree.fromstring(path.read_text(encoding='utf-8'))


class TerminalTest(base.BaseTestCase):
    """The terminal pictures show what the commands print today."""

    def setUp(self):
        super().setUp()
        # Paths in the commands are relative to the repository.
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(documents.ROOT)

    def run_command(self, arguments):
        code, output, errors = command.run(*arguments, encoding='utf-8')
        self.assertEqual(0, code, errors)
        return output

    def test_every_text_is_what_the_commands_print(self):
        played = 0
        for path in sorted(draw.PICTURES.glob('*.yaml')):
            source = yaml.safe_load(path.read_text(encoding='utf-8'))
            if source['kind'] != 'terminal':
                continue
            text = path.with_suffix('.txt')
            self.assertEqual(
                draw.play(source, self.run_command),
                text.read_text(encoding='utf-8'),
                f'{text.name} is stale: run tools/draw --run')
            played += 1
        self.assertGreater(played, 1)


class DrawTest(base.BaseTestCase):

    def test_boxes_that_share_no_row_and_no_column_have_no_arrow(self):
        source = {'title': 'x', 'columns': [50, 50], 'rows': [50, 50],
                  'boxes': {'a': {'at': [0, 0], 'title': 'A'},
                            'b': {'at': [1, 1], 'title': 'B'}},
                  'arrows': [{'from': 'a', 'to': 'b'}]}
        self.assertRaisesRegex(ValueError, 'neither column nor row',
                               draw.boxes, source)

    def test_text_is_escaped(self):
        drawn = draw.terminal('# a <b> & c\n')
        self.assertEqual('# a <b> & c',
                         ''.join(ElementTree.fromstring(drawn)[-1].text))

    def test_a_change_is_seen(self):
        source = yaml.safe_load((draw.PICTURES / 'flavor-to-slice.yaml')
                                .read_text(encoding='utf-8'))
        before = draw.boxes(source)
        source['boxes']['gpu']['title'] = 'another GPU'
        self.assertNotEqual(before, draw.boxes(source))


class DashboardTest(base.BaseTestCase):

    dashboard = {
        'title': 'D', 'templating': {'list': [
            {'name': 'host', 'label': 'Host'}]},
        'panels': [{
            'id': 1, 'type': 'stat', 'title': 'a < b',
            'gridPos': {'x': 0, 'y': 0, 'w': 4, 'h': 4},
            'targets': [{'refId': 'A', 'expr': 'up'}],
            'fieldConfig': {'defaults': {
                'unit': 's', 'thresholds': {'steps': [
                    {'color': 'green', 'value': None},
                    {'color': 'red', 'value': 60}]}}}}]}

    def draw(self, value, query='up'):
        series = [] if value is None else [{'labels': {}, 'values': [value]}]
        return draw.grafana_picture.draw(draw.Svg(), self.dashboard, {
            'variables': {'host': 'h&1'},
            'panels': {'1A': {'expr': query, 'series': series}}})

    def test_values_have_units_and_the_colours_of_thresholds(self):
        colors = draw.grafana_picture.NAMED
        for value, text, color in ((0.25, '250 ms', 'green'),
                                   (90, '1.5 min', 'red'),
                                   (None, 'No data', 'green')):
            drawn = self.draw(value)
            self.assertIn(f'>{text}<', drawn)
            self.assertIn(f'fill:{colors[color]}', drawn)

    def test_text_is_escaped(self):
        words = [item.text for item
                 in ElementTree.fromstring(self.draw(1)).iter()]
        self.assertIn('a < b', words)
        self.assertIn('D   |   Host: h&1', words)

    def test_answers_of_another_query_are_stale(self):
        self.assertRaisesRegex(ValueError, 'run tools/draw --query',
                               self.draw, 1, 'down')


class ReadmeTest(base.BaseTestCase):
    """The end of tools/demo, as the README shows it."""

    def setUp(self):
        super().setUp()
        self.text = (documents.ROOT / 'README.rst').read_text(
            encoding='utf-8')
        simulated = machine.Machine.load('mixed')
        with patch.kept():
            gpus = reader.HostReader(
                platform.open_platform(simulated)).snapshot().gpus
        self.gpu = next(gpu for gpu in gpus if gpu.mig and gpu.mig.enabled)

    def test_the_grid_is_what_the_library_draws(self):
        rows = self.text[self.text.index('     unit '):].splitlines()
        names, owners = ([cell.strip() for cell in rows[number].split('│')
                          [1:-1]] for number in (2, 3))
        profiles = {item.name: item for item in self.gpu.mig.profiles}
        instances, start = [], 0
        for name in names:
            size = profiles[name].placements[0].size
            instances.append(spec.MigInstanceSpec(
                model.Placement(start, size), profiles[name].profile_id))
            start += size
        drawn = picture.lines(
            self.gpu, {item.placement: owner for item, owner
                       in zip(instances, owners, strict=True)},
            layout=spec.MigLayout(True, True, tuple(instances)))
        # The demo indents its output by three more spaces.
        self.assertEqual(['   ' + line for line in drawn], rows[:len(drawn)])

    def test_placement_has_no_candidate(self):
        grid = geometry.Geometry(self.gpu.mig.profiles)
        found = re.findall(r'^   compute1_gpu_\S+_(\S+)  (\S+) +(\d+) +(\d+) '
                           r'+(\d+)$', self.text, re.MULTILINE)
        self.assertEqual(3, len(found))
        totals = {item.name: grid.creatable(geometry.EMPTY, item)
                  for item in grid.profiles}
        for name, _class, total, reserved, used in found:
            self.assertEqual(totals[name], int(total))
            self.assertEqual(int(total), int(reserved) + int(used))
