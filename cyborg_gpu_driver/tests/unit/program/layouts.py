# SPDX-License-Identifier: Apache-2.0

"""The base of the layout tests: a machine, and what its hardware has."""

from __future__ import annotations

import copy

import fixtures
from oslotest import base

from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.ready import apply
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.program import machines
from cyborg_gpu_driver.tests.unit.program import nodes

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
        """Use another machine, or one that several processes share."""
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
        """Start anew, as a new process does, on the same machine and files.

        :param host: the snapshot of the host; None makes the process read it.
        """
        self.end_process()
        machine = platform.open_platform(self.machine)
        self._process = (self.machine, machine.nvml)
        privileged.run_here(machine)
        self.platform = machine
        self.host = host or reader.HostReader(machine).snapshot()
        self.gpu = self.host.gpu(self.address)
        self.node = nodes.Node(machine, self.state_path)
        self.transactions = self.node.transactions
        self.applier = self.node.applier
        self.records = self.node.records

    def change_record(self):
        """Return the record of an unfinished layout change, or None."""
        return self.records.read(self.address).change

    def wanted(self, enabled=True, gpu=None, **devices):
        """Return what a layout file wants; _ in names stands for a point."""
        return target.wanted(gpu or self.gpu, enabled, {
            name.strip('_').replace('_', '.'): count
            for name, count in devices.items()})

    def apply(self, enabled=True, options=None, **devices):
        return self.applier.apply(
            self.gpu, self.wanted(enabled, **devices),
            options or apply.Options())

    def restore(self, saved):
        """Restore the GPU. Return what was done, in words."""
        done = []
        self.node.preparer.restore(self.gpu, saved, done)
        return done

    def truth(self, address=None):
        """Return what the hardware has, whatever the records have."""
        with self.machine.operation():
            state = self.machine.gpu(address or self.address).state
            return (state.mig, state.pending, sorted(
                (item.start, item.size, item.profile_id, sorted(
                    (part.start, part.size)
                    for part in item.compute.values()))
                for item in state.instances.values()))

    def serials(self):
        """Serials, which tell apart instances at the same placement."""
        with self.machine.operation():
            state = self.machine.gpu(self.address).state
            return {(item.start, item.profile_id): item.serial
                    for item in state.instances.values()}

    def saved(self):
        """Return a copy of the GPU's state, for :meth:`load`."""
        with self.machine.operation():
            return copy.deepcopy(self.machine.gpu(self.address).state)

    def load(self, saved):
        with self.machine.operation(write=True):
            self.machine.state.gpus[str(self.address)] = copy.deepcopy(saved)

    def mutating_calls(self):
        return sum(count for name, count in self.machine.calls.items()
                   if name in MUTATING)
