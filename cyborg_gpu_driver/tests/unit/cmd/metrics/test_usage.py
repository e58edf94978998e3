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

"""``cyborg-gpu usage``."""

import datetime
import os

import fixtures

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.tests.unit.cmd import base

_GPU = model.PciAddress.parse('0000:3b:00.0')
_OTHER = model.PciAddress.parse('0000:5e:00.0')
_HANDLE = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_SECOND = '0d7e5b36-92a4-4c37-8b0f-3b8e7f0a1c55'
_START = datetime.datetime(2026, 11, 1, tzinfo=datetime.timezone.utc)


class UsageTest(base.CommandCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.config = self.configure(
            f'[gpu]\nstate_path = {self.directory}\n', self.directory)
        begin = _START.timestamp()
        self.entry = journal.Entry(
            _SECOND, _OTHER, _OTHER, 'nvidia-474', '2g.20gb',
            journal.Phase.BOUND, since=begin + 3600)
        journal.Journal(self.directory).put(self.entry)
        audit.Audit(self.directory).record(_GPU, 'unbound', _HANDLE, {
            'profile': '1g.10gb', 'since': begin, 'until': begin + 5400})

    def usage(self, *arguments):
        return self.rows('--config-file', self.config, 'usage', *arguments)

    def refusal(self, *arguments):
        return self.run_program('--config-file', self.config, 'usage',
                                *arguments, code=1)[1]

    def test_what_has_ended_and_what_goes_on(self):
        first, second = self.usage('--end', '2026-11-01T02:00')
        self.assertEqual(
            ('1g.10gb', str(_GPU), _HANDLE, None, 5400.0, 1.5),
            tuple(first[name] for name in ('profile', 'gpu', 'handle',
                                           'server', 'seconds', 'hours')))
        self.assertEqual('2026-11-01T01:30:00+00:00', first['until'])
        self.assertEqual((None, 3600.0),
                         (second['until'], second['seconds']))

    def test_a_period(self):
        (row,) = self.usage('--start', '2026-11-01T00:30', '--end',
                            '2026-11-01T00:40')
        self.assertEqual(600.0, row['seconds'])
        self.assertEqual([], self.usage('--end', '2026-10-31'))

    def test_sums(self):
        self.assertEqual(
            [{'gpu': str(_GPU), 'count': 1, 'seconds': 5400.0, 'hours': 1.5},
             {'gpu': str(_OTHER), 'count': 1, 'seconds': 7200.0,
              'hours': 2.0}],
            self.usage('--by', 'gpu', '--end', '2026-11-01T03:00'))
        self.assertEqual([(None, 2)], [
            (row['server'], row['count']) for row in self.usage(
                '--by', 'server', '--end', '2026-11-01T03:00')])

    def test_a_period_that_is_none(self):
        self.assertIn('--start', self.refusal('--start', 'yesterday'))
        self.assertIn('--start', self.refusal(
            '--start', '2026-11-02', '--end', '2026-11-01'))
        self.assertIn('--end', self.refusal('--end', '7'))

    def test_a_record_that_cannot_be_used_is_named(self):
        path = os.path.join(self.directory, 'gpus', f'{_OTHER}.json')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('no record')
        _, errors = self.run_program('--config-file', self.config, 'usage')
        self.assertIn(f'in use on GPU {_OTHER} now are not counted', errors)

    def test_lines_that_were_dropped_are_said(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.audit._FILES', 2))
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.audit._FILE_SIZE', 1))
        audit.Audit(self.directory).record(_GPU, 'cleaned', '', {})
        audit.Audit(self.directory).record(_GPU, 'cleaned', '', {})
        _, errors = self.run_program('--config-file', self.config, 'usage')
        self.assertIn('Older lines of the audit record were dropped', errors)
