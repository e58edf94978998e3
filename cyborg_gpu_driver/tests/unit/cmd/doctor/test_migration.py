# SPDX-License-Identifier: Apache-2.0


"""``cyborg-gpu doctor --peer``: live migration between simulated hosts."""

from __future__ import annotations

import io
import json

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.doctor.rules import migration
from cyborg_gpu_driver.tests.unit.cmd.doctor import test_command

FIRST = '0000:16:00.0'
SECOND = '0000:38:00.0'


class PeerTest(test_command.CheckCase):

    def setUp(self):
        super().setUp()
        self.peer = self.machine()
        self.there = self.state
        self.state = f'{self.directory}/here'
        self.prepare()

    def facts(self, **changes):
        """Return the document of the peer in its present state."""
        output, _ = self.run_program(
            '--config-file', self.conf, '--simulate', self.host, '--state',
            self.there, 'doctor', '--peer-facts')
        return {**json.loads(output), 'host': 'gpu2', **changes}

    def one(self, facts, severity, *words):
        (row,) = self.check(
            2 if severity == 'unknown' else 1, '--peer',
            self.write('facts.json', json.dumps(facts)),
            *self.nova(self.lines()))
        self.assertEqual((severity, 'gpu2'), (row['severity'],
                                              row['subject']))
        for word in words:
            self.assertIn(word, f"{row['message']} / {row['action']}")

    def test_differences(self):
        here = self.facts()

        def of(change, *names):
            """The GPUs of the document, changed where they have a name."""
            return {'gpus': [
                {**gpu, **change} if gpu['address'] in names else gpu
                for gpu in here['gpus']]}

        for changes, severity, *words in (
                ({'driver': '570.133.10'}, 'warning',
                 '570.124.03 here, 570.133.10 there'),
                ({'driver': None}, 'unknown',
                 '570.124.03 here, unknown there', 'as root'),
                (of({'ecc': False}, SECOND), 'error',
                 'ECC: on here (0000:16:00.0, ', f'off there ({SECOND})',
                 'nvidia-smi'),
                (of({'supported': False}, FIRST), 'error',
                 'live migration: supported here',
                 f'not supported there ({FIRST})'),
                (of({'model': 'NVIDIA L40', 'metadata': '26B5169D00'},
                    SECOND), 'error',
                 'GPU: NVIDIA L40S, metadata 26B91851',
                 f'NVIDIA L40, metadata 26B5169D00 there ({SECOND})'),
                (of({'types': ['L40S-24Q']}, FIRST, SECOND), 'error',
                 'vGPU types L40S-12Q here, L40S-24Q there',
                 'both hosts have L40S-12Q, L40S-24Q'),
                ({'gpus': []}, 'error', 'L40S-12Q here, none there'),
                (of({'supported': None, 'metadata': None}, FIRST), 'unknown',
                 f'incomplete there ({FIRST})')):
            self.one({**here, **changes}, severity, *words)

    def test_the_facts_are_those_of_the_machine(self):
        self.peer.change_gpu(SECOND, ecc_modes=[False] * 2)
        self.peer.change_gpu(FIRST, migration=False)
        first, second = self.facts()['gpus']
        self.assertEqual((False, True), (first['supported'], first['ecc']))
        self.assertIs(False, second['ecc'])

    def test_standard_input(self):
        text = json.dumps(self.facts(driver='580.65.06'))
        self.useFixture(fixtures.MonkeyPatch('sys.stdin', io.StringIO(text)))
        rows = self.check(1, '--peer', '-', *self.nova(self.lines()))
        ((severity, message),) = self.of(rows, 'live-migration')
        self.assertEqual('error', severity)
        self.assertIn('580.65.06 there', message)

    def test_documents_that_no_host_wrote(self):
        good = self.facts()
        for bad, words in (
                ('', 'Expecting value'), ('{', 'Expecting property'),
                ('[' * 100_000, 'recursion'),
                ({**good, 'version': 2}, 'version'),
                ({**good, 'more': 1}, 'more'),
                ({**good, 'host': 'gpu2\x1b[2J'}, 'host'),
                ({**good, 'driver': 'new'}, 'driver'),
                ({**good, 'gpus': [{**good['gpus'][0], 'ecc': 'on'}]},
                 'gpus[0].ecc'),
                ({**good, 'gpus': [{**good['gpus'][0], 'types': []}]},
                 'gpus[0].types')):
            error = self.assertRaises(
                exception.DocumentError, migration.parse,
                bad if isinstance(bad, str) else json.dumps(bad),
                'facts.json')
            self.assertIn('facts.json', str(error))
            self.assertIn(words, str(error))
        _, errors = self.run_on_host('doctor', '--peer', '/nowhere/facts',
                                     code=1)
        self.assertIn('/nowhere/facts', errors)
