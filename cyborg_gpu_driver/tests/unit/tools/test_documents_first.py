# SPDX-License-Identifier: Apache-2.0

"""The paths to a first server, followed in order on simulated hosts."""

import os

import fixtures
import yaml

from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.tests.unit.cmd import base
from cyborg_gpu_driver.tests.unit.tools import documents

_HOST = """
driver_version: '550.144.02'
gpus:
"""
_NOVA = ('[service_user]', '[pci]')


class FirstServerTest(base.CommandCase):
    """A page's commands work in its order, with only its configuration.

    The machine is bare: no MIG mode, no virtual functions.
    """

    def start(self, page, **gpu):
        self.text = documents.text(
            documents.SOURCE / 'first-server' / f'{page}.rst')
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.host = self.file('host.yaml', _HOST + yaml.safe_dump([gpu]))
        self.nova = self.file('nova.conf', '')
        for block in documents.blocks(self.text, 'ini'):
            name = ('nova.conf' if block.startswith(_NOVA)
                    else 'cyborg.conf')
            self.file(name, block.replace('/var/lib/cyborg', self.directory),
                      'a')

    def file(self, name, content, mode='w'):
        path = os.path.join(self.directory, name)
        with open(path, mode, encoding='utf-8') as stream:
            stream.write(content)
        return path

    def on_host(self, *words):
        """Return the output of a command of the page; it may not fail."""
        if '--config-file' in words:
            words = words[2:]
        if 'doctor' in words:
            # The test has no cloud for the doctor.
            words = (*words, '--without-cloud', '--nova-config-file',
                     self.nova)
        return self.run_program(
            '--config-file', os.path.join(self.directory, 'cyborg.conf'),
            '--simulate', self.host, '--state',
            os.path.join(self.directory, 'machine.json'), *words)[0]

    def play(self):
        played = []
        for words in documents.commands(self.text, 'cyborg-gpu'):
            output = self.on_host(*words[1:])
            if words[-2:] == ['nova', 'config']:
                self.file('nova.conf', output, 'a')
            played.append(' '.join(words[3:] if '--config-file' in words
                                   else words[1:]))
        self.assertIn('doctor', played)
        return played

    def offered(self):
        return {row['profile']: row['creatable'] for row
                in self.rows_on_host('offer', 'list')}

    def rows_on_host(self, *words):
        return yaml.safe_load(self.on_host(*words, '-f', 'json'))

    def asked(self):
        """Return classes and traits that the page's cloud file requests."""
        block, = documents.blocks(self.text, 'yaml')
        profile, flavor = definition.parse(block, 'gpus.yaml').items
        self.assertEqual('gpu.first', flavor.name)
        self.assertIn(('accel:device_profile', profile.name),
                      flavor.extra_specs)
        return dict(pair for group in profile.groups for pair in group)

    def test_mig(self):
        self.start('mig', model='h100-80', address='0000:41:00.0',
                   framework='vendor-vfio')
        self.assertIn('gpu prepare --all', self.play())
        self.assertEqual({'1g.10gb': 7, '2g.20gb': 3, '3g.40gb': 2},
                         self.offered())
        self.assertEqual({'resources:CUSTOM_NVIDIA_1G_10GB': '1'},
                         self.asked())

    def test_vgpu(self):
        self.start('vgpu', model='t4', address='0000:3b:00.0',
                   framework='mdev')
        self.play()
        self.assertEqual({'T4-2B': 8, 'T4-4Q': 4}, self.offered())
        self.assertEqual({'resources:CUSTOM_NVIDIA_T4_2B': '1'},
                         self.asked())

    def test_passthrough(self):
        self.start('passthrough', model='h100-80', address='0000:81:00.0',
                   driver='vfio-pci')
        self.play()
        self.assertEqual({'passthrough': 1}, self.offered())
        self.assertEqual({'resources:PGPU': '1',
                          'trait:CUSTOM_NVIDIA_2330': 'required'},
                         self.asked())
        row, = self.rows_on_host('offer', 'list')
        self.assertIn('CUSTOM_NVIDIA_2330', row['traits'])

    def test_fixed(self):
        self.start('fixed', model='l40s', address='0000:16:00.0',
                   framework='vendor-vfio')
        self.assertIn('nova config', self.play())
        vgpus = self.rows_on_host('vgpu', 'list', '--without-cloud')
        self.assertEqual(4 * ['L40S-12Q'], [row['type'] for row in vgpus])
        with open(self.nova, encoding='utf-8') as stream:
            written = stream.read()
        self.assertEqual(4, written.count('device_spec'))
        # The page's query of Placement and its flavor name the type that the
        # command has told Nova.
        self.assertIn('"resource_class": "CUSTOM_NVIDIA_L40S_12Q"', written)
        for name in ('--resource CUSTOM_NVIDIA_L40S_12Q=1',
                     'pci_passthrough:alias=L40S-12Q:1'):
            self.assertIn(name, self.text)
