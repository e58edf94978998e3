# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu gpu map`` on simulated hosts."""

from __future__ import annotations

import os
import types

import fixtures

from cyborg_gpu_driver.cmd.gpu import show
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests.unit.cmd import base
from cyborg_gpu_driver.tests.unit.partition import boards

HANDLE = '5a1e7b0c-0000-4000-8000-000000000001'
FUNCTION = model.PciAddress(0, 1, 0, 4)


def claim(handle, function=FUNCTION, placement=None):
    return types.SimpleNamespace(handle=handle, function=function,
                                 placement=placement)


class MapTest(base.CommandCase):

    def test_who_has_it(self):
        directory = self.useFixture(fixtures.TempDir()).path
        state = os.path.join(directory, 'state')
        host = ('--simulate', 'a30x4', '--state', state)
        machine = simulator.Machine.load('a30x4', state)
        self.create_instance(machine, 0, 5, 0, 2)
        self.create_instance(machine, 0, 14, 3, 1)
        row = self.rows(*host, 'gpu', 'map')[0]
        address = model.PciAddress.parse(row['address'])
        number = row['parts'][0]['id']
        store.Store(f'{state}.records').put_claims(gpu_record.Claim(
            HANDLE, address, address, 'nvidia-474', '2g.12gb',
            gpu_record.Phase.BOUND, profile_id=number,
            placement=model.Placement(0, 2), instance_id=number))
        self.assertEqual(
            [(0, 2, 'bound', '2g.12gb', [HANDLE]), (2, 1, 'free', None, []),
             (3, 1, 'created', '1g.6gb', [])],
            [(part['start'], part['size'], part['state'], part['profile'],
              part['handles'])
             for part in self.rows(*host, 'gpu', 'map')[0]['parts']])
        code, output, _ = command.run(*host, 'gpu', 'map')
        self.assertEqual(0, code)
        self.assertIn('| 0:2 2g.12gb *5a1e7b0c |', output)

    def test_a_unit_that_nothing_reaches_is_blocked(self):
        for live, expected in (
                # A 1g.20gb at 6 would reach unit 7, but overlaps 1g.10gb.
                ((('4g.40gb', 0), ('1g.10gb', 4)), ['5:3 free']),
                ((('4g.40gb', 0), ('1g.10gb', 6)),
                 ['4:2 free', '7:1 blocked']),
                ((('2g.20gb', 4),), ['0:4 free', '6:2 free'])):
            parts = show.parts(boards.gpu(boards.ALL['A100-80'], live), ())
            self.assertEqual(expected, [
                show._part_line(part) for part in parts
                if part['profile'] is None])

    def test_vgpus(self):
        other = model.PciAddress(0, 1, 0, 5)
        gpu = boards.gpu((), mig=None, mdevs=(
            model.Mdev(HANDLE, FUNCTION, 'nvidia-9'),
            model.Mdev(HANDLE[:-1] + '2', FUNCTION, 'nvidia-9')),
            vfs=(model.VirtualFunction(other, 1, 'nvidia', None,
                                       current_vgpu_type=10),))
        self.assertEqual(
            [('nvidia-9', [HANDLE]), ('nvidia-9', []), ('nvidia-10', ['vf'])],
            [(part['profile'], part['handles']) for part in show.parts(
                gpu, [claim(HANDLE), claim('vf', other)])])

    def test_an_instance_is_shown_without_placements(self):
        gpu = boards.without_placements(
            boards.gpu(boards.A30, [('1g.6gb', 1)]))
        self.assertEqual([('1g.6gb', 7)], [
            (part['profile'], part['id']) for part in show.parts(gpu, ())])
