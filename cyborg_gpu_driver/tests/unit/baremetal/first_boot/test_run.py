# SPDX-License-Identifier: Apache-2.0

"""At boot, a bare-metal server partitions its GPUs as its layout says."""


import json
import re

import fixtures
import testscenarios
from oslotest import base

from cyborg_gpu_driver.baremetal import first_boot
from cyborg_gpu_driver.tests.unit.baremetal.first_boot import first_boot_case

load_tests = testscenarios.load_tests_apply_scenarios

_SLICES = [(19, start, 1) for start in range(7)]
_SEVEN = (True, _SLICES)
_FIRST = '0000:18:00.0'


class EachBoardTest(first_boot_case.BootCase):

    scenarios = [
        ('Hopper, which loses its mode', {'model': 'h100-80', 'mode': False}),
        ('Ampere, which keeps it', {'model': 'a100-80', 'mode': True})]
    mode = None

    def test_every_boot(self):
        path = self.stage()
        before = self.cuts()
        report = self.booted('--layout-file', path)
        self.assertEqual(('applied', None, path, 'staged'), tuple(
            report[key] for key in ('result', 'error', 'source', 'layout')))
        self.assertEqual({'changed'}, {gpu['status']
                                       for gpu in report['gpus']})
        self.assertEqual([_SEVEN] * len(before), self.cuts())
        again = self.booted('--layout-file', path)
        self.assertEqual({'unchanged'}, {gpu['status']
                                         for gpu in again['gpus']})
        self.machine().reboot()
        self.assertEqual([(self.mode, [])] * len(before), self.cuts())
        after = self.booted('--layout-file', path)
        self.assertEqual({'changed'}, {gpu['status']
                                       for gpu in after['gpus']})
        self.assertEqual([_SEVEN] * len(before), self.cuts())


class SourcesTest(first_boot_case.BootCase):

    def test_the_metadata(self):
        report = self.booted('--instance-data', self.metadata('all-3g.40gb'))
        self.assertEqual(('applied', 'all-3g.40gb'),
                         (report['result'], report['layout']))
        self.assertEqual([(True, [(9, 0, 1), (9, 4, 1)])] * 2, self.cuts())

    def test_names_that_a_terminal_would_obey(self):
        output, errors = self.boot('--instance-data', self.metadata(
            {'a\x07': [{'devices': 'all', 'mig-enabled': False}]}))
        self.assertIn(r'Layout a\x07 of', output)
        for line in (output + errors).splitlines():
            self.assertTrue(line.isprintable(), line)

    def test_the_file_counts_before_the_metadata(self):
        report = self.booted('--layout-file', self.stage(), '--instance-data',
                             self.metadata('all-3g.40gb'))
        self.assertEqual(('applied', 'staged'),
                         (report['result'], report['layout']))
        self.assertEqual([_SEVEN] * 2, self.cuts())

    def test_no_layout(self):
        before = self.cuts()
        output, _ = self.boot()
        self.assertEqual('No layout was found. The GPUs were not changed.\n'
                         'cyborg-gpu-firstboot: result=ok gpus=0 '
                         'reason=no-layout\n', output)
        self.assertEqual(before, self.cuts())


class WrongTest(first_boot_case.BootCase):

    def refused(self, text, words):
        before = self.cuts()
        path = self.stage(text)
        report = self.booted('--layout-file', path, code=2)
        self.assertEqual(('unusable', []), (report['result'],
                                            report['gpus']))
        self.assertIn(path, report['error'])
        self.assertIn(words, report['error'])
        self.assertEqual(before, self.cuts())

    def test_layouts(self):
        self.boot('--layout-file', self.stage())
        for text, words in (
                ('', 'found nothing; expected a mapping with keys version'),
                (self.layout(mig_devices={'1g.5gb': 1}), '1g.5gb'),
                (self.layout(mig_devices={'3g.40gb': 3}), 'do not fit'),
                (self.layout(devices=[0, 2]), 'there is no GPU 2'),
                (self.layout(device_filter='0x20B010DE'),
                 'matches no GPU of this server, which has NVIDIA H100')):
            self.refused(text, words)

    def test_arguments(self):
        for words in (('--layout-file', '/nowhere'),
                      ('--instance-data', '/nowhere'),
                      ('--timeout', '-1'), ('--timeout', 'nan')):
            error = self.assertRaises(SystemExit, self.boot, *words)
            self.assertEqual(2, error.code)


