# SPDX-License-Identifier: Apache-2.0

"""Programs that end, and programs that do not."""

import os
import select

import fixtures
from oslotest import base

from cyborg_gpu_driver.program.privileged import child


class ChildTest(base.BaseTestCase):

    def test_what_a_program_says_is_told_where_it_fails(self):
        child.run(60, 'sh', '-c', 'exit 0')
        error = self.assertRaises(child.Failed, child.run, 60, 'sh', '-c',
                                  'echo one; echo two >&2; exit 3')
        self.assertEqual('one\ntwo', str(error))

    def test_one_that_does_not_end_is_killed_with_its_children(self):
        path, reader = self.fifo()
        error = self.assertRaises(
            child.Failed, child.run, 1, 'sh', '-c',
            f'exec > {path}; sleep 3600 & wait')
        self.assertIn('1 s', str(error))
        # Both processes have the other end open as long as they live.
        self.assert_closed(reader)

    def test_children_of_one_that_has_ended_are_killed(self):
        path, reader = self.fifo()
        # The child keeps the standard output of the program open.
        self.assertRaises(child.Failed, child.run, 1, 'sh', '-c',
                          f'sleep 3600 3> {path} & exit 0')
        self.assert_closed(reader)

    def test_a_service_that_one_has_started_goes_on(self):
        path, reader = self.fifo()
        order, _ = self.fifo()
        with open(order, 'r+b', buffering=0) as stream:
            child.run(60, 'sh', '-c', f'(read line < {order}; echo on) '
                                      f'> {path} 2>&1 &')
            stream.write(b'\n')
            poll = select.poll()
            poll.register(reader, select.POLLIN)
            poll.poll(60000)
        self.assertEqual(b'on\n', os.read(reader, 10))

    def fifo(self):
        """Return the path of a FIFO, and a descriptor that reads it."""
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'fifo')
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        return path, reader

    def assert_closed(self, reader):
        """Wait until no process has the other end of a FIFO open."""
        poll = select.poll()
        poll.register(reader, 0)
        self.assertEqual([(reader, select.POLLHUP)], poll.poll(60000))

    def test_one_that_is_not_there(self):
        self.assertRaises(FileNotFoundError, child.run, 60, '/nonexistent')
