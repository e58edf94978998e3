# SPDX-License-Identifier: Apache-2.0

"""gpu prepare, and layout restore, which also prepares for policies."""

import json

from cyborg_gpu_driver.tests.unit.cmd import base

GPU = '0000:16:00.0'
POLICIES = """
[gpu]
policies = sliced, rest
[gpu_policy:sliced]
match_address = 0000:16:00.0
mode = mig
fixed_vgpus = DC-1-24Q:2
[gpu_policy:rest]
mode = off
"""


class PrepareTest(base.HostCase):

    host = 'rtxpro6000x8'
    config = POLICIES

    def setUp(self):
        super().setUp()
        self.machine().reboot()

    def prepare(self, *arguments, code=0):
        return {row['address']: row for row in self.rows_on_host(
            'gpu', 'prepare', *arguments, code=code)}

    def vgpus(self):
        machine = self.machine()
        with machine.operation():
            return [vgpu.type_id for vgpu in machine.gpu(GPU).state.vgpus]

    def test_dry_run_and_run(self):
        rows = self.prepare('--all', '--dry-run')
        self.assertEqual(2, len(rows))
        self.assertEqual('ready', rows['0000:27:00.0']['result'])
        self.assertEqual(['turn MIG mode on', 'enable virtual functions'],
                         rows[GPU]['steps'])
        self.assertEqual('to be made ready', rows[GPU]['result'])
        self.assertEqual([], self.vgpus())
        row = self.prepare(GPU)[GPU]
        self.assertEqual('made ready', row['result'])
        self.assertEqual(['turn MIG mode on', 'enable virtual functions'],
                         row['steps'][:2])
        self.assertEqual(6, len(row['steps']))
        self.assertEqual([1561, 1561], self.vgpus())
        self.assertEqual({GPU: {'address': GPU, 'steps': [], 'reason': None,
                                'result': 'ready'}}, self.prepare('0'))

    def test_in_use(self):
        self.machine().add_process(GPU, 4711)
        for arguments in ((), ('--dry-run',)):
            row = self.prepare('--all', *arguments, code=1)[GPU]
            self.assertEqual('not ready', row['result'])
            self.assertIn('4711', row['reason'])
        self.assertEqual([], self.vgpus())

    def test_gpu_that_was_reported_whole(self):
        self.damage_record(GPU, '{}')
        row = self.prepare(GPU, code=1)[GPU]
        self.assertIn('is not a cyborg-gpu GPU', row['reason'])

    def test_a_gpu_that_is_left_alone(self):
        with open(self.conf, 'a', encoding='utf-8') as stream:
            stream.write(f'[gpu]\nignored_devices = {GPU}\n')
        self.assertNotIn(GPU, self.prepare('--all', '--dry-run'))
        _, errors = self.run_on_host('gpu', 'prepare', GPU, code=1)
        self.assertIn(f'GPU {GPU}: it is in [gpu] ignored_devices', errors)

    def test_unknown_gpu(self):
        _, errors = self.run_on_host('gpu', 'prepare', '0000:00:00.0',
                                     code=1)
        self.assertIn('0000:00:00.0', errors)

    def test_restore_does_it_too_and_says_so(self):
        output, errors = self.run_on_host('layout', 'restore')
        self.assertIn(f'{GPU}: turn MIG mode on\n', errors)
        self.assertIn(f'{GPU}: create vGPU DC-1-24Q on 0000:16:00.2\n', errors)
        self.assertIn(f'{GPU}  changed\n0000:27:00.0  unchanged\n', output)
        self.assertEqual([1561, 1561], self.vgpus())
        output, _ = self.run_on_host('layout', 'restore', '-o', 'json')
        self.assertEqual({'unchanged'}, {row['status'] for row
                                         in json.loads(output)})