class ServerTest(first_boot_case.BootCase):
    """GPUs that are in a wrong state when the server boots."""

    def setUp(self):
        super().setUp()
        self.args = ('--layout-file', self.stage(), '--timeout', '0')

    def test_what_people_read(self):
        output, errors = self.boot(*self.args)
        lines = output.splitlines()
        self.assertEqual('GPU 0 (0000:18:00.0): changed: 7 x 1g.10gb',
                         lines[0])
        self.assertEqual([
            f'Layout staged of {self.args[1]} is in effect.',
            'cyborg-gpu-firstboot: result=ok layout=staged gpus=2 '
            f'source={self.args[1]}'], lines[2:])
        self.assertEqual(f'Found the layout staged in {self.args[1]}.\n',
                         errors)

    def test_no_gpu(self):
        self.write_host()
        output, _ = self.boot(*self.args)
        self.assertEqual('There is no NVIDIA GPU, so there is nothing to '
                         'do.\ncyborg-gpu-firstboot: result=ok gpus=0 '
                         'reason=no-gpu\n', output)

    def test_what_is_in_use_is_not_touched(self):
        machine = self.machine()
        self.boot(*self.args)
        with machine.operation():
            number = min(machine.gpu(_FIRST).state.instances)
        machine.add_process(_FIRST, 4711, number)
        self.stage(self.layout(mig_devices={'7g.80gb': 1}))
        report = self.booted(*self.args, code=1)
        self.assertEqual(['failed', 'changed'],
                         [gpu['status'] for gpu in report['gpus']])
        self.assertIn('4711', report['gpus'][0]['error'])
        self.assertIn(f'layout.yaml: {_FIRST}', report['error'])
        self.assertEqual([_SEVEN, (True, [(0, 0, 1)])], self.cuts())

    def test_a_lost_gpu_costs_no_other(self):
        self.machine().lose_gpu(_FIRST)
        report = self.booted(*self.args, code=1)
        lost, well = report['gpus']
        self.assertEqual((0, 1), (lost['index'], well['index']))
        self.assertEqual((_FIRST, 'failed'),
                         (lost['address'], lost['status']))
        self.assertIn('cannot be reached: lost', lost['error'])
        self.assertIn(f'layout.yaml: {_FIRST}', report['error'])
        self.assertEqual(_SEVEN, self.cuts()[1])

    def test_a_lost_gpu_keeps_its_number(self):
        self.machine().lose_gpu(_FIRST)
        before = self.cuts()
        self.stage(self.layout(devices=[0]))
        report = self.booted(*self.args, code=1)
        self.assertEqual([(0, 'failed')], [
            (gpu['index'], gpu['status']) for gpu in report['gpus']])
        self.assertEqual(before, self.cuts())
        self.stage(self.layout(devices=[1]))
        self.booted(*self.args, code=0)
        self.assertEqual([before[0], _SEVEN], self.cuts())

    def test_a_gpu_of_another_driver_fails_unless_it_is_ignored(self):
        self.machine().bind_driver(_FIRST, 'vfio-pci')
        report = self.booted(*self.args, code=1)
        self.assertEqual(['failed', 'changed'],
                         [gpu['status'] for gpu in report['gpus']])
        self.assertIn('bound to vfio-pci', report['gpus'][0]['error'])
        self.options['ignored_devices'] = _FIRST
        report = self.booted(*self.args)
        self.assertEqual(['ignored', 'unchanged'],
                         [gpu['status'] for gpu in report['gpus']])


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
