# SPDX-License-Identifier: Apache-2.0

"""Boot a simulated bare-metal server in this process."""

from __future__ import annotations

import json

from cyborg_gpu_driver.tests.unit.cmd import base


class BootCase(base.HostCase):
    """``cyborg-gpu firstboot`` on a simulated server of two GPUs."""

    model = 'h100-80'
    devices = {'1g.10gb': 7}
    gpus = 0

    def setUp(self):
        super().setUp()
        self.options = {}
        self.host = self.write_host('0000:18:00.0', '0000:2a:00.0')

    def write_host(self, *addresses):
        """Write the file of a simulated server with GPUs at these addresses.
        """
        return self.write('host.yaml', json.dumps({
            'driver_version': '570.124.03', 'gpus': [
                {'model': self.model, 'address': address}
                for address in addresses]}))

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
        return self.write('layout.yaml',
                          self.layout() if text is None else text)

    def metadata(self, value):
        """Write cloud-init's file with a layout and return its path."""
        return self.write('instance-data.json', json.dumps({
            'ds': {'meta_data': {'meta': {'cyborg_gpu_layout': value}}}}))

    def boot(self, *arguments, code=0):
        """Run the command and return its output and its standard error."""
        self.configure('[gpu]\n' + ''.join(
            f'{name} = {value}\n' for name, value in self.options.items()),
            self.directory)
        return self.run_on_host('firstboot', *arguments, code=code)

    def booted(self, *arguments, code=0):
        """Run the command and return the report that it prints."""
        return json.loads(self.boot(*arguments, '-f', 'json', code=code)[0])

    def cuts(self):
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
