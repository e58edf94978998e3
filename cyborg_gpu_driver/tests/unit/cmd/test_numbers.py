# SPDX-License-Identifier: Apache-2.0

"""The number of a GPU always means the same board."""

import json
import os

import pynvml
import yaml

from cyborg_gpu_driver.tests.unit.cmd import base

_ALL = 'all'
_LOST, _UNREADABLE, _VFIO = 'lost', 'unreadable', 'vfio'
_BOARDS = ('0000:18:00.0', '0000:2a:00.0', '0000:3a:00.0', '0000:5d:00.0')


class NumberCase(base.HostCase):
    """A host of a few boards, of which some cannot be reached."""

    boards = dict.fromkeys(_BOARDS, 'h100-80')
    gpus = 0

    def setUp(self):
        super().setUp()
        self.host = self.write('host.yaml', json.dumps({
            'driver_version': '570.124.03', 'gpus': [
                {'model': model, 'address': address}
                for address, model in self.boards.items()]}))
        self.file = self.write('layouts.yaml', 'version: v1\n'
                               'mig-configs:\n' + ''.join(
                                   self.entry(devices) for devices
                                   in (_ALL, *range(len(self.boards)))))
        self.faults = self.fail_nvml()

    def entry(self, devices):
        """The lines of an entry named after its devices, and one with MIG off.
        """
        chosen = _ALL if devices == _ALL else f'[{devices}]'
        return (f'  "{devices}":\n  - {{devices: {chosen}, mig-enabled: '
                'true, mig-devices: {"3g.40gb": 2}}\n'
                f'  "{devices}-off":\n  - {{devices: {chosen}, mig-enabled: '
                'false}\n')

    def spoil(self, condition, address):
        """Put a board into this condition."""
        if condition == _LOST:
            self.machine().lose_gpu(address)
        elif condition == _UNREADABLE:
            self.faults.append(('nvmlDeviceGetMigMode',
                                pynvml.NVML_ERROR_UNKNOWN, address))
        elif condition == _VFIO:
            self.machine().bind_driver(address, 'vfio-pci')

    def layout(self, command, name, *arguments, code=0):
        return self.run_on_host('layout', command, '-f', self.file, '-c',
                                name, *arguments, code=code)

    def cuts(self):
        """The MIG mode and the number of GPU instances of each board."""
        machine = self.machine()
        with machine.operation():
            return {gpu.address: (gpu.state.mig, len(gpu.state.instances))
                    for gpu in machine.gpus}


class LostTest(NumberCase):
    """GPU 2 is lost, and GPU 3 keeps its number."""

    lost = _BOARDS[2]

    def setUp(self):
        super().setUp()
        self.layout('apply', _ALL)
        self.machine().lose_gpu(self.lost)
        self.before = self.cuts()

    def refused(self, *arguments, words=('GPU 2', 'lost')):
        _, errors = self.run_on_host(*arguments, code=1)
        for word in (self.lost, *words):
            self.assertIn(word, errors)
        self.assertEqual(self.before, self.cuts())

    def test_one_that_is_ignored_is_not_missed(self):
        self.configure(f'[gpu]\nignored_devices = {self.lost}\n',
                       self.directory)
        self.layout('plan', _ALL)
        output, _ = self.layout('apply', f'{_ALL}-off', '-o', 'json')
        self.assertEqual([0, 1, 3], [
            row['index'] for row in json.loads(output)])

    def test_export(self):
        self.refused('layout', 'export')
        output, errors = self.run_on_host('layout', 'export',
                                          '--skip-unreachable')
        self.assertIn('it is left out', errors)
        found = yaml.safe_load(output)['mig-configs']['current']
        self.assertEqual([[0, 1, 3]], [item['devices'] for item in found])

    def test_checkpoint_and_restore(self):
        self.refused('layout', 'checkpoint')
        self.refused('layout', 'restore')
        output, errors = self.run_on_host('layout', 'restore', '-o', 'json',
                                          code=1)
        self.assertEqual(
            ['unchanged', 'unchanged', 'failed', 'unchanged'],
            [row['status'] for row in json.loads(output)])
        self.assertNotIn('no NVIDIA GPU at', errors)

    def test_prepare(self):
        output, _ = self.run_on_host('gpu', 'prepare', '--dry-run', '-f',
                                     'json', '2', code=1)
        (row,) = json.loads(output)
        self.assertEqual('not ready', row['result'])
        self.assertIn('lost', row['reason'])


class MixedTest(NumberCase):
    """Boards with MIG and one board without."""

    boards = {'0000:18:00.0': 'h100-80', '0000:2a:00.0': 't4',
              '0000:3a:00.0': 'h100-80'}

    def test_boards_without_mig_are_skipped(self):
        output, errors = self.layout('apply', _ALL, '-o', 'json')
        self.assertEqual(['changed', 'skipped', 'changed'], [
            row['status'] for row in json.loads(output)])
        self.assertIn('GPU 1 (0000:2a:00.0) does not support MIG and is left '
                      'alone',
                      errors)
        self.layout('plan', _ALL)
        output, _ = self.layout('plan', _ALL, '-o', 'json')
        self.assertEqual([None] * 3, [row['error']
                                      for row in json.loads(output)])

    def test_one_that_is_chosen_by_number_is_not(self):
        _, errors = self.layout('apply', '1', code=1)
        self.assertIn('does not support MIG', errors)

    def test_first_boot(self):
        path = self.write('one.yaml', 'version: v1\nmig-configs:\n'
                          + self.entry(_ALL).partition('  "all-off"')[0])
        output, _ = self.run_on_host(
            'firstboot', '--layout-file', path, '-f', 'json')
        self.assertEqual(['changed', 'skipped', 'changed'], [
            gpu['status'] for gpu in json.loads(output)['gpus']])


class SpoiltTest(NumberCase):
    """Whatever the condition of a board, a number means one board."""

    def test_numbers(self):
        for condition in (_LOST, _UNREADABLE, _VFIO):
            self.spoil(condition, _BOARDS[2])
            before = self.cuts()
            for command, name in (('apply', '2'), ('apply', _ALL),
                                  ('plan', _ALL)):
                _, errors = self.layout(command, name, code=1)
                self.assertIn(f'GPU 2 ({_BOARDS[2]})', errors)
                self.assertEqual(before, self.cuts(), condition)
            self.layout('apply', '3')
            self.assertEqual({**before, _BOARDS[3]: (True, 2)}, self.cuts())
            os.unlink(self.state)
            self.faults.clear()
