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


"""The file of sick GPUs gives back what it got, or says what is wrong."""

import os
import subprocess
import sys

import fixtures
from oslotest import base

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.program import health_file

_HOLD = """
import fcntl, os, sys
directory = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(directory, fcntl.LOCK_EX)
stream = open(sys.argv[2], 'a')
fcntl.lockf(stream, fcntl.LOCK_EX)
print('held', flush=True)
sys.stdin.read()
"""

_GPU = model.PciAddress.parse('0000:07:00.0')
_OTHER = model.PciAddress.parse('0000:0f:00.0')
_RECORDS = {
    _GPU: health_file.Record('boot', 'GPU-1', (
        health.Ailment('XID_79', 1.5, 2.5, 3, 4),
        health.Ailment('XID_94', 1.0, 1.0,
                       placement=model.Placement(2, 2), instance_id=3))),
    _OTHER: health_file.Record('', None, (
        health.Ailment('REMAP_FAILED', 1.0, 1.0),))}


class HealthFileTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'below')
        self.file = health_file.HealthFile(self.directory)

    def test_what_was_written_is_read(self):
        self.assertEqual({}, self.file.read())
        self.file.write(_RECORDS)
        self.assertEqual(_RECORDS, self.file.read())

    def test_each_damage_is_named(self):
        self.file.write(_RECORDS)
        for where, value in ((('gpu',), 'x'), (('gpu',), None),
                             (('boot',), 1), (('uuid',), 1),
                             (('ailments',), 1), (('ailments', 0), {}),
                             (('ailments', 0, 'code'), 'XID_x'),
                             (('ailments', 0, 'code'), 'a b'),
                             (('ailments', 0, 'count'), -1),
                             (('ailments', 0, 'count'), True),
                             (('ailments', 0, 'first'), 'x'),
                             (('ailments', 0, 'instance_id'), 'x'),
                             (('ailments', 1, 'placement'), 'x')):
            content = durable.read(self.file.path, 'cyborg-gpu health', 1)
            item = content[0]
            for step in where[:-1]:
                item = item[step]
            item[where[-1]] = value
            path = os.path.join(self.directory, 'health.json')
            durable.write(path, 'cyborg-gpu health', 1, content)
            error = self.assertRaises(exception.JournalError, self.file.read)
            self.assertIn('is damaged', str(error), where)
            self.file.write(_RECORDS)

    def test_who_holds_it_holds_it_alone(self):
        with self.file.held():
            self.assertIn('BlockingIOError', self.lock_apart())
        self.assertEqual('', self.lock_apart())

    def test_nobody_is_waited_for_for_ever(self):
        """Not for who may read the directory, nor for a stopped command."""
        with self.file.held():
            pass
        self.useFixture(fixtures.MockPatchObject(
            locks, '_RECORD_SECONDS', 0.1))
        held = subprocess.Popen(
            [sys.executable, '-c', _HOLD, self.directory, self.lock_path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(held.communicate)
        self.assertEqual('held\n', held.stdout.readline())
        error = self.assertRaises(exception.JournalError,
                                  self.file.held().__enter__)
        self.assertIn(f'process {held.pid} (', str(error))
        self.assertIn('within 0.1 s', str(error))

    @property
    def lock_path(self):
        return os.path.join(self.directory, 'locks', 'cyborg-gpu-health')

    def lock_apart(self):
        """What another process says on stderr that locks the file."""
        return subprocess.run(
            [sys.executable, '-c', 'import fcntl, sys\n'
             "stream = open(sys.argv[1], 'a')\n"
             'fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)',
             self.lock_path], capture_output=True, text=True,
            check=False).stderr
