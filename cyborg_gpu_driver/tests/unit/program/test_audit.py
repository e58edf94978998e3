# SPDX-License-Identifier: Apache-2.0

"""The audit record: whole lines, bounded files, no harm to its callers."""

import datetime
import glob
import json
import logging
import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.record import gpu as gpu_record

_GPU = model.PciAddress.parse('0000:81:00.0')
_HANDLE = '4b20d080-1b54-4048-85b3-a6a62d165c01'


class AuditTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.state_path = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'gpu')
        self.path = os.path.join(self.state_path, 'audit.jsonl')
        self.audit = audit.Audit(self.state_path)
        self.log = self.useFixture(fixtures.FakeLogger(
            'cyborg_gpu_driver', level=logging.INFO))

    def record(self, what='bound', **evidence):
        self.audit.record(_GPU, what, _HANDLE, evidence)

    def lines(self):
        """The lines of all files, oldest first."""
        found = []
        for path in sorted(glob.glob(f'{self.path}*'), reverse=True,
                           key=lambda path: int(
                               path.partition('jsonl.')[2] or 0)):
            with open(path, encoding='utf-8') as stream:
                found += stream.read().splitlines()
        return found

    def whats(self):
        return [json.loads(line)['what'] for line in self.lines()]

    def test_what_was_recorded_is_there(self):
        before = datetime.datetime.now(datetime.timezone.utc)
        self.record(where={'start': 4}, uuid='ä')
        self.record('unbound')
        first, second = map(json.loads, self.lines())
        self.assertLessEqual(before, datetime.datetime.fromisoformat(
            first['time']))
        self.assertLessEqual(first.pop('time'), second['time'])
        self.assertEqual(
            {'gpu': str(_GPU), 'what': 'bound', 'subject': _HANDLE,
             'evidence': {'where': {'start': 4}, 'uuid': 'ä'}}, first)

    def test_a_line_that_a_crash_cut_swallows_no_other(self):
        self.record('one')
        with open(self.path, 'a', encoding='utf-8') as stream:
            stream.write('{"time": "2026-')
        self.record('two')
        one, _cut, two = self.lines()
        self.assertEqual(['one', 'two'],
                         [json.loads(line)['what'] for line in (one, two)])

    def test_a_number_of_files_is_kept(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.audit._FILES', 5))
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.audit._FILE_SIZE', 400))
        self.record('first')
        for number in range(100):
            self.record(str(number))
        names = sorted(name for name in os.listdir(self.state_path)
                       if name.startswith('audit'))
        self.assertEqual(['audit.jsonl.1', 'audit.jsonl.2', 'audit.jsonl.3',
                          'audit.jsonl.4'], [
                              name for name in names
                              if name != 'audit.jsonl'])
        found = [int(what) for what in self.whats()]
        self.assertEqual(list(range(found[0], 100)), found)
        self.assertLess(8, len(found))
        for name in names:
            self.assertGreater(700, os.path.getsize(
                os.path.join(self.state_path, name)))

    def test_a_disk_that_cannot_be_written_stops_nobody(self):
        self.record('one')
        os.rename(self.state_path, self.state_path + '.away')
        with open(self.state_path, 'w', encoding='utf-8'):
            pass
        for _ in range(3):
            self.record('lost')
        self.assertEqual(1, self.log.output.count('Cannot write'))
        os.unlink(self.state_path)
        os.rename(self.state_path + '.away', self.state_path)
        self.record('two')
        self.assertEqual(['one', 'two'], self.whats())
        os.unlink(self.path)
        os.mkdir(self.path)
        self.record('lost')
        self.assertEqual(2, self.log.output.count('Cannot write'))

    def test_the_evidence_of_a_bind(self):
        entry = gpu_record.Claim(
            handle=_HANDLE, gpu=_GPU, function=_GPU, mdev_type='nvidia-474',
            profile='1g.10gb', phase=gpu_record.Phase.BOUND,
            placement=model.Placement(4, 1), instance_id=9)
        self.assertEqual(
            {'profile': '1g.10gb', 'type': 'nvidia-474',
             'function': '0000:81:00.0', 'placement': '4:1',
             'gpu_instance_id': 9, 'vgpu_placement': None},
            audit.of_claim(entry))
