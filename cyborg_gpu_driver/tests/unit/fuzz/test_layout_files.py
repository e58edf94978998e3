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


"""Layout files that are not quite right are refused by our own errors."""

import itertools

import hypothesis
import yaml
from hypothesis import strategies

from cyborg_gpu_driver.cmd import layout_options
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition import layout_file
from cyborg_gpu_driver.partition import layout_vgpu
from cyborg_gpu_driver.simulator import machine as simulator
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.fuzz import base

_MIG = {'version': 'v1', 'mig-configs': {
    'one': [{'devices': 'all', 'device-filter': ['0x20B010DE'],
             'mig-enabled': True,
             'mig-devices': {'1g.5gb': 2, '1c.3g.20gb': 1}},
            {'devices': [0, 2], 'device-filter': '0x25B610DE',
             'mig-enabled': False}],
    'two': [{'devices': [0], 'mig-enabled': True, 'mig-devices': {}}]}}
_VGPU = {'version': 'v1', 'vgpu-configs': {
    'default': [{'devices': 'all', 'device-filter': '0x20B010DE',
                 'vgpu-devices': {'A100-10C': 2, 'A100-40C': 0}},
                {'devices': [0], 'vgpu-devices': {'T4-2B': 1}}]}}
_ODDITIES = (
    'v1', '0x' + 'f' * 5000, '1:60:60', '2026-01-01', '0001-01-01 00:00:00'
    '+23:00', '!!int ""', '!!int "+"', '!!float ""', '!!bool x', '.nan',
    '!!timestamp x', '!!null x', '!!binary "a"', '!!set {a}', '!!omap [a]',
    '!!pairs [[a]]', '!!map [a]', '!!seq {a: 1}', '!!str {a: 1}', '&a [*a]',
    '&a {<<: *a}', '{<<: [1]}', '? [1]', '!!python/object:os.system x', '*a',
    '1' * 5000, '-1', '"\\uD800"', '[' * 400, '{a: ' * 400, '0b', '0x',
    '1e400', '!<tag:yaml.org,2002:int> x', '!!merge x', '=', '---')


@strategies.composite
def _texts(draw, document):
    """The text of a document with values that are YAML's alone."""
    text = yaml.safe_dump(draw(base.mutated(document)),
                          default_flow_style=draw(strategies.booleans()))
    for word in draw(strategies.lists(strategies.sampled_from((
            'v1', 'all', 'true', '2', '0', 'null')), max_size=2)):
        text = text.replace(word, draw(strategies.sampled_from(
            _ODDITIES)), 1)
    return text


class LayoutFileTest(base.FuzzCase):

    def setUp(self):
        super().setUp()
        machine = simulator.Machine.load('mixed')
        self.host = reader.HostReader(platform.open_platform(machine))
        self.addCleanup(machine.uninstall)
        self.gpus = self.host.snapshot().gpus

    def check(self, kind, text):
        """Read a text, and ask of what it says for each GPU."""
        file = self.attempt(kind.parse, text, 'file')
        if file is None:
            return
        self.assertEqual(file.to_dict(),
                         kind.parse(file.dump(), 'again').to_dict())
        for entry in file.entries:
            for section in entry.sections:
                self.assertIsInstance(
                    section.to_dict().get('mig-enabled', True), bool)
            self.attempt(file.entry, entry.name)
            for index, gpu in enumerate(self.gpus):
                wanted = self.attempt(entry.for_gpu, index, gpu)
                self.assertIsInstance(str(wanted), str)
            if hasattr(entry, 'for_host'):
                self.attempt(entry.for_host, self.gpus)
        self.attempt(file.entry)

    @base.examples(150)
    @hypothesis.given(_texts(_MIG))
    @hypothesis.example('{version: v1, mig-configs: {a: [{devices: all, '
                        'mig-enabled: 1, mig-devices: {}}]}}')
    def test_mig(self, text):
        self.check(layout_file.LayoutFile, text)

    @base.examples(100)
    @hypothesis.given(_texts(_VGPU))
    @hypothesis.example('{version: v1, vgpu-configs: [1]}')
    def test_vgpus(self, text):
        self.check(layout_vgpu.LayoutFile, text)

    def test_each_oddity_of_yaml(self):
        """In each place of the files."""
        for scalar, (kind, document) in itertools.product(_ODDITIES, (
                (layout_file.LayoutFile, _MIG),
                (layout_vgpu.LayoutFile, _VGPU))):
            text = yaml.safe_dump(document, default_flow_style=True)
            for word in ('v1', 'all', 'true', '2', 'one', '1g.5gb', '{}'):
                self.attempt(kind.parse, text.replace(word, scalar), 'file')
            self.attempt(kind.parse, scalar, 'file')

    @base.examples(100)
    @hypothesis.given(base.damaged(yaml.safe_dump(_MIG).encode()))
    def test_any_bytes(self, data):
        path = f'{self.state_path}/layout'
        with open(path, 'wb') as stream:
            stream.write(data)
        read = self.attempt(layout_options.read_text, path)
        if read is not None:
            for kind in (layout_file.LayoutFile, layout_vgpu.LayoutFile):
                self.attempt(kind.parse, *read)
