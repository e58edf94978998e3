# SPDX-License-Identifier: Apache-2.0

"""Simulation and configuration, which concern every command."""

from __future__ import annotations

import os

import fixtures

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.unit.cmd import base

_COMMANDS = (('gpu', 'list'), ('offer', 'list'),
             ('vgpu', 'list'), ('doctor',), ('nova', 'config'),
             ('layout', 'export'),
             ('layout', 'restore'), ('layout', 'checkpoint'),
             ('gpu', 'prepare', '--all', '--dry-run'))


class RealRecordsTest(base.CommandCase):
    """The records in ``[gpu] state_path`` belong to the real host."""

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.real = os.path.join(self.directory, 'real')
        self.host = self.part('dgx-a100-80')
        self.conf = self.configure(f'[gpu]\nstate_path = {self.real}\n',
                                   self.directory)
        address = model.PciAddress.parse('0000:07:00.0')
        store.Store(self.real).put_claims(gpu_record.Claim(
            '9a71a02a-fc7f-4f69-92f5-e3fb104ab795', address, address,
            'nvidia-710', '1g.10gb', gpu_record.Phase.UNBINDING))

    def records(self):
        found = {}
        for directory, _, names in os.walk(self.real):
            for name in names:
                path = os.path.join(directory, name)
                with open(path, 'rb') as stream:
                    found[path] = (stream.read(), os.stat(path).st_mtime_ns)
        return found

    def simulate(self, *arguments):
        return self.run_program('--config-file', self.conf, '--simulate',
                                self.host, *arguments)

    def test_no_command_touches_them(self):
        before = self.records()
        state = os.path.join(self.directory, 'machine')
        for arguments in (('layout', 'checkpoint'),
                          ('layout', 'restore')):
            self.simulate(*arguments)
            self.simulate('--state', state, *arguments)
        self.run_program(
            '--config-file', self.conf, '--simulate', self.host, '--state',
            state, 'doctor', '--repair', code=1)
        self.assertEqual(before, self.records())
        self.assertEqual(2, len(os.listdir(f'{state}.records/gpus')))

    def test_the_state_of_the_file_is_that_of_its_host(self):
        path = self.configure(
            '[gpu]\nsimulate = t4x4\n'
            f'simulate_state = {self.directory}/state\n', self.directory)
        self.run_program('--config-file', path, 'gpu', 'list')
        self.run_program('--config-file', path, '--simulate', 'a30x4',
                         'gpu', 'list')


class ConfigurationTest(base.CommandCase):

    def test_every_command_refuses_a_wrong_configuration(self):
        directory = self.useFixture(fixtures.TempDir()).path
        path = self.configure(
            '[gpu]\npolicies = x\n[gpu_policy:x]\nmode = mig\n'
            'match_modell = *A100*\n', directory)
        state = os.path.join(directory, 'machine')
        for command in _COMMANDS:
            _, errors = self.run_program(
                '--config-file', path, '--simulate', 'mixed', '--state',
                state, *command, code=1)
            self.assertIn('match_modell', errors, command)
        self.assertFalse(os.path.exists(f'{state}.records'))


class FilesTest(base.CommandCase):
    """The files that the services read, without --config-file."""

    def setUp(self):
        super().setUp()
        self.home = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.EnvironmentVariable('HOME', self.home))

    def write(self, path, text):
        path = os.path.join(self.home, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)

    def test_those_of_the_agent(self):
        self.write('.cyborg/cyborg.conf', '[gpu]\nsimulate = l40sx4\n')
        for path in ('.cyborg/cyborg-agent.conf',
                     '.cyborg/cyborg.conf.d/1.conf',
                     '.cyborg/cyborg-agent.conf.d/1.conf'):
            self.write(path, '[gpu]\nmodell = 1\n')
            _, errors = self.run_program('gpu', 'list', code=1)
            self.assertIn(path, errors)
            self.write(path, '')
        self.run_program('gpu', 'list')

    def test_those_of_nova_compute(self):
        self.write('.cyborg/cyborg.conf', '[gpu]\nsimulate = l40sx4\n')
        for path in ('.nova/nova.conf', '.nova/nova-compute.conf',
                     '.nova/nova.conf.d/1.conf',
                     '.nova/nova-compute.conf.d/1.conf'):
            self.write(path, '[pci]\ndevice_spec = {wrong\n')
            output, _ = self.run_program('doctor', '-f', 'json', code=1)
            self.assertIn("device_spec '{wrong' is not valid", output, path)
            self.write(path, '')
