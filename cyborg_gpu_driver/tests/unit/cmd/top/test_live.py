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


from __future__ import annotations

import os
import signal

import fixtures

from cyborg_gpu_driver.simulator.machine import machine
from cyborg_gpu_driver.tests.unit.cmd import base
from cyborg_gpu_driver.tests.unit.cmd.top import pseudo


class LiveTest(base.CommandCase):
    """The live screen on a terminal, while the host changes."""

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.state = os.path.join(self.directory, 'state')
        self.host = ('--simulate', 'a30x4', '--state', self.state)

    def top(self, *arguments, interval=3600, **terminal):
        return self.useFixture(pseudo.Terminal(
            *self.host, 'top', '--interval', interval, *arguments,
            **terminal))

    def check_end(self, terminal, code):
        self.assertEqual(code, terminal.ended(), terminal.output[-2000:])
        self.assertEqual(terminal.before, terminal.settings)
        self.assertNotIn('Traceback', terminal.output)

    def test_it_follows_the_host(self):
        terminal = self.top()
        rows = terminal.see('0000:', 'q quit')
        self.assertIn('4 GPUs  0 in use', rows[0])
        self.assertNotIn('2g.12gb', '\n'.join(rows))
        self.run_program(*self.host, 'instance', 'create', '1', '2g.12gb')
        terminal.press('r')
        rows = terminal.see('2g.12gb')
        (place,) = [number for number, row in enumerate(rows)
                    if '2g.12gb' in row]
        self.assertIn('  1  0000:', rows[place - 1])
        self.assertIn('2 slices free', rows[place - 1])
        terminal.press('q')
        self.check_end(terminal, 0)

    def test_it_reads_again_by_itself(self):
        terminal = self.top(interval=1)
        terminal.see('0000:')
        self.run_program(*self.host, 'instance', 'create', '0', '1g.6gb')
        terminal.see('1g.6gb')

    def test_keys_on_a_small_terminal(self):
        terminal = self.top(lines=7)
        # The title, message, heading and keys leave room for three GPUs.
        terminal.see('1-3 of 4', row=6)
        first = terminal.rows[3]
        terminal.press('j')
        terminal.see('2-4 of 4', row=6)
        self.assertTrue(terminal.rows[3].startswith('  1  0000:'))
        terminal.press('\x1b[A')
        self.assertEqual(first, terminal.see('1-3 of 4', row=6)[3])
        terminal.press('\x1b[6~')
        terminal.see('2-4 of 4', row=6)
        terminal.press('\x1b[5~')
        terminal.see('1-3 of 4', row=6)
        terminal.press('s')
        terminal.see('s sort: server', row=6)
        terminal.press('h')
        terminal.see('Keys', row=2)
        terminal.see('scroll by one line', row=3)
        terminal.press('h')
        terminal.see('SLICE OR VGPU', row=2)
        terminal.press('q')
        self.check_end(terminal, 0)

    def test_another_size(self):
        terminal = self.top(lines=7)
        terminal.see('1-3 of 4', row=6)
        terminal.resize(12, 100)
        rows = terminal.see('1-4 of 4', row=11)
        self.assertTrue(rows[6].startswith('  3  0000:'), rows)
        # Nothing fits on such a screen, but nothing breaks either.
        terminal.resize(1, 4)
        terminal.see('q', row=0)
        terminal.resize(7, 40)
        # Each GPU takes two lines.
        rows = terminal.see('1-3 of 8', row=6)
        self.assertLessEqual(max(map(len, rows)), 40)
        terminal.press('q')
        self.check_end(terminal, 0)

    def test_signals_restore_the_terminal(self):
        for end, code in ((lambda top: top.press('\x03'), 130),
                          (lambda top: top.kill(signal.SIGTERM), 143)):
            terminal = self.top(term='screen')
            terminal.see('q quit')
            self.assertNotEqual(terminal.before, terminal.settings)
            end(terminal)
            self.check_end(terminal, code)
            # The program left the alternate screen (terminfo's smcup and
            # rmcup).
            self.assertIn('\x1b[?1049h', terminal.output)
            self.assertIn('\x1b[?1049l', terminal.output)
            self.assertNotIn('GPU', terminal.output.rpartition(
                '\x1b[?1049l')[2])

    def test_a_hung_gpu_stops_nothing_else(self):
        simulated = machine.Machine.load('a30x4', self.state)
        simulated.hang_gpu(simulated.gpus[0].address)
        path = self.configure('[gpu]\nnvml_timeout = 1\n', self.directory)
        self.host = ('--config-file', path, *self.host)
        terminal = self.top()
        # The program draws the keys last.
        terminal.see('1-5 of 5', row=23)
        self.assertIn('no answer', terminal.rows[3])
        self.assertIn('does not answer', terminal.rows[4])
        self.assertTrue(terminal.rows[5].startswith('  1  0000:'))
        # Commands that change a GPU read all GPUs first.
        self.run_program(*self.host, 'instance', 'create', '1', '2g.12gb')
        terminal.press('r')
        terminal.see('2g.12gb', row=6)
        terminal.press('q')
        self.check_end(terminal, 0)

    def test_a_terminal_that_has_no_cursor(self):
        terminal = self.top(term='dumb')
        self.check_end(terminal, 1)
        self.assertIn('TERM=dumb is not a terminal type that this program '
                      'can draw on; give --once', terminal.output)

    def test_a_host_that_cannot_be_read(self):
        self.host = ('--simulate', os.path.join(self.directory, 'none.yaml'))
        terminal = self.top()
        self.check_end(terminal, 1)
        self.assertIn('none.yaml', terminal.output)
