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

"""The list of strings that users may read."""

import contextlib
import io
import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.tests.unit.tools import test_checks

_SOURCE = '''\
"""A docstring of a module."""
class List(lister.Lister):
    """List the GPUs."""
    columns = ('GPU', 'Memory')
    def options(self, parser):
        parser.add_argument('--gpu', help='one GPU, '
                                          'or \\0')
    def log(self):
        LOG.error('GPU %s is sick', KEYS['key'])
    def fail(self, gpu, left):
        raise Error(f'GPU {gpu} has {len(left)} slices')
    def say(self, gpu):
        return gpu + ' is ' + ('in use' if gpu.used else 'all free')
class Refused(Exception):
    template = '{gpu} is busy'
'''
_EXPECTED = [
    '2: command: List the GPUs.', '4: text: GPU', '4: text: Memory',
    '6: help: one GPU, or \\x00', '9: log: GPU %s is sick',
    '11: error: GPU {gpu} has {len(left)} slices',
    '13: text: all free', '13: text: in use', '13: text: {gpu} is {...}',
    '15: error: {gpu} is busy']


class ListStringsTest(base.BaseTestCase):

    def test_each_string_with_its_line_and_kind(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'm.py')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(_SOURCE)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertEqual(0, test_checks.script('list-strings').main(
                [path]))
        self.assertEqual(_EXPECTED, [
            line.removeprefix(f'{path}:')
            for line in printed.getvalue().splitlines()])
