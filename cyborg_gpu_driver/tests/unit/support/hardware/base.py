# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""A simulated machine with a few partitions, and its state as text."""

from __future__ import annotations

import json

import fixtures
import pynvml
from oslotest import base

from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator import state
from cyborg_gpu_driver.simulator.library import library
from cyborg_gpu_driver.simulator.machine import machine as machine_module

A100 = '0000:07:00.0'
VF = '0000:07:00.4'
MDEV = 'd2a1c7de-0000-4000-8000-00000000beef'


class TestCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.addCleanup(_uninstall_all)

    def open(self, name):
        """Load :attr:`machine` by this name, and return its platform."""
        self.machine = machine_module.Machine.load(name)
        return platform.open_platform(self.machine)

    def populate(self, seen):
        """Create two instances on the first GPU, and a vGPU on one of them."""
        device = seen.nvml.call('nvmlDeviceGetHandleByPciBusId', A100)
        for profile_id in (9, 19):
            instance = seen.nvml.call('nvmlDeviceCreateGpuInstance', device,
                                      profile_id)
        seen.nvml.call('nvmlGpuInstanceCreateComputeInstance', instance, 0)
        types = ('bus', 'pci', 'devices', VF, 'mdev_supported_types')
        for type_id in seen.sysfs.listdir(*types):
            name = seen.sysfs.read(*types, type_id, 'name')
            if name.endswith('-3-40C'):
                seen.sysfs.write(MDEV, *types, type_id, 'create')
        # NVML calls a vGPU active while a virtual machine has it.
        self.machine.start_guest(MDEV)

    def state_text(self):
        with self.machine.operation():
            return json.dumps(state.to_json(self.machine.state))


def _uninstall_all():
    while isinstance(pynvml.nvmlLib, library.Library):
        pynvml.nvmlLib.machine.uninstall()
