# SPDX-License-Identifier: Apache-2.0

"""gpu cordon, gpu uncordon and gpu prepare, without a cloud."""

import json
import os
import pwd

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.program import cordons
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.cmd import base

_HANDLE = '3d1a1d0e-1c5c-4d8c-9a3b-0a6b0f0a3c11'
_GONE = model.PciAddress.parse('0000:fe:00.0')


class CordonCase(base.HostCase):

    host = 'a30x4'
    gpus = 0

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.EnvironmentVariable('SUDO_USER'))
        self.gpu_cordons = cordons.GpuCordons(self.state_path)
        self.all = [row['address']
                    for row in self.rows_on_host('gpu', 'list')]
        self.one, self.other, *_ = map(model.PciAddress.parse, self.all)

    def run_json(self, *arguments, code=0):
        output, errors = self.run_on_host(*arguments, '-f', 'json', code=code)
        return json.loads(output), errors

    def lose_with_a_server(self):
        """Leave the record of a GPU that a server had when it was lost."""
        store.of(self.state_path).put(_GONE, claims=(gpu_record.Claim(
            _HANDLE, _GONE, _GONE, 'nvidia-689', '1g.6gb',
            gpu_record.Phase.BOUND, 14, model.Placement(0, 1)),))

    def cordon(self, *gpus, reason='a fan'):
        return self.run_json('gpu', 'cordon', *gpus, '--reason', reason)[0]


class CordonTest(CordonCase):

    def test_one_gpu_and_back(self):
        user = pwd.getpwuid(os.getuid()).pw_name
        (row,) = self.cordon(str(self.one))
        self.assertEqual((str(self.one), True),
                         (row['address'], row['cordoned']))
        self.assertRegex(row['cordons'][0], 'cordoned on the host by '
                         f'{user} since .*: a fan')
        (known,) = self.gpu_cordons.of(self.one)
        self.assertEqual((cordon.Source.OPERATOR, user, 'a fan'),
                         (known.source, known.who, known.reason))
        listed = {row['address']: row['cordons'] for row
                  in self.run_json('gpu', 'list')[0]}
        self.assertEqual({str(self.one): row['cordons']}, {
            address: found for address, found in listed.items() if found})
        self.assertEqual(row['cordons'], self.run_json(
            'gpu', 'show', str(self.one))[0]['cordons'])
        self.assertEqual(
            [{'address': str(self.one), 'cordoned': False, 'cordons': []}],
            self.run_json('gpu', 'uncordon', '0')[0])
        self.assertEqual({}, self.gpu_cordons.known())

    def test_what_cyborg_has_disabled_stays_so(self):
        self.gpu_cordons.note_disabled(frozenset({self.one}))
        self.cordon(str(self.one))
        (row,), errors = self.run_json('gpu', 'uncordon', str(self.one),
                                       code=1)
        self.assertTrue(row['cordoned'])
        self.assertIn(f'GPU {self.one} is still cordoned: disabled in Cyborg',
                      errors)
        self.assertRegex(errors, 'openstack gpu uncordon .* '
                         + str(self.one))

    def test_a_gpu_that_is_gone(self):
        gone = model.PciAddress.parse('0000:fe:00.0')
        self.gpu_cordons.add(gone, 'root', 'a fan')
        self.run_json('gpu', 'uncordon', str(gone))
        self.assertEqual({}, self.gpu_cordons.known())
        _, errors = self.run_on_host(
            'gpu', 'cordon', str(gone),
            '--reason', 'a fan', code=1)
        self.assertIn(str(gone), errors)

    def test_a_gpu_that_is_gone_with_its_servers(self):
        self.lose_with_a_server()
        self.assertEqual([*self.all, str(_GONE)], [
            row['address'] for row in self.cordon('--all')])
        self.run_json('gpu', 'uncordon', '--all')
        self.assertEqual([str(_GONE)], [
            row['address'] for row in self.cordon(str(_GONE))])

    def test_a_host_without_gpus(self):
        host = self.write('empty.yaml', "driver_version: '550.144.02'\n"
                          'gpus: []\n')
        for command in (('cordon', '--reason', 'a fan'), ('uncordon',)):
            _, errors = self.run_program('--simulate', host, 'gpu', *command,
                                         '--all', code=1)
            self.assertIn('it has no NVIDIA GPU', errors)

    def test_no_gpu_is_cordoned_without_its_name_and_a_good_reason(self):
        for command in (('cordon', '--all'), ('cordon', '--reason', 'x'),
                        ('cordon', '--reason', 'x', '--all', '0'),
                        ('uncordon',), ('prepare',)):
            self.assertRaises(SystemExit, self.run_on_host, 'gpu', *command)
        _, errors = self.run_on_host(
            'gpu', 'cordon', '--all',
            '--reason', ' ', code=1)
        self.assertIn("reason '' is not valid", errors)
        self.assertEqual({}, self.gpu_cordons.known())

    def test_a_gpu_that_fails_keeps_none_of_the_others_open(self):
        written = []

        def inventories(node, address):
            if address == self.one:
                raise exception.JournalUnreadable(path='x', reason='broken')
            return ()

        for name, value in (
                ('cloud.placement_client.Placement', lambda _: self),
                ('node.Node.inventories', inventories),
                ('report.publishing.ProviderTree.generations',
                 lambda *_: {}),
                ('report.reserved.ReservedWriter.enforce',
                 lambda *_: written.append(True))):
            self.useFixture(fixtures.MonkeyPatch(
                f'cyborg_gpu_driver.{name}', value))
        rows, errors = self.run_json('gpu', 'cordon', '--all', '--reason',
                                     'a fan')
        self.assertEqual(4, len(rows))
        self.assertEqual(3, len(written))
        self.assertRegex(
            errors, f'GPU {self.one}: Placement was not updated: .*broken')

    def test_a_gpu_that_is_left_alone(self):
        with open(self.conf, 'a', encoding='utf-8') as stream:
            stream.write(f'[gpu]\nignored_devices = {self.one}\n')
        self.assertEqual(self.all[1:], [
            row['address'] for row in self.cordon('--all')])
        _, errors = self.run_on_host(
            'gpu', 'cordon', str(self.one),
            '--reason', 'a fan', code=1)
        self.assertIn('it is in [gpu] ignored_devices', errors)
        self.assertEqual((), self.gpu_cordons.of(self.one))

    def test_who_used_sudo(self):
        self.useFixture(fixtures.EnvironmentVariable('SUDO_USER', 'ann'))
        self.useFixture(fixtures.MonkeyPatch('os.geteuid', lambda: 0))
        self.cordon(str(self.one))
        self.assertEqual('ann', self.gpu_cordons.of(self.one)[0].who)


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
