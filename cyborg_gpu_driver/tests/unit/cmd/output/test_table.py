# SPDX-License-Identifier: Apache-2.0

"""The default tables: short enough for a terminal of 80 characters."""

from __future__ import annotations

import csv
import io
import json

import fixtures
import yaml

from cyborg_gpu_driver.cmd import output as cmd_output
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests.unit.cmd import base

_LISTS = (('gpu', 'list'), ('gpu', 'prepare', '--all', '--dry-run'),
          ('offer', 'list'), ('offer', 'list', '--all'),
          ('vgpu', 'list'), ('doctor',))
_LONG_NAME = 'compute-of-the-third-row-of-racks.gpu.east.example.org'


class DefaultTableTest(base.HostCase):
    """Every list, on many kinds of hosts and with long values."""

    def setUp(self):
        super().setUp()
        for name, value in (('COLUMNS', '200'), ('CLIFF_FIT_WIDTH', None),
                            ('CLIFF_MAX_TERM_WIDTH', None)):
            self.useFixture(fixtures.EnvironmentVariable(name, value))

    def check(self, host, *options):
        """Run every list and check the width of its table."""
        for words in _LISTS:
            output = self.printed(*options, '--simulate', host, *words)
            wide = [line for line in output.splitlines()
                    if len(line) > cmd_output.WIDTH]
            self.assertEqual([], wide, f'{host}: {words}')

    def printed(self, *arguments):
        """The output of a list, whatever its exit code is."""
        code, output, errors = command.run(*arguments)
        self.assertIn(code, (0, 1, 2), errors)
        self.assertNotIn('Traceback', errors)
        return output

    def test_instances(self):
        machine = self.machine()
        self.create_instance(machine, 0, 20, 0, 1)
        self.create_instance(machine, 0, 9, 4, 4)
        self.check(self.host, '--state', self.state)
        output, _ = self.run_on_host('gpu', 'list', '-c', 'partitions')
        self.assertIn('| 1x 1g.10gb+me |', output)
        output, _ = self.run_on_host('gpu', 'show', '0')
        self.assertIn('| 7 1g.10gb+me at 0:1 ', output)

    def test_long_names(self):
        path = self.write('host.yaml', yaml.safe_dump({
            'driver_version': '580.65.05', 'gpus': [
                {'model': 'rtx-pro-6000', 'address': '10de0:41:00.0'},
                {'model': 'rtx-a6000', 'address': '10de0:81:00.0'}]}))
        self.configure(
            f'[DEFAULT]\nhost = {_LONG_NAME}\n'
            f'[gpu]\nstate_path = {self.directory}/records\n'
            'policies = everything\n[gpu_policy:everything]\nmode = mig\n',
            self.directory)
        self.check(path, '--config-file', self.conf)

    def test_long_has_every_column_and_the_default_some(self):
        for words in _LISTS:
            options = ('--simulate', 'l40sx4', *words)
            every, *_ = csv.reader(io.StringIO(
                self.printed(*options, '-f', 'csv', '--long')))
            self.assertEqual(every, self.heads(*options, '--long'), words)
            some = self.heads(*options)
            self.assertEqual([name for name in every if name in some], some,
                             words)

    def test_an_empty_list_prints_nothing(self):
        self.assertEqual('', self.printed(
            '--simulate', 'l40sx4', 'vgpu', 'list', '--without-cloud'))

    def heads(self, *arguments):
        """The column names of a table."""
        line = self.printed(*arguments, '--print-empty').splitlines()[1]
        return [cell.strip() for cell in line.strip('|').split('|')]

    def test_columns_that_a_person_names_are_not_folded(self):
        output, _ = self.run_program(
            '--simulate', 'mixed', 'offer', 'list', '-c', 'address', '-c',
            'profile', '-c', 'reported', '-c', 'problem')
        self.assertIn('| bound to nvidia; it will be offered when it is bound '
                      'to vfio-pci |', output)

    def test_a_width_that_a_person_names(self):
        for line in self.printed('--simulate', 'mixed', 'doctor',
                                 '--max-width', '120').splitlines():
            self.assertLessEqual(len(line), 120)

    def test_a_column_that_is_not_shown_sorts(self):
        lines = self.run_program(
            '--simulate', self.part('dgx-a100-80'), 'gpu', 'list',
            '--sort-column', 'index', '--sort-descending')[0].splitlines()
        self.assertIn('0000:0f:00.0', lines[3])


class FlatFormatTest(base.CommandCase):
    """CSV and ``value`` have only texts and numbers."""

    def test_csv(self):
        output, _ = self.run_program('--simulate', 'mixed', 'gpu', 'list',
                                     '-f', 'csv')
        rows = [*csv.DictReader(io.StringIO(output))]
        last = rows[-1]
        self.assertEqual(('NVIDIA A40', '', '{}'), (
            last['model'], last['uuid'], last['partitions']))
        self.assertNotIn('None', output)

    def test_names_and_nested_values(self):
        nested = {'attributes': dict, 'attach_handles': list, 'device': dict}
        host = self.part('dgx-a100-80')
        for option in (), ('--long',):
            output, _ = self.run_program(
                '--simulate', host, 'offer', 'list', '-f', 'csv', *option)
            row = next(csv.DictReader(io.StringIO(output), escapechar='\\'))
            self.assertEqual('CUSTOM_GPU_ARCH_AMPERE',
                             row['traits'].split(',')[0])
            self.assertEqual(bool(option), nested.keys() <= row.keys())
        for name, kind in nested.items():
            self.assertIsInstance(json.loads(row[name]), kind)

    def test_value(self):
        output, _ = self.run_program(
            '--simulate', self.part('dgx-a100-80'), 'offer', 'list', '-f',
            'value',
            '-c', 'problem', '-c', 'traits')
        self.assertEqual(' CUSTOM_GPU_ARCH_AMPERE',
                         output.partition(',')[0])
