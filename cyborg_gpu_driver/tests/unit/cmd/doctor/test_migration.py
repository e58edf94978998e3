# SPDX-License-Identifier: Apache-2.0


"""``cyborg-gpu doctor --peer``: live migration between simulated hosts."""

from __future__ import annotations

import io
import json

import fixtures

from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd.doctor import test_command

FIRST = '0000:16:00.0'
SECOND = '0000:38:00.0'


class PeerCase(test_command.CheckCase):

    def setUp(self):
        super().setUp()
        self.machine_state = f'{self.directory}/machine'
        self.prepared = f'{self.directory}/here'
        self.run_program('--config-file', self.conf, '--simulate', self.host,
                         '--state', self.prepared, 'gpu', 'prepare', '--all')
        self.peer = simulator.Machine.load(self.host, self.machine_state)

    def facts(self, **changes):
        """Return the document of the peer in its present state."""
        output, _ = self.run_program(
            '--config-file', self.conf, '--simulate', self.host, '--state',
            self.machine_state, 'doctor', '--peer-facts')
        return {**json.loads(output), 'host': 'gpu2', **changes}

    def compared(self, facts, code, config=None):
        """Return severity, subject, message and action of each row."""
        path = f'{self.directory}/facts.json'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(facts if isinstance(facts, str)
                         else json.dumps(facts))
        output, errors = self.run_program(
            '--config-file', config or self.conf, '--simulate', self.host,
            '--state', self.prepared, 'doctor', '--peer', path,
            *self.nova(self.lines()), '-f', 'json', code=code)
        if not output:
            return errors
        return [tuple(row[name] for name in ('severity', 'subject',
                                             'message', 'action'))
                for row in json.loads(output)]

    def one(self, facts, severity, *words):
        ((found, subject, message, action),) = self.compared(
            facts, 2 if severity == 'unknown' else 1)
        self.assertEqual((severity, 'gpu2'), (found, subject), message)
        for word in words:
            self.assertIn(word, f'{message} / {action}')


class PeerTest(PeerCase):

    def test_another_driver_of_the_branch(self):
        self.one(self.facts(driver='570.133.10'), 'warning',
                 '570.124.03 here, 570.133.10 there')

    def test_driver_that_is_not_known(self):
        self.one(self.facts(driver=None), 'unknown',
                 '570.124.03 here, unknown there', 'as root')

    def test_ecc(self):
        self.peer.change_gpu(SECOND, ecc_modes=[False] * 2)
        self.one(self.facts(), 'error', 'ECC: on here (0000:16:00.0, ',
                 f'off there ({SECOND})', 'nvidia-smi')

    def test_gpu_without_support(self):
        self.peer.change_gpu(FIRST, migration=False)
        found = self.compared(self.facts(), 1)
        self.assertIn('live migration: supported here', found[0][2])
        self.assertIn(f'not supported there ({FIRST})', found[0][2])

    def test_another_board(self):
        facts = self.facts()
        facts['gpus'][1].update(model='NVIDIA L40', metadata='26B5169D00')
        self.one(facts, 'error', 'GPU: NVIDIA L40S, metadata 26B91851',
                 f'NVIDIA L40, metadata 26B5169D00 there ({SECOND})')

    def test_other_types(self):
        facts = self.facts()
        for gpu in facts['gpus']:
            gpu['types'] = ['L40S-24Q']
        self.one(facts, 'error',
                 'vGPU types L40S-12Q here, L40S-24Q there',
                 'both hosts have L40S-12Q, L40S-24Q')

    def test_nothing_that_nova_assigns_there(self):
        self.one(self.facts(gpus=[]), 'error',
                 'L40S-12Q here, none there')

    def test_answers_that_are_missing(self):
        facts = self.facts()
        facts['gpus'][0].update(supported=None, metadata=None)
        self.one(facts, 'unknown', f'incomplete there ({FIRST})')

    def test_standard_input(self):
        text = json.dumps(self.facts(driver='580.65.06'))
        self.useFixture(fixtures.MonkeyPatch('sys.stdin', io.StringIO(text)))
        rows = self.check(1, '--peer', '-', *self.nova(self.lines()))
        ((severity, message),) = self.of(rows, 'live-migration')
        self.assertEqual('error', severity)
        self.assertIn('580.65.06 there', message)


class DocumentTest(PeerCase):
    """Documents that ``--peer-facts`` did not write."""

    def test_each_names_what_is_wrong(self):
        good = self.facts()
        for bad, words in (
                ('', 'Expecting value'),
                ('{', 'Expecting property'),
                ('[' * 100_000, 'recursion'),
                ({**good, 'version': 2}, 'version'),
                ({**good, 'more': 1}, 'more'),
                ({**good, 'host': 'gpu2\x1b[2J'}, 'host'),
                ({**good, 'driver': 'new'}, 'driver'),
                ({**good, 'gpus': [{**good['gpus'][0], 'ecc': 'on'}]},
                 'gpus[0].ecc'),
                ({**good, 'gpus': [{**good['gpus'][0], 'types': []}]},
                 'gpus[0].types')):
            errors = self.compared(bad, 1)
            self.assertIn('facts.json', errors)
            self.assertIn(words, errors)

    def test_file_that_is_not_there(self):
        _, errors = self.run_program(
            '--config-file', self.conf, '--simulate', self.host, 'doctor',
            '--peer', '/nowhere/facts', code=1)
        self.assertIn('/nowhere/facts', errors)
