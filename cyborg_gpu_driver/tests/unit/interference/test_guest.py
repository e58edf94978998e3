# SPDX-License-Identifier: Apache-2.0

"""What runs in a guest: the script in a real shell, and its report."""

from __future__ import annotations

import base64
import os
import signal
import subprocess

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import applications
from cyborg_gpu_driver.interference import guest
from cyborg_gpu_driver.interference import results
from cyborg_gpu_driver.tests.unit.interference import commands

Outcome = results.Outcome
_TOKEN = 'c0ffee'


def lines(*texts, token=_TOKEN):
    return ''.join(f'\n@gpu-interference {token} {text} @\n'
                   for text in texts)


class ScriptTest(commands.CommandsCase):
    """The script, with files in place of the console and of /proc/vmstat."""

    def setUp(self):
        super().setUp()
        self.console = self.directory / 'console'
        os.mkfifo(self.console)
        self.vmstat = self.directory / 'vmstat'
        self.vmstat.write_text('pgfault 7\noom_kill 1\n')

    def reported(self, application, count, timeout=600.0):
        """Return the guest's report once the report has ended."""
        script = base64.b64decode(guest.user_data(
            application, _TOKEN, count, timeout)).decode()
        script = script.replace('/dev/console', str(self.console)).replace(
            '/proc/vmstat', str(self.vmstat))
        process = subprocess.Popen(['sh', '-c', script],
                                   start_new_session=True)
        try:
            text = ''
            # Open both ends: each line of the script opens and closes it.
            with open(os.open(self.console, os.O_RDWR), 'rb',
                      buffering=0) as console:
                while not guest.read(text, _TOKEN).ended:
                    text += console.read(1 << 16).decode()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return guest.read(text, _TOKEN)

    def outcomes(self, application, count=1, timeout=600.0):
        return [(runs.outcome, runs.problem) for runs in guest.runs_of(
            self.reported(application, count, timeout), application,
            timeout)]

    def test_runs(self):
        report = self.reported(self.logging('a'), 3)
        self.assertEqual(['a'] * 3, self.logged())
        self.assertEqual([(0, False, '')] * 3, [
            (run.exit_code, run.killed, run.problem) for run in report.runs])
        self.assertLess(0, min(run.seconds for run in report.runs))
        # A companion runs until it fails.
        report = self.reported(self.logging(
            'b', '[ $(wc -l < $D/log) -lt 6 ] || exit 9'), None)
        self.assertEqual(['b'] * 3, self.logged()[3:])
        self.assertEqual([9], [run.exit_code for run in report.runs])

    def test_failure_ends_it(self):
        application = self.logging(
            'a', "echo first >&2; printf 'b\u00e4d @\tnews\n' >&2; exit 3")
        self.assertEqual(
            [(Outcome.FAILED, 'a: exit code 3: b??d @?news')],
            self.outcomes(application, 5))
        self.assertEqual(['a'], self.logged())

    def test_words_reach_the_command_as_they_are(self):
        text = 'a "b" \'c\' $HOME `id` {0} %s \\ \n*'
        self.outcomes(applications.Application(
            'a', ('sh', '-c', f'printf %s "$1" > {self.directory}/words',
                  'sh', text)))
        self.assertEqual(text, (self.directory / 'words').read_text())

    def test_command_that_takes_too_long(self):
        self.assertEqual(
            [(Outcome.TIMED_OUT, 'a: took more than 1 s')],
            self.outcomes(self.script('a', 'exec sleep 600'), 2, 1.0))

    def test_out_of_memory(self):
        grows = f'echo oom_kill 2 > {self.vmstat}; '
        self.assertEqual(Outcome.OUT_OF_MEMORY, self.outcomes(
            self.script('a', f'{grows} kill -KILL $$'))[0][0])
        self.assertEqual(Outcome.FAILED, self.outcomes(
            self.script('a', 'kill -KILL $$'))[0][0])
        self.assertEqual(Outcome.OUT_OF_MEMORY, self.outcomes(
            self.script('a', 'exit 77', [77]))[0][0])

    def test_too_long_for_user_data(self):
        error = self.assertRaises(
            exception.InvalidValue, guest.user_data,
            applications.Application('large', ('x' * 60000,)), _TOKEN, 1,
            1.0)
        self.assertIn('command of large', str(error))


class ReadTest(commands.CommandsCase):

    def read(self, *texts):
        return guest.read(lines(*texts), _TOKEN)

    def test_order_and_repetition(self):
        report = self.read('begin', 'run 2 50 0 0', 'run 1 150 0 0', 'end 2',
                           'begin', 'run 1 150 0 0')
        self.assertEqual((True, True), (report.begun, report.ended))
        self.assertEqual([1.5, 0.5], [run.seconds for run in report.runs])

    def test_run_whose_line_was_cut(self):
        text = lines('begin', 'run 1 5[ 1.2] usb: new', 'run 2 70 0 0',
                     'end 2')
        self.assertEqual(guest.Report(True), guest.read(text, _TOKEN))
        report = guest.read(text + lines('run 1 60 0 0'), _TOKEN)
        self.assertEqual([0.6, 0.7], [run.seconds for run in report.runs])
        self.assertTrue(report.ended)

    def test_what_no_guest_of_ours_says(self):
        for text in ('run 1 -5 0 0', 'run 1 1e3 0 0', 'run 1 5 0 2',
                     'run 1 9999999999 0 0', 'run 99999 5 0 0', 'end',
                     'end -1', 'run 1 5 0 0 ' + 'x' * 500, 'begin begin',
                     'run 1 5 1 0 \x1b[2J'):
            report = self.read(text)
            self.assertEqual((), report.runs, text)
            self.assertFalse(report.ended)
