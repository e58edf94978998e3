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

from cyborg_gpu_driver.cmd import terminal
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition import layout_file
from cyborg_gpu_driver.partition import layout_vgpu
from cyborg_gpu_driver.simulator import machine as simulator
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.fuzz import base
from cyborg_gpu_driver.tests.unit.fuzz import checks
from cyborg_gpu_driver.tests.unit.fuzz import oddities

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


class LayoutFileTest(base.FuzzCase):

    def setUp(self):
        super().setUp()
        machine = simulator.Machine.load('mixed')
        self.host = reader.HostReader(platform.open_platform(machine))
        self.addCleanup(machine.uninstall)
        self.gpus = self.host.snapshot().gpus

    def check(self, kind, text):
        """Read a text, and ask of what it says for each GPU."""
        checks.layout(kind, text, self.gpus)

    @base.examples(150)
    @hypothesis.given(oddities.texts(_MIG))
    @hypothesis.example('{version: v1, mig-configs: {a: [{devices: all, '
                        'mig-enabled: 1, mig-devices: {}}]}}')
    def test_mig(self, text):
        self.check(layout_file.LayoutFile, text)

    @base.examples(100)
    @hypothesis.given(oddities.texts(_VGPU))
    @hypothesis.example('{version: v1, vgpu-configs: [1]}')
    def test_vgpus(self, text):
        self.check(layout_vgpu.LayoutFile, text)

    def test_each_oddity_of_yaml(self):
        """In each place of the files."""
        for scalar, (kind, document) in itertools.product(oddities.SCALARS, (
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
        read = self.attempt(terminal.read_text, path)
        if read is not None:
            for kind in (layout_file.LayoutFile, layout_vgpu.LayoutFile):
                self.attempt(kind.parse, *read)
