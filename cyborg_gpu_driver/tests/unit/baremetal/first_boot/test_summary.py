# SPDX-License-Identifier: Apache-2.0

"""The line on the console with the result of a first boot."""

import json
import re

import fixtures
from oslotest import base

from cyborg_gpu_driver.baremetal import first_boot
from cyborg_gpu_driver.tests.unit.baremetal.first_boot import first_boot_case

_FIRST = '0000:18:00.0'
_WORD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


def read(line):
    """The values of a summary line by name."""
    assert line.startswith('cyborg-gpu-firstboot: '), line
    return {name: json.loads(text) if text.startswith('"') else text
            for name, text in _WORD.findall(line)}


class LineTest(base.BaseTestCase):

    def line(self, result, **values):
        return first_boot.Report(result, **values).summary()

    def test_results(self):
        for result in first_boot.Result:
            found = read(self.line(result))
            self.assertEqual('failed' if result.code else 'ok',
                             found['result'])
            self.assertEqual(None if result is first_boot.Result.APPLIED
                             else result.value, found.get('reason'))

    def test_what_others_wrote_is_on_one_line_of_ascii(self):
        text = 'a"b\\c\nd\x1b[31m\u2028 result=ok \xe9'
        line = self.line(first_boot.Result.UNUSABLE, layout=text, error=text)
        self.assertTrue(line.isascii() and line.isprintable(), line)
        self.assertEqual({'result': 'failed', 'layout': text, 'gpus': '0',
                          'reason': text}, read(line))

    def test_a_long_reason_is_cut(self):
        found = read(self.line(first_boot.Result.FAILED, error='x' * 9000))
        self.assertEqual('x' * 500 + '...', found['reason'])


class CommandTest(first_boot_case.BootCase):

    def said(self, *arguments, code=0):
        """The values of the last line that the command prints."""
        output, _ = self.boot('--timeout', '0', *arguments, code=code)
        return read(output.splitlines()[-1])

    def test_a_configuration_that_cannot_be_read(self):
        self.options['policies'] = 'a\nnothing'
        found = self.said(code=1)
        self.assertEqual('failed', found['result'])
        self.assertIn('--config-file', found['reason'])

    def test_an_error_that_nothing_foresees(self):
        def fail(*_arguments):
            raise MemoryError

        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.cmd.layout.firstboot._Boot.report', fail))
        self.assertEqual({'result': 'failed', 'reason': 'MemoryError()'},
                         self.said(code=1))
