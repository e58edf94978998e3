# SPDX-License-Identifier: Apache-2.0

"""Which processes hold a lock on a file."""

import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.host import open_files

_FILE = '08:01:131'
_OTHER = '3: POSIX  ADVISORY  READ  4714 08:01:132 0 EOF\n'
_LINES = f"""\
1: POSIX  ADVISORY  WRITE 4711 {_FILE} 0 EOF
1: -> POSIX  ADVISORY  WRITE 4712 {_FILE} 0 EOF
2: FLOCK  ADVISORY  WRITE 4713 {_FILE} 0 EOF
{_OTHER}4: POSIX  ADVISORY  READ  -1 {_FILE} 0 EOF
5: POSIX  ADVISORY  READ  17 {_FILE} 0 EOF
"""


class LockHoldersTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.proc = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(self.proc, 'locks')

    def holders(self, kind='POSIX', file=_FILE):
        return open_files.lock_holders(kind, file.__eq__, self.proc)

    def write(self, text):
        with open(self.path, 'w', encoding='ascii') as stream:
            stream.write(text)

    def test_of_one_kind_and_file(self):
        self.write(_LINES)
        self.assertEqual((17, 4711), self.holders())
        self.assertEqual((4713,), self.holders('FLOCK'))
        self.assertEqual((), self.holders(file='08:01:133'))

    def test_what_cannot_be_read(self):
        self.assertEqual((), self.holders())
        self.write('what is this\n1: POSIX\n')
        self.assertEqual((), self.holders())

    def test_a_line_that_was_missed(self):
        self.write(_OTHER)

        def is_file(file):
            # After the first look has read all lines.
            self.write(_LINES)
            return file == _FILE

        self.assertEqual((17, 4711), open_files.lock_holders(
            'POSIX', is_file, self.proc))
