# SPDX-License-Identifier: Apache-2.0

"""Commands on one simulated host with a layout file for it."""

from __future__ import annotations

from cyborg_gpu_driver.tests.unit.cmd import base

LAYOUTS = """
version: v1
mig-configs:
  mixed:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"3g.40gb": 1, "1c.3g.40gb": 3}
    - devices: [1, 2]
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
  halves:
    - devices: all
      device-filter: "0x233010DE"
      mig-enabled: true
      mig-devices: {"3g.40gb": 2}
  'off':
    - devices: all
      mig-enabled: false
  unknown:
    - devices: all
      mig-enabled: true
      mig-devices: {"1g.5gb": 1}
  too-much:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.40gb": 3}
  nowhere:
    - devices: [8]
      mig-enabled: true
      mig-devices: {}
"""
GPU = '0000:18:00.0'


class LayoutCase(base.HostCase):
    """Commands on one simulated host with a layout file for it."""

    host = 'hgx-h100'
    gpus = 4

    def setUp(self):
        super().setUp()
        self.file = self.write('layouts.yaml', LAYOUTS)
        machine = self.machine()
        with machine.operation(write=True):
            for gpu in machine.gpus:
                gpu.state.vfs = 0

    def layout(self, command, *arguments, code=0):
        return self.run_on_host('layout', command, *arguments, code=code)

    def apply(self, name, *arguments, code=0):
        return self.layout('apply', '-f', self.file, '-c', name, *arguments,
                           code=code)

    def assert_layout(self, name, *arguments, code=0):
        return self.layout('plan', '-f', self.file, '-c', name, *arguments,
                           code=code)

    def instances(self, index):
        machine = self.machine()
        with machine.operation():
            return sorted(
                (item.profile_id, item.start, len(item.compute))
                for item in machine.gpus[index].state.instances.values())
