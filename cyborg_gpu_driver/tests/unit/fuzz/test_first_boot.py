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

"""A cloud's data for a server, and the server's report of its first boot."""

import json

import hypothesis
import yaml

from cyborg_gpu_driver import durable
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.fuzz import base
from cyborg_gpu_driver.tests.unit.fuzz import checks
from cyborg_gpu_driver.tests.unit.fuzz import oddities

_ITEMS = [{'devices': 'all', 'device-filter': '0x233010DE',
           'mig-enabled': True, 'mig-devices': {'1g.10gb': 2}},
          {'devices': [0], 'device-filter': '0x20B010DE',
           'mig-enabled': False}]
_META = {'uuid': 'a', 'meta': {'cyborg_gpu_layout': 'all-1g.10gb'}}
_VENDOR = {'service': {'cyborg_gpu_layout': {'one': _ITEMS}},
           'cyborg_gpu_layout': _ITEMS}
_REPORT = {
    'result': 'failed', 'time': '2026-01-01T00:00:00+00:00', 'boot_id': 'a',
    'source': 'file', 'layout': 'one', 'others': ['drive'], 'notes': ['b'],
    'error': 'c', 'gpus': [
        {'index': 0, 'address': '0000:07:00.0', 'status': 'changed',
         'wanted': '1g.10gb', 'error': None},
        {'index': None, 'address': '0000:0f:00.0', 'status': 'failed',
         'wanted': 'one', 'error': 'lost'}]}


class MetadataTest(base.FuzzCase):

    def setUp(self):
        super().setUp()
        machine = simulator.Machine.load('hgx-h100')
        self.gpus = reader.HostReader(
            platform.open_platform(machine)).snapshot().gpus[:2]
        self.addCleanup(machine.uninstall)

    @base.examples(150)
    @hypothesis.given(base.mutated(_META), base.mutated(_VENDOR))
    def test_documents(self, meta, vendor):
        checks.metadata({'meta_data.json': json.dumps(meta),
                         'vendor_data2.json': json.dumps(vendor)}, self.gpus)

    @base.examples(150)
    @hypothesis.given(oddities.texts({'one': _ITEMS}))
    @hypothesis.example('[' * 5000)
    @hypothesis.example('!!binary x')
    def test_text_of_a_layout(self, text):
        checks.metadata({'meta_data.json': json.dumps(
            {'meta': {'cyborg_gpu_layout': text}})}, self.gpus)

    @base.examples(50)
    @hypothesis.given(base.TEXTS)
    def test_texts(self, text):
        checks.metadata({'vendor_data.json': text})

    def test_each_oddity_of_yaml(self):
        text = yaml.safe_dump(_ITEMS, default_flow_style=True)
        for scalar in oddities.SCALARS:
            for word in ('all', 'true', '2', '1g.10gb'):
                checks.metadata({'vendor_data.json': json.dumps(
                    {'cyborg_gpu_layout': text.replace(word, scalar)})})


class ReportTest(base.FuzzCase):

    @base.examples(250)
    @hypothesis.given(base.mutated(_REPORT))
    @hypothesis.example(_REPORT)
    def test_report(self, content):
        durable.write(f'{self.state_path}/firstboot.json',
                      'cyborg-gpu first boot', 1, content)
        checks.first_boot_file(self.state_path)
