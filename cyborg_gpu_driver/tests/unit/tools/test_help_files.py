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


"""Man pages and completions match the help of the commands."""

import contextlib
import io
import subprocess

from oslotest import base

from cyborg_gpu_driver.tests.unit.tools import documents
from cyborg_gpu_driver.tests.unit.tools import test_checks

ROOT = documents.ROOT


class HelpFilesTest(base.BaseTestCase):

    def test_they_are_up_to_date(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = test_checks.script('help-files').main(['--check'])
        self.assertEqual((0, ''), (code, printed.getvalue()))

    def test_every_command_is_in_its_man_page(self):
        for name, program, commands in (
                ('cyborg-gpu', 'cyborg\\-gpu', ('gpu list', 'layout plan')),
                ('openstack-gpu', 'openstack', ('gpu explain',))):
            page = (ROOT / 'doc' / 'man' / f'{name}.1').read_text(
                encoding='utf-8')
            for command in commands:
                self.assertIn(f'\n.SS {program} {command}\n', page)
            self.assertNotIn('None', page)

    def test_a_text_is_no_request_of_roff(self):
        roff = test_checks.script('help-files')._roff
        self.assertEqual('\\&.x \\-\\-y \\e', roff('.x --y \\'))
        self.assertEqual("\\&'x", roff("'x"))


class BashTest(base.BaseTestCase):

    def complete(self, *words):
        """Return what bash offers for the last word."""
        script = (
            'complete() { :; }\n. etc/completion/bash/cyborg-gpu\n'
            'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cyborg_gpu\n'
            'printf "%s\\n" "${COMPREPLY[@]}"\n')
        done = subprocess.run(
            ['bash', '-euc', script, 'bash', 'cyborg-gpu', *words], cwd=ROOT,
            capture_output=True, text=True, check=False)
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        return done.stdout.split()

    def test_commands(self):
        first = self.complete('')
        self.assertIn('layout', first)
        self.assertIn('--simulate', first)
        self.assertEqual(['layout'], self.complete('lay'))
        self.assertEqual(['list'], self.complete('gpu', 'l'))

    def test_global_options_are_no_part_of_the_command(self):
        self.assertEqual(['prepare'], self.complete(
            '--simulate', 'mixed', '-v', 'gpu', 'p'))

    def test_options_and_their_values(self):
        self.assertEqual(['--output-format'],
                         self.complete('layout', 'plan', '--out'))
        self.assertEqual(['json'], self.complete('gpu', 'list', '-f', 'j'))
        self.assertEqual(['mixed'], self.complete('--simulate', 'm'))

    def test_a_file_is_left_to_bash(self):
        self.assertEqual([], self.complete('layout', 'plan', '-f', ''))
        self.assertEqual([], self.complete('--config-file', ''))
