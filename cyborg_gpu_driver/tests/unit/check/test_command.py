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


"""``cyborg-gpu check`` on simulated hosts."""

from __future__ import annotations

import json

import fixtures
from cyborg import conf

from cyborg_gpu_driver.check import facts
from cyborg_gpu_driver.check import run
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd import base

FIXED = '''
[agent]
enabled_drivers = cyborg_gpu_driver
[gpu]
policies = fixed
[gpu_policy:fixed]
mode = vgpu
fixed_vgpus = L40S-12Q:2
'''
TOKEN = '''
[service_user]
send_service_user_token = true
auth_type = password
'''
SERVICES = f'report_in_placement = true{TOKEN}'
ABSENT = '/nowhere/nova.conf'


class CheckCase(base.CommandCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.conf = self.configure(FIXED, self.directory)
        self.host = self.part('l40sx4')

    def check(self, code, *arguments, simulate=None):
        """Return the rows of the command, which ends with this exit code."""
        output, _ = self.run_program(
            '--config-file', self.conf,
            *(('--simulate', self.host) if simulate is None else simulate),
            'check', *arguments,
            '-f', 'json', code=code)
        return json.loads(output)

    def nova(self, text):
        """Return the options for a nova.conf with this text."""
        path = f'{self.directory}/nova.conf'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        return '--nova-config-file', path

    def lines(self):
        return self.run_program(
            '--config-file', self.conf, '--simulate', self.host, 'nova',
            'config')[0] + SERVICES

    def of(self, rows, check):
        return [(row['result'], row['details']) for row in rows
                if row['check'] == check]


class SimulatedTest(CheckCase):

    def test_all_is_well(self):
        rows = self.check(0, *self.nova(self.lines()))
        self.assertEqual({'success', 'skipped'},
                         {row['result'] for row in rows})
        self.assertEqual(list(run.CHECKS),
                         list(dict.fromkeys(row['check'] for row in rows)))
        self.assertEqual(
            {'skipped'}, {row['result'] for row in rows
                          if 'not checked' in row['details']})
        self.assertEqual(
            [('skipped', 'not checked: the machine is simulated')],
            self.of(rows, 'agent access'))

    def test_gpus_that_nobody_can_read(self):
        state = f'{self.directory}/machine'
        machine = simulator.Machine.load(self.host, state)
        simulate = ('--simulate', self.host, '--state', state)
        rows = self.check(0, *self.nova(self.lines()), simulate=simulate)
        well = self.of(rows, 'vGPU framework')
        machine.lose_gpu('0000:16:00.0')
        rows = self.check(2, *self.nova(self.lines()), simulate=simulate)
        lost = ('skipped', 'not checked: lost')
        self.assertEqual([lost, *well[1:]], self.of(rows, 'vGPU framework'))
        self.assertEqual([lost], self.of(rows, 'MIG mode and SR-IOV'))
        machine.unload_library()
        rows = self.check(2, *self.nova(self.lines()), simulate=simulate)
        unseen = ('skipped', 'not checked: not seen by NVML')
        self.assertEqual([unseen] * 2, self.of(rows, 'vGPU framework'))
        self.assertEqual([unseen] * 2, self.of(rows, 'MIG mode and SR-IOV'))
        self.assertIn('failure', [code for code, _ in self.of(rows, 'NVML')])

    def test_the_order_of_candidates(self):
        path = f'{self.directory}/placement.conf'
        for text, code, wanted in (
                ('', 1, 'warning'),
                ('randomize_allocation_candidates = true', 0, 'success'),
                ('randomize_allocation_candidates = soon', 0, 'skipped')):
            with open(path, 'w', encoding='utf-8') as stream:
                stream.write('[placement]\n'
                             'allocation_conflict_retry_count = 1\n'
                             f'{text}\n')
            ((found, _),) = self.of(
                self.check(code, *self.nova(self.lines()),
                           '--placement-config-file', path),
                'allocation candidates')
            self.assertEqual(wanted, found)
        ((found, details),) = self.of(
            self.check(0, *self.nova(self.lines())), 'allocation candidates')
        self.assertEqual('skipped', found)
        self.assertIn('randomize_allocation_candidates = true', details)

    def test_the_retries_of_claims(self):
        path = f'{self.directory}/placement.conf'
        for text, code, wanted in (
                ('', 1, 'warning'),
                ('allocation_conflict_retry_count = 2', 1, 'warning'),
                ('allocation_conflict_retry_count = 1', 0, 'success'),
                ('allocation_conflict_retry_count = 0', 1, 'warning'),
                ('allocation_conflict_retry_count = few', 0, 'skipped')):
            with open(path, 'w', encoding='utf-8') as stream:
                stream.write('[placement]\n'
                             'randomize_allocation_candidates = true\n'
                             f'{text}\n')
            ((found, details),) = self.of(
                self.check(code, *self.nova(self.lines()),
                           '--placement-config-file', path),
                'Placement claims')
            self.assertEqual(wanted, found)
            if wanted == 'warning':
                self.assertIn(f'is {text[-1:] or 10}:', details)
        ((found, details),) = self.of(
            self.check(0, *self.nova(self.lines())), 'Placement claims')
        self.assertEqual('skipped', found)
        self.assertIn('allocation_conflict_retry_count = 1', details)

    def test_failure(self):
        rows = self.check(2, *self.nova(TOKEN))
        failed = [row for row in rows if row['result'] == 'failure']
        self.assertEqual(4, len(failed))
        self.assertEqual({'Nova PCI devices'},
                         {row['check'] for row in failed})
        self.assertTrue(all(row['action'] for row in failed))

    def test_nova_conf_that_cannot_be_read(self):
        rows = self.check(1, '--nova-config-file', ABSENT)
        for check in ('Nova PCI devices', 'service token, Nova'):
            ((code, details),) = self.of(rows, check)
            self.assertEqual('skipped', code)
            self.assertIn(f'not checked: nova.conf {ABSENT}',
                          details.replace("'", ''))

    def test_guests_that_start_with_a_simulated_host(self):
        rows = self.check(2, *self.nova(
            '[DEFAULT]\nresume_guests_state_on_host_boot = true\n' + TOKEN))
        self.assertEqual(
            [('skipped', 'not checked: the machine is simulated')],
            self.of(rows, 'guests at host boot'))

    def test_cyborg_conf_that_is_not_there(self):
        output, _ = self.run_program(
            '--simulate', self.host, 'check', '-f', 'json', code=2)
        self.assertEqual(
            [('skipped', 'not checked: no cyborg.conf was found')],
            self.of(json.loads(output), 'Cyborg drivers'))

    def test_cyborg_conf_that_is_malformed(self):
        self.conf = self.configure(
            FIXED + '[keystone_authtoken]\nservice_token_roles = $nosuch\n',
            self.directory)
        ((code, details),) = self.of(
            self.check(1, *self.nova(self.lines())), 'Cyborg drivers')
        self.assertEqual('skipped', code)
        self.assertIn('not checked: ', details)

    def test_table(self):
        output, _ = self.run_program(
            '--config-file', self.conf, '--simulate', self.host, 'check',
            '--nova-config-file', self.conf, code=2)
        self.assertIn('action', output)


class MachineTest(CheckCase):
    """The machine that runs the tests, with the GPUs of a simulated NVML
    and no GPU on its PCI bus.
    """

    def real(self, code, text, *arguments):
        """Return the rows for a cyborg.conf that also has this text."""
        self.conf = self.configure(
            '[DEFAULT]\nhost = not-this-machine\n'
            '[agent]\nenabled_drivers = cyborg_gpu_driver\n'
            f'[gpu]\nsysfs_root = {self.directory}\n'
            f'[placement]\n{text}\n', self.directory)
        return self.check(code, *self.nova(TOKEN), *arguments, simulate=())

    def test_what_is_looked_at(self):
        rows = self.real(2, '', '--offline')
        ((code, details),) = self.of(rows, 'Cyborg release')
        self.assertEqual('success', code)
        self.assertRegex(details, r'^Cyborg \d+\.')
        ((code, details),) = self.of(rows, 'host name')
        self.assertEqual('warning', code)
        self.assertIn('not-this-machine', details)
        self.assertNotIn('not checked: the machine is simulated',
                         [row['details'] for row in rows])

    def test_cyborg_conf_that_is_malformed(self):
        rows = self.real(
            1, '[cyborg_gpu_privileged]\nhelper_command = $nosuch')
        for check in ('agent privileges', 'host name', 'Placement'):
            ((code, details),) = self.of(rows, check)
            self.assertEqual('skipped', code)
            self.assertIn('not checked: ', details)

    def test_placement_is_asked_unless_told_otherwise(self):
        self.addCleanup(conf.CONF.reset)
        rows = self.real(2, 'auth_type = nosuch')
        ((code, details),) = self.of(rows, 'Placement')
        self.assertEqual('failure', code)
        self.assertIn('nosuch', details)
        rows = self.real(1, 'auth_type = nosuch', '--offline')
        self.assertEqual([('skipped', 'not checked: --offline was given')],
                         self.of(rows, 'Placement'))


class RunTest(base.CommandCase):

    none = facts.Facts(model.Host(), policies.Settings())

    def findings(self, found):
        return dict(run.run(found))

    def test_each_check_says_something(self):
        self.assertEqual(list(run.CHECKS), list(self.findings(self.none)))

    def test_what_a_check_cannot_do_without(self):
        found = self.findings(facts.Facts(
            model.Host(), policies.Settings(), machine=facts.Machine(),
            cyborg_problem='x', nova_problem='y'))
        self.assertIn('not checked: x', found['host name'].details)
        self.assertIn('not checked: y', found['Nova mdev types'].details)
        self.assertEqual('no problem found', found['kernel'].details)
        self.assertIn('simulated',
                      self.findings(self.none)['host name'].details)
        self.assertEqual(result.Code.SKIPPED,
                         self.findings(self.none)['kernel'].code)

    def test_governed(self):
        gpu = model.Gpu(model.PciAddress.parse('0000:16:00.0'), '10de',
                        '20b2', '0302')
        for mode, offered, carrying in (
                (policy.Mode.OFF, 0, 0), (policy.Mode.PASSTHROUGH, 1, 0),
                (policy.Mode.VGPU, 1, 1), (policy.Mode.MIG, 1, 1)):
            found = facts.Facts(model.Host((gpu,)), policies.Settings(
                (policy.Policy('p', mode),)))
            self.assertEqual((offered, carrying), (
                len(list(found.governed())), len(list(found.with_vgpus()))))
        elsewhere = policy.Policy('p', policy.Mode.MIG, match_model=('X',))
        found = facts.Facts(model.Host((gpu,)),
                            policies.Settings((elsewhere,)))
        self.assertEqual([], list(found.governed()))
