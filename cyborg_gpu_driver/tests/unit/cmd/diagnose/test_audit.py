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

"""``cyborg-gpu audit list``."""

import datetime
import os

import fixtures

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.tests.unit.cmd import base

_GPU = '0000:3b:00.0'
_OTHER = '0000:5e:00.0'
_HANDLE = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_SERVER = '7a9b6c0e-4a0f-4d4c-9b5d-0c1d1f6f2a11'


class AuditListTest(base.CommandCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.config = self.configure(
            f'[gpu]\nstate_path = {self.directory}\n', self.directory)

    def record(self, gpu, what, subject, **evidence):
        audit.Audit(self.directory).record(
            model.PciAddress.parse(gpu), what, subject, evidence)

    def fill(self):
        self.record(_GPU, 'bound', _HANDLE, profile='1g.10gb', placement=None)
        self.record(_OTHER, 'given', _SERVER, doubt='')
        self.record(_GPU, 'unbound', _HANDLE)
        self.record(_OTHER, 'cleaned', f'{_HANDLE}, {_SERVER}',
                    before={'processes': 0, 'uuid': None}, seconds=0.5)
        self.record(_OTHER, 'returned', '')

    def whats(self, *arguments):
        return [row['what'] for row in self.rows(
            '--config-file', self.config, 'audit', 'list', *arguments)]

    def test_nothing_was_recorded(self):
        self.assertEqual([], self.whats())

    def test_all_of_it(self):
        self.fill()
        rows = self.rows('--config-file', self.config, 'audit', 'list')
        self.assertEqual(['bound', 'given', 'unbound', 'cleaned',
                          'returned'], [row['what'] for row in rows])
        self.assertEqual(
            [_GPU, _HANDLE, {'profile': '1g.10gb', 'placement': None}],
            [rows[0][name] for name in ('gpu', 'subject', 'evidence')])
        self.assertIsNone(rows[4]['subject'])
        time = datetime.datetime.fromisoformat(rows[0]['time'])
        self.assertIsNotNone(time.tzinfo)

    def test_what_is_asked_for(self):
        self.fill()
        self.assertEqual(['bound', 'unbound'], self.whats('--gpu', _GPU))
        self.assertEqual(['bound', 'unbound', 'cleaned'],
                         self.whats('--handle', _HANDLE.upper()))
        self.assertEqual(['given', 'cleaned'],
                         self.whats('--handle', _SERVER))
        self.assertEqual([], self.whats('--gpu', _GPU, '--handle', _SERVER))

    def test_a_handle_that_is_none(self):
        _, errors = self.run_program('--config-file', self.config, 'audit',
                                     'list', '--handle', 'notuuid', code=1)
        self.assertIn('--handle', errors)
        self.assertIn('UUID', errors)

    def test_since(self):
        self.fill()
        now = datetime.datetime.now(datetime.timezone.utc)
        later = now + datetime.timedelta(hours=1)
        earlier = now - datetime.timedelta(hours=1)
        east = datetime.timezone(datetime.timedelta(hours=9))
        for text, number in (
                ('1h', 5), ('2w', 5), ('0s', 0),
                (earlier.isoformat(), 5), (later.isoformat(), 0),
                (earlier.replace(tzinfo=None).isoformat(), 5),
                (later.replace(tzinfo=None).isoformat(), 0),
                (earlier.astimezone(east).isoformat(), 5),
                (later.astimezone(east).isoformat(), 0)):
            self.assertEqual(number, len(self.whats('--since', text)), text)
        for text in ('yesterday', '5y', '999999w', '-1h', ''):
            _, errors = self.run_program(
                '--config-file', self.config, 'audit', 'list',
                f'--since={text}', code=1)
            self.assertIn('--since', errors)

    def test_for_people(self):
        self.fill()
        output, _ = self.run_program('--config-file', self.config, 'audit',
                                     'list')
        handle = self.rows('--config-file', self.config, 'audit', 'list')[0]
        for line in output.splitlines():
            self.assertLessEqual(len(line), 80)
        output, _ = self.run_program('--config-file', self.config, 'audit',
                                     'list', '--max-width', '100')
        self.assertIn(f"| {handle['subject']} ", output)
        output, _ = self.run_program('--config-file', self.config, 'audit',
                                     'list', '--long')
        self.assertIn(handle['time'].replace('T', ' ').replace('+00:00', 'Z'),
                      output)
        self.assertIn('before processes: 0', output)
        self.assertIn('seconds: 0.5', output)
        self.assertNotIn('uuid', output)
        self.assertNotIn('doubt', output)

    def test_what_cannot_be_read_is_said(self):
        self.fill()
        path = os.path.join(self.directory, 'audit.jsonl')
        with open(path, 'a', encoding='utf-8') as stream:
            stream.write('nonsense\n')
        self.assertEqual(5, len(self.whats()))
        _, errors = self.run_program('--config-file', self.config, 'audit',
                                     'list')
        self.assertIn('1 line(s)', errors)
        os.unlink(path)
        os.mkdir(path)
        _, errors = self.run_program('--config-file', self.config, 'audit',
                                     'list', code=1)
        self.assertIn('cannot be read', errors)

    def test_a_gpu_that_is_no_address(self):
        self.run_program('--config-file', self.config, 'audit', 'list',
                         '--gpu', '../x', code=1)
