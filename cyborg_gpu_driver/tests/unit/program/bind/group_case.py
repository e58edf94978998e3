# SPDX-License-Identifier: Apache-2.0


import os
import uuid

import fixtures
import pynvml
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import node
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.bind import binder
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.tests.functional import host_files

OPTIONS = {'mode': 'nvlink'}


class GroupCase(base.BaseTestCase):
    """A board with NVLink, and the parts of an agent on it."""

    host = 'hgx-h100'
    options = OPTIONS
    gpu_options: dict = {}

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.host_path = host_files.write_unprepared(self.directory,
                                                     self.host)
        self.hardware_path = os.path.join(self.directory, 'hardware.json')
        self.state_path = os.path.join(self.directory, 'state')
        self.addCleanup(self.end)
        self.running = None
        self.begin()

    def begin(self, reports=True):
        """Start the agent's parts, as a new process does."""
        self.end()
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[])
        for name, value in {
                'simulate': self.host_path, 'policies': ['p'],
                'simulate_state': self.hardware_path,
                'state_path': self.state_path, **self.gpu_options}.items():
            conf.set_override(name, value, group='gpu')
        gpu_conf.register_policy(conf, 'p')
        for name, value in self.options.items():
            conf.set_override(name, value, group='gpu_policy:p')
        self.running = node.Node(conf, policies.read(conf), 'host1')
        # On a slow machine, an unbind must not reach its time limit.
        self.patch(binder, 'UNBIND_SECONDS', 300.0)
        self.running.act_here()
        self.machine = privileged.machine()
        self.world = pynvml.nvmlLib.machine
        if reports:
            self.report()

    def end(self):
        """Stop the agent's parts, as the end of a process does."""
        if getattr(self, 'running', None) is not None:
            self.running.platform.nvml.reset()
            pynvml.nvmlLib.machine.uninstall()
            privileged._platform = None
            self.running = None

    @property
    def records(self):
        return self.running.records

    def report(self):
        """Do the part of the agent's report that concerns the machine."""
        running = self.running
        lost = running.records.check()
        running.binder.recover()
        running.live.refresh()
        running.reconciler.look(lost)
        for act in (running.preparer.prepare,):
            for gpu in running.live.host().gpus:
                act(gpu)
        running.live.refresh()

    def offers(self):
        """Return the offers of all GPUs. Each offer is a group of GPUs."""
        return [offer for gpu in self.running.live.host().gpus
                for offer in self.running.live.offers(gpu)]

    def modules(self, offer):
        """Module ids of the GPUs of a group."""
        return tuple(sorted(self.world.host.module(str(address))
                            for address in offer.members))

    def offer(self, *modules):
        """The offer of the group of these modules."""
        (found,) = [offer for offer in self.offers()
                    if self.modules(offer) == modules]
        return found

    def handle(self, *modules):
        """The arguments with which Cyborg calls the agent for a group."""
        offer = self.offer(*modules)
        return (str(offer.gpu), offer.vgpu_type_id, str(uuid.uuid5(
            uuid.NAMESPACE_DNS, repr(modules))))

    def bind(self, *modules):
        handle = self.handle(*modules)
        self.running.binder.bind(*handle)
        return handle

    def free(self):
        """The modules of each group that is available."""
        return {self.modules(offer) for offer in self.offers()
                if offer.creatable}

    def assert_sound(self):
        """Assert that partitions match owners and no GPU has two owners."""
        self.assertEqual((), self.world.damage)
        owners = {}
        for entry in self.records.claims():
            self.assertIs(gpu_record.Phase.BOUND, entry.phase)
            self.assertNotIn(entry.gpu, owners)
            owners[entry.gpu] = entry
        for entry in owners.values():
            for address in entry.gpus:
                self.assertEqual(entry.handle, owners[address].handle)
        self.assertEqual(
            tuple(sorted({entry.fabric_partition
                          for entry in owners.values()
                          if entry.fabric_partition is not None})),
            self.world.active_partitions)

    def address(self, text):
        return model.PciAddress.parse(text)
