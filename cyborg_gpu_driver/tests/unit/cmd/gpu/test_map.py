# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu gpu map`` on simulated hosts."""

from __future__ import annotations

import os

import fixtures

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.cmd.gpu import show
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests.unit.cmd import base

HANDLE = '5a1e7b0c-0000-4000-8000-000000000001'


class MapTest(base.CommandCase):

    def test_whole_gpus_and_mig(self):
        output, _ = self.run_program('--simulate', 'mixed', 'gpu', 'map')
        self.assertIn('passthrough', output)
        self.assertIn('A100-SXM4-80GB', output)
        self.assertLessEqual(max(map(len, output.splitlines())), 80)
        self.assertNotIn('\x1b', output)

    def test_who_has_it(self):
        directory = self.useFixture(fixtures.TempDir()).path
        state = os.path.join(directory, 'state')
        host = ('--simulate', 'a30x4', '--state', state)
        machine = simulator.Machine.load('a30x4', state)
        self.create_instance(machine, 0, 5, 0, 2)
        self.create_instance(machine, 0, 14, 3, 1)
        rows = self.rows(*host, 'gpu', 'map')
        address = model.PciAddress.parse(rows[0]['address'])
        store.Store(f'{state}.records').put_claims(gpu_record.Claim(
            HANDLE, address, address, 'nvidia-474', '2g.12gb',
            gpu_record.Phase.BOUND, profile_id=rows[0]['id'],
            placement=model.Placement(0, 2), instance_id=rows[0]['id']))
        rows = [row for row in self.rows(*host, 'gpu', 'map')
                if row['index'] == 0]
        self.assertEqual(
            [(0, 2, 'bound', '2g.12gb', [HANDLE]), (2, 1, 'free', None, []),
             (3, 1, 'created', '1g.6gb', [])],
            [(row['start'], row['size'], row['state'], row['profile'],
              row['handles']) for row in rows])
        code, output, _ = command.run(*host, 'gpu', 'map', encoding='utf-8')
        self.assertEqual(0, code)
        self.assertIn('│     2g.12gb     │', output)
        self.assertIn('│*5a1e7b0c-0000-4…│', output)

    def test_a_terminal_has_colours(self):
        for environment, colours in (({}, True), ({'NO_COLOR': '1'}, False)):
            with fixtures.EnvironmentVariable(
                    'NO_COLOR', environment.get('NO_COLOR')):
                terminal = command._Output()
                terminal.isatty = lambda: True
                program = main.CyborgGpu()
                self.addCleanup(program.close)
                program.stdout = terminal
                self.assertEqual(0, program.run(
                    ['--simulate', 'a30x4', 'gpu', 'map']))
                self.assertEqual(colours,
                                 '\x1b[32m' in terminal.getvalue())

    def test_every_state_has_a_colour(self):
        self.assertEqual(
            {state.value for state in show.gpu_map.State},
            set(show._COLOURS))
