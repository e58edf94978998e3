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

"""What the tests of applying layouts share: a machine, and its truth."""

from __future__ import annotations

import copy

import fixtures
from oslotest import base

from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.change import target
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.program.steps import transaction
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.program import machines
from cyborg_gpu_driver.tests.unit.program import wiring

MUTATING = ('nvmlDeviceSetMigMode', 'nvmlDeviceCreateGpuInstance',
            'nvmlDeviceCreateGpuInstanceWithPlacement',
            'nvmlGpuInstanceDestroy', 'nvmlGpuInstanceCreateComputeInstance',
            'nvmlGpuInstanceCreateComputeInstanceWithPlacement',
            'nvmlComputeInstanceDestroy')


class LayoutCase(base.BaseTestCase):
    """One GPU of a simulated machine, without virtual functions."""

    MACHINE = 'dgx-a100-80'

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        self._process = None
        self.addCleanup(self.end_process)
        self.use(self.MACHINE)

    def use(self, name, state=None, gpus=2):
        """Work on another machine, or on one that processes share."""
        self.machine = machines.load(name, state, gpus=gpus)
        with self.machine.operation(write=True):
            for gpu in self.machine.gpus:
                gpu.state.vfs = 0
        self.address = model.PciAddress.parse(self.machine.gpus[0].address)
        self.restart()

    def end_process(self):
        """Close NVML, as the end of a process does."""
        if self._process is not None:
            machine, nvml = self._process
            nvml.reset()
            machine.uninstall()
            self._process = None

    def restart(self, host=None):
        """As a new process would begin, on the same machine and files.

        :param host: what the process would read of the host, if known.
        """
        self.end_process()
        machine = platform.open_platform(self.machine)
        self._process = (self.machine, machine.nvml)
        privileged.run_here(machine)
        self.platform = machine
        self.host = host or reader.HostReader(machine).snapshot()
        self.gpu = self.host.gpu(self.address)
        self.transactions = transaction.Transactions(machine,
                                                     self.state_path)
        self.applier = apply.Applier(self.transactions)
        self.restorer = wiring.restorer(machine, self.state_path)
        self.records = store.of(self.state_path)

    def change_record(self):
        """What is left of a change of layout; None if nothing is."""
        return self.records.read(self.address).change

    def wanted(self, enabled=True, gpu=None, **devices):
        """What a layout file would want; names with _ for the point."""
        return target.wanted(gpu or self.gpu, enabled, {
            name.strip('_').replace('_', '.'): count
            for name, count in devices.items()})

    def apply(self, enabled=True, options=None, **devices):
        return self.applier.apply(
            self.gpu, self.wanted(enabled, **devices),
            options or apply.Options())

    def truth(self, address=None):
        """What the hardware has, whatever anybody believes."""
        with self.machine.operation():
            state = self.machine.gpu(address or self.address).state
            return (state.mig, state.pending, sorted(
                (item.start, item.size, item.profile_id, sorted(
                    (part.start, part.size)
                    for part in item.compute.values()))
                for item in state.instances.values()))

    def serials(self):
        """What tells instances from others at the same placement."""
        with self.machine.operation():
            state = self.machine.gpu(self.address).state
            return {(item.start, item.profile_id): item.serial
                    for item in state.instances.values()}

    def saved(self):
        """The GPU's state, to come back to with :meth:`load`."""
        with self.machine.operation():
            return copy.deepcopy(self.machine.gpu(self.address).state)

    def load(self, saved):
        with self.machine.operation(write=True):
            self.machine.state.gpus[str(self.address)] = copy.deepcopy(saved)

    def mutating_calls(self):
        return sum(count for name, count in self.machine.calls.items()
                   if name in MUTATING)
