# SPDX-License-Identifier: Apache-2.0

"""A simulated machine, and the parts that make its GPUs ready."""

from __future__ import annotations

import dataclasses

import fixtures
from oslotest import base

from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.program import machines
from cyborg_gpu_driver.tests.unit.program import nodes


class ReadyCase(base.BaseTestCase):
    """A GPU as a boot leaves it: no virtual functions, MIG mode off."""

    host = 'dgx-a100-80'
    settings = {}

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        self.now = 1000.0
        self.servers = ''
        self.use(self.host)

    def use(self, name):
        self.machine = machines.load(name)
        with self.machine.operation(write=True):
            for gpu in self.machine.gpus:
                gpu.state.vfs = 0
                gpu.state.mig = gpu.state.pending = False
        self.address = model.PciAddress.parse(self.machine.gpus[0].address)
        self.platform = dataclasses.replace(
            platform.open_platform(self.machine),
            records=store.of(self.state_path))
        self.addCleanup(self.machine.uninstall)
        privileged.run_here(self.platform)
        self.reader = reader.HostReader(self.platform)
        self.records = store.Store(self.state_path)
        self.govern()

    def govern(self, mode='off', **options):
        """Govern all GPUs by one policy, as a starting agent does."""
        self.settings = policies.Settings(policies=(policy.Policy(
            'p', policy.Mode(mode), **options),))
        self.start()

    def start(self):
        node = nodes.Node(self.platform, self.state_path, self.settings)
        node.reader = self.reader
        node.cloud.claimed = lambda _: self.servers
        self.transactions = node.transactions
        self.preparer = node.preparer
        self.preparer._clock = lambda: self.now

    def gpu(self):
        return self.reader.snapshot().gpu(self.address)

    def prepare(self):
        return self.preparer.prepare(self.gpu())

    def steps(self):
        """Make the GPU ready. Return the names of the steps."""
        outcome = self.prepare()
        self.assertEqual('', outcome.reason)
        return [step.action.name for step in outcome.steps]

    def state(self):
        """State of the simulated GPU."""
        return self.machine.gpu(self.address).state

    def is_now(self):
        """MIG mode and number of virtual functions that the hardware has."""
        with self.machine.operation():
            return self.state().mig, self.state().vfs

    def vgpus(self):
        """Type id of each vGPU, by the index of its virtual function."""
        numbers = {str(vf.address): vf.index for vf in self.gpu().vfs}
        with self.machine.operation():
            return {numbers[vgpu.function]: vgpu.type_id
                    for vgpu in self.state().vgpus}

    def cuts(self):
        """(profile id, start) of each GPU instance."""
        with self.machine.operation():
            return sorted((item.profile_id, item.start)
                          for item in self.state().instances.values())

    def set_type(self, index, type_id):
        """Write a vGPU type, as another tool would."""
        self.platform.sysfs.write(
            str(type_id), 'bus', 'pci', 'devices',
            str(self.gpu().vfs[index].address), 'nvidia',
            'current_vgpu_type')
