# SPDX-License-Identifier: Apache-2.0

"""Listing GPU instances when one GPU fails."""

import json
import os

import fixtures

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd import base
from cyborg_gpu_driver.tests.unit.cmd.layout import layouts

_HOST = 'a30x4'


class ListTest(base.CommandCase):

    def test_a_record_that_is_damaged(self):
        state = os.path.join(self.useFixture(fixtures.TempDir()).path,
                             'machine.json')
        simulator.Machine.load(_HOST, state).reboot()
        where = ('--simulate', _HOST, '--state', state)
        first, second, *_ = [
            row['address'] for row in json.loads(self.run_program(
                *where, 'gpu', 'list', '-f', 'json')[0])]
        path = store.Store(f'{state}.records').path(
            model.PciAddress.parse(first))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('{}')
        output, errors = self.run_program(
            *where, 'instance', 'list', '-f', 'json', code=1)
        self.assertIn(f'GPU {first}: ', errors)
        self.assertNotIn(second, errors)
        self.assertEqual([], json.loads(output))


class ChangeTest(layouts.LayoutCase):

    def test_the_log_says_what_was_changed(self):
        log = self.useFixture(fixtures.FakeLogger(
            'cyborg_gpu_driver.program.ready.apply'))
        for command, steps in (
                (('create', layouts.GPU, '3g.40gb', '--start', '4'),
                 'create instance 3g.40gb at 4:4; create compute instance 3c '
                 'in 3g.40gb at 4:4'),
                (('destroy', layouts.GPU, '--start', '4'),
                 'destroy compute instance 3c at slice 0 in 3g.40gb at 4:4; '
                 'destroy instance 3g.40gb at 4:4')):
            self.run_on_host('instance', *command)
            self.assertIn(f'GPU {layouts.GPU}: {steps}\n', log.output)

    def test_the_doctor_knows_what_the_commands_create(self):
        self.conf = self.configure(
            '[gpu]\npolicies = s\n[gpu_policy:s]\nmode = mig\n',
            self.useFixture(fixtures.TempDir()).path)
        for command in ('create', layouts.GPU, '3g.40gb', '--start', '4'), (
                'destroy', layouts.GPU, '--start', '4'):
            self.run_on_host('instance', *command)
            output, _ = self.run_on_host('doctor', '-f', 'json', code=1)
            self.assertNotIn('3g.40gb', output)

    def test_destroy_takes_the_id_that_the_list_shows(self):
        for profile, start in (('3g.40gb', '4'), ('1g.10gb', '2')):
            self.run_on_host('instance', 'create', layouts.GPU, profile,
                             '--start', start)
        output, _ = self.run_on_host('instance', 'list', '-f', 'json')
        rows = json.loads(output)
        wanted = next(row for row in rows if row['start'] == 4)
        head = self.run_on_host('instance', 'list')[0].splitlines()[1]
        self.assertIn(' id ', head)
        _, said = self.run_on_host('instance', 'destroy', layouts.GPU,
                                   wanted['id'])
        self.assertIn(f'Destroyed 3g.40gb with id {wanted["id"]} at unit 4',
                      said)
        output, _ = self.run_on_host('instance', 'list', '-f', 'json')
        self.assertEqual([row for row in rows if row != wanted],
                         json.loads(output))
        for arguments in ((wanted['id'],), ('--start', '4')):
            _, said = self.run_on_host('instance', 'destroy', layouts.GPU,
                                       *arguments, code=1)
            self.assertIn('1g.10gb with id', said)
