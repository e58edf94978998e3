# SPDX-License-Identifier: Apache-2.0


"""The doctor's checks of an installation, on simulated hosts."""

from __future__ import annotations

import dataclasses
import json

from cyborg_gpu_driver.cmd.doctor import command as doctor
from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
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


class CheckCase(base.HostCase):

    host = 'l40sx4'
    config = FIXED

    def check(self, code, *arguments):
        """Return the rows of the command, which ends with this exit code."""
        return self.rows_on_host('doctor', '--without-cloud', *arguments,
                                 code=code)

    def prepare(self):
        """Create the fixed vGPUs of the policy."""
        self.run_on_host('gpu', 'prepare', '--all')

    def nova(self, text):
        """Return the options for a nova.conf with this text."""
        return '--nova-config-file', self.write('nova.conf', text)

    def lines(self):
        return self.run_on_host('nova', 'config')[0] + SERVICES

    def of(self, rows, code):
        return [(row['severity'], row['message']) for row in rows
                if row['code'] == code]


class SimulatedTest(CheckCase):

    def setUp(self):
        super().setUp()
        self.prepare()

    def test_all_is_well(self):
        self.assertEqual([], self.check(0, *self.nova(self.lines())))

    def test_options_of_placement(self):
        nova = self.nova(self.lines())
        order = 'randomize_allocation_candidates'
        tries = 'allocation_conflict_retry_count'
        good = {order: 'true', tries: '1'}
        for changes, code, wanted in (
                ({}, 0, None), ({order: 'false'}, 1, 'allocation-candidates'),
                ({tries: '2'}, 1, 'placement-claims'),
                ({tries: '0'}, 1, 'placement-claims'),
                ({order: 'soon'}, 2, 'not-examined'),
                ({tries: 'few'}, 2, 'not-examined')):
            path = self.write('placement.conf', '[placement]\n' + ''.join(
                f'{name} = {value}\n'
                for name, value in {**good, **changes}.items()))
            rows = self.check(code, *nova, '--placement-config-file', path)
            self.assertEqual([wanted] if wanted else [],
                             [row['code'] for row in rows], changes)

    def test_files_that_cannot_be_read(self):
        (row,) = self.check(2, '--nova-config-file', ABSENT)
        self.assertEqual('not-examined', row['code'])
        self.assertIn(f'nova.conf {ABSENT}', row['message'].replace("'", ''))
        self.conf = self.configure(
            FIXED + '[keystone_authtoken]\nservice_token_roles = $nosuch\n',
            self.directory)
        (row,) = self.check(2, *self.nova(self.lines()))
        self.assertEqual('not-examined', row['code'])
        self.assertIn('cyborg.conf', row['message'])

    def test_cyborg_conf_that_is_not_there(self):
        output, _ = self.run_program(
            '--simulate', self.host, 'doctor', '-f', 'json', code=1)
        self.assertIn(('not-examined', 'no cyborg.conf was found'),
                      [(row['code'], row['message'])
                       for row in json.loads(output)])


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
        return json.loads(self.run_program(
            '--config-file', self.conf, 'doctor', '--without-cloud',
            *self.nova(TOKEN), *arguments, '-f', 'json', code=code)[0])

    def test_the_machine_and_placement(self):
        rows = self.real(1, 'auth_type = nosuch')
        ((severity, message),) = self.of(rows, 'placement')
        self.assertEqual('error', severity)
        self.assertIn('nosuch', message)
        ((severity, message),) = self.of(rows, 'host-name')
        self.assertEqual('warning', severity)
        self.assertIn('not-this-machine', message)
        self.assertEqual([], self.of(rows, 'cyborg-release'))


class FactsTest(base.CommandCase):

    def test_what_a_check_cannot_do_without(self):
        none = facts.Facts(model.Host(), policies.Settings(),
                           cyborg_problem='x', nova_problem='y',
                           placement_conf_problem='z')
        for found in (none, dataclasses.replace(
                none, machine=facts.Machine())):
            self.assertEqual(
                ['x', 'y', 'z'],
                [item.message for item in doctor.of_checks(found)
                 if item.code == 'not-examined'][:3])

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
