# SPDX-License-Identifier: Apache-2.0

"""Boot a simulated bare-metal server in this process."""

from __future__ import annotations

import json
import os

import fixtures

from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd import base


class BootCase(base.CommandCase):
    """``cyborg-gpu firstboot`` on a simulated server of two GPUs."""

    model = 'h100-80'
    devices = {'1g.10gb': 7}

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.state_path = os.path.join(self.directory, 'state')
        self.options = {
            'state_path': self.state_path,
            'simulate': self.write_host('0000:18:00.0', '0000:2a:00.0'),
            'simulate_state': self.path('machine.json')}

    def path(self, name):
        return os.path.join(self.directory, name)

    def write_host(self, *addresses):
        """Write the file of a simulated server with GPUs at these addresses.
        """
        path = self.path('host.yaml')
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump({'driver_version': '570.124.03', 'gpus': [
                {'model': self.model, 'address': address}
                for address in addresses]}, stream)
        return path

    def machine(self):
        """The hardware of the server, as another process sees it."""
        return simulator.Machine.load(self.options['simulate'],
                                      self.options['simulate_state'])

    def layout(self, **items):
        """The text of a layout file with one entry, ``staged``.

        :param items: keys and values that differ from the default item.
        """
        item = {'devices': 'all', 'mig-enabled': True,
                'mig-devices': self.devices}
        item.update((key.replace('_', '-'), value)
                    for key, value in items.items())
        return json.dumps({'version': 'v1',
                           'mig-configs': {'staged': [item]}})

    def stage(self, text=None):
        """Write a layout file and return its path."""
        path = self.path('layout.yaml')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(self.layout() if text is None else text)
        return path

    def metadata(self, value):
        """Write cloud-init's file with a layout and return its path."""
        path = self.path('instance-data.json')
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump({'ds': {'meta_data': {'meta': {
                'cyborg_gpu_layout': value}}}}, stream)
        return path

    def boot(self, *arguments, code=0):
        """Run the command and return its output and its standard error."""
        conf = self.configure('[gpu]\n' + ''.join(
            f'{name} = {value}\n' for name, value in self.options.items()),
            self.directory)
        return self.run_program(
            '--config-file', conf, 'firstboot', *arguments, code=code)

    def booted(self, *arguments, code=0):
        """Run the command and return the report that it prints."""
        return json.loads(self.boot(*arguments, '-f', 'json', code=code)[0])

    def gpus(self):
        """For each GPU, the MIG mode and the GPU instances.

        A GPU instance is its profile ID, its start and the number of its
        compute instances.
        """
        machine = self.machine()
        with machine.operation():
            return [(gpu.state.mig, sorted(
                (item.profile_id, item.start, len(item.compute))
                for item in gpu.state.instances.values()))
                for gpu in machine.gpus]
