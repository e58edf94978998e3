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


"""Layout files with mistakes are refused with errors of this library."""


import hypothesis
import yaml

from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator
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


class LayoutFileTest(base.FuzzCase):

    def setUp(self):
        super().setUp()
        machine = simulator.Machine.load('mixed')
        self.host = reader.HostReader(platform.open_platform(machine))
        self.addCleanup(machine.uninstall)
        self.gpus = self.host.snapshot().gpus

    @base.examples(150)
    @hypothesis.given(oddities.texts(_MIG))
    @hypothesis.example('{version: v1, mig-configs: {a: [{devices: all, '
                        'mig-enabled: 1, mig-devices: {}}]}}')
    def test_mig(self, text):
        checks.layouts(text, self.gpus)

    def test_each_oddity_of_yaml(self):
        """Put each oddity in several places of the file."""
        parse = layout_file.LayoutFile.parse
        text = yaml.safe_dump(_MIG, default_flow_style=True)
        for scalar in oddities.SCALARS:
            for word in ('v1', 'all', 'true', '2', 'one', '1g.5gb', '{}'):
                self.attempt(parse, text.replace(word, scalar), 'file')
            self.attempt(parse, scalar, 'file')

    def test_what_is_too_much(self):
        """A short text can mean more than any program can process."""
        head = ('version: v1\nmig-configs:\n  a:\n  - devices: all\n'
                '    mig-enabled: true\n    mig-devices: ')
        for devices in (
                '{1g.5gb: 1000000000}', '{1g.5gb: ' + '9' * 5000 + '}',
                '{1c.7g.40gb: 7, 2c.7g.40gb: 1, 3c.7g.40gb: 1}',
                '{1c.3g.20gb: 3, 1c.4g.20gb: 4, 2c.3g.20gb: 1}',
                '{1c.2g.10gb: 6, 2c.3g.20gb: 1, 1c.3g.20gb: 1}'):
            checks.layouts(head + devices, self.gpus)
        laughs = 'l0: &a [l, l, l, l, l, l, l, l, l]\n' + ''.join(
            f'l{number}: &{chr(97 + number)} ['
            + ', '.join([f'*{chr(96 + number)}'] * 9) + ']\n'
            for number in range(1, 10))
        for text in (laughs + 'version: v1\nmig-configs: *j\n',
                     laughs + 'version: v1\nmig-configs: {a: *j}\n',
                     'version: v1\nmig-configs: ' + '[' * 3000 + ']' * 3000,
                     'version: v1\nmig-configs: ' + '{a: ' * 3000
                     + '1' + '}' * 3000,
                     head.replace('all', str([*range(5000)])) + '{}'):
            checks.layouts(text, self.gpus)

    @base.examples(100)
    @hypothesis.given(base.damaged(yaml.safe_dump(_MIG).encode()))
    def test_any_bytes(self, data):
        path = f'{self.state_path}/layout'
        with open(path, 'wb') as stream:
            stream.write(data)
        read = self.attempt(output.read_text, path)
        if read is not None:
            self.attempt(layout_file.LayoutFile.parse, *read)
