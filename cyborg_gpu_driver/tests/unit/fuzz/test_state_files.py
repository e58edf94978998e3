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


"""Every file of the state directory, damaged but with a valid checksum."""

import contextlib
import datetime
import json
import math
import os
import uuid

import hypothesis

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.fuzz import base
from cyborg_gpu_driver.tests.unit.fuzz import checks

_GPU = '0000:07:00.0'
_ADDRESS = model.PciAddress.parse(_GPU)
_PLACE = {'start': 4, 'size': 2}
_ENTRIES = [{
    'handle': str(uuid.UUID(int=number)), 'gpu': _GPU,
    'function': '0000:07:00.4', 'mdev_type': 'nvidia-474',
    'profile': '1g.5gb', 'phase': phase.value, 'profile_id': 19,
    'placement': dict(_PLACE), 'instance_id': 7, 'foreign_ids': [8, 9],
    'vfio': bool(number % 2), 'vgpu_placement': None, 'boot': 'one',
    'repeats': 0}
    for number, phase in enumerate(gpu_record.Phase)]
_LAYOUT = {'enabled': True, 'pending': False, 'instances': [
    {'profile_id': 19, 'placement': _PLACE, 'compute': [[0, 1], [1, 1]]}]}
_CHECKPOINT = [{'gpu': _GPU, 'device_id': '20b0', 'vfs': True,
                'layout': _LAYOUT},
               {'gpu': '0000:0f:00.0', 'device_id': '20b0', 'vfs': False,
                'layout': _LAYOUT}]
_GPU_RECORD = {
    'claims': _ENTRIES, 'claims_lost': False,
    'fixed': {'types': {'0000:07:00.4': 'nvidia-1145'}, 'instances': [
        {'profile_id': 19, 'placement': _PLACE, 'compute': [[0, 1]]}]},
    'layout': _CHECKPOINT[0],
    'change': {'gpu': _GPU, 'before': {'enabled': True, 'pending': True},
               'steps': ['a', 'b'], 'at': 1, 'touched': [
                   {'profile_id': 19, 'placement': _PLACE}],
               'problem': None},
    'board': {'ids': ['10de', '20b0', None, None], 'boot': 'one',
              'time': 1.5, 'nvlink_peers': ['0000:0f:00.0'],
              'health': {'state': 'ok', 'reasons': ['a'], 'time': 1.0}},
    'health': {'boot': 'one', 'uuid': 'GPU-1', 'conditions': [
        {'code': 'XID_79', 'first': 1.0, 'last': 2.5, 'count': 1,
         'clean': 0, 'placement': _PLACE, 'instance_id': 7}]},
    'tenancy': {'state': 'used', 'tenants': ['one'], 'generation': 7,
                'reason': ''},
    'cordons': [{'source': 'cyborg', 'since': 1.0, 'who': 'ann',
                 'reason': 'a fan'}]}
_RECORD = {'time': '2026-01-01T00:00:00+00:00', 'gpu': _GPU,
           'what': 'bound', 'subject': '', 'evidence': {'type': 'a'}}


class StateFileTest(base.FuzzCase):
    """A file is refused, or it is the same after it is read and written."""

    def check(self, name, content):
        checks.state_file(self.state_path, name, content)

    @base.examples(150)
    @hypothesis.given(base.mutated(_CHECKPOINT))
    def test_checkpoint(self, content):
        self.check('a.json', content)

    @base.examples(400)
    @hypothesis.given(base.mutated(_GPU_RECORD))
    @hypothesis.example({'change': {**_GPU_RECORD['change'], 'at': math.inf}})
    @hypothesis.example({'health': {'conditions': [
        {'code': 'XID_79', 'first': 10 ** 400, 'last': math.nan}]}})
    @hypothesis.example({'tenancy': {'state': 'used', 'generation': True}})
    def test_record(self, content):
        self.check(f'gpus/{_GPU}.json', content)

    @base.examples(100)
    @hypothesis.given(base.TEXTS)
    @hypothesis.example('00000000:07:00.0')
    def test_names_of_records(self, name):
        records = store.Store(self.state_path)
        directory = os.path.dirname(records.path(_ADDRESS))
        durable.make_directory(directory)
        for stranger in (name, name + '.json'):
            with contextlib.suppress(OSError, ValueError):
                open(os.path.join(
                    directory, stranger.replace('/', '_')), 'wb').close()
        for found in records.addresses():
            self.assertIn(f'{found}.json', os.listdir(directory))

    @base.examples(250)
    @hypothesis.given(base.mutated(_RECORD), base.damaged(
        json.dumps(_RECORD).encode()))
    def test_audit(self, record, line):
        """An invalid record is counted, and no other record is lost."""
        with open(os.path.join(self.state_path, 'audit.jsonl'),
                  'wb') as stream:
            for item in (json.dumps(record).encode(),
                         line.replace(b'\n', b' ') or b' ',
                         json.dumps(_RECORD).encode()):
                stream.write(item + b'\n')
        found = audit.read(self.state_path)
        self.assertEqual(3, len(found.records) + found.bad)
        self.assertEqual('bound', found.records[-1].what)
        for item in found.records:
            self.assertEqual(item.time.utcoffset(), datetime.timedelta())

    @base.examples(100)
    @hypothesis.given(base.damaged(json.dumps(_ENTRIES).encode()))
    @hypothesis.example(b'[' * 100000)
    def test_any_bytes(self, data):
        path = store.Store(self.state_path).path(_ADDRESS)
        durable.make_directory(os.path.dirname(path))
        for read in (
                lambda: store.Store(self.state_path).read(_ADDRESS),
                lambda: apply.read_checkpoint(
                    os.path.join(self.state_path, 'a.json'))):
            for name in (path, 'a.json'):
                with open(os.path.join(self.state_path, name),
                          'wb') as stream:
                    stream.write(data)
            self.assertRaises(exception.JournalError, read)
