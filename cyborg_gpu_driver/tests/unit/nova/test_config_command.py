# SPDX-License-Identifier: Apache-2.0


"""``cyborg-gpu nova config`` on simulated hosts."""

from __future__ import annotations

import json
import os

import fixtures

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd import base

FIXED = '''
[gpu]
policies = fixed
[gpu_policy:fixed]
mode = vgpu
fixed_vgpus = {}
'''


class ConfigNovaTest(base.CommandCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path

    def config(self, *arguments, fixed='L40S-12Q:2', host='l40sx4',
               more='', code=0):
        text = (FIXED.format(fixed) + '[gpu]\n'
                f'simulate = {host}\nstate_path = {self.directory}\n{more}')
        return self.run_program(
            '--config-file', self.configure(text, self.directory),
            'nova', 'config', *arguments, code=code)

    def test_functions_keep_what_they_had_before_a_reboot(self):
        gpu = model.PciAddress.parse('0000:16:00.0')
        function = model.PciAddress.parse('0000:16:01.0')
        found = self.config('-f', 'json')[0]
        self.assertNotIn(str(function), found)
        number = next(kind.type_id for kind in
                      simulator.Machine.load('l40sx4').gpus[0]
                      .model.vgpu_types if kind.name == 'L40S-12Q')
        store.of(self.directory).put(gpu, fixed=gpu_record.FixedVgpus(
            {function: f'nvidia-{number}'}))
        found = json.loads(self.config('-f', 'json')[0])
        self.assertIn(str(function), [
            spec['address'] for spec in found['pci']['device_spec']])

    def test_record_that_is_damaged(self):
        path = store.of(self.directory).path(
            model.PciAddress.parse('0000:16:00.0'))
        os.makedirs(os.path.dirname(path))
        with open(path, 'w') as stream:
            stream.write('x')
        output, errors = self.config()
        self.assertEqual(8, output.count('\ndevice_spec = '))
        self.assertIn(path, errors)

    def test_what_nova_cannot_tell_apart(self):
        output, errors = self.config(
            fixed='L40S-12Q:1,L40S-12A:1', code=1)
        self.assertEqual('', output)
        self.assertIn('one resource class per GPU', errors)

    def test_gpus_without_virtual_functions(self):
        output, errors = self.config(host='mixed')
        self.assertEqual('', output)
        self.assertIn('no virtual functions that can carry vGPUs', errors)
