# SPDX-License-Identifier: Apache-2.0

"""Simulated hardware with all the parts that a bind needs."""

import collections
import ctypes
import itertools
import json
import os
import time
import uuid

import fixtures
import pynvml
from oslotest import base

from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import binder
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import platform as simulated
from cyborg_gpu_driver.tests.unit.program import machines
from cyborg_gpu_driver.tests.unit.program import nodes


class BinderCase(base.BaseTestCase):

    machine = 'dgx-a100-40'
    gpu = '0000:07:00.0'
    policy = policy.Policy('p', policy.Mode.MIG)
    bind_calls = 40
    """Limit of the NVML calls of a bind, which reads its GPU before and
    afterwards."""
    only = None
    """The only GPU of a machine that replaces ``machine``, as in a host file.
    Its address is ``gpu``."""

    def setUp(self):
        super().setUp()
        # On a slow machine, an unbind must not reach its time limit.
        self.patch(binder, 'UNBIND_SECONDS', 300.0)
        if self.only:
            self.machine = os.path.join(
                self.useFixture(fixtures.TempDir()).path, 'host.yaml')
            with open(self.machine, 'w', encoding='utf-8') as stream:
                json.dump({'driver_version': '580.65.05',
                           'gpus': [
                               dict(self.only, address=self.gpu)]}, stream)
        self.machine = machines.load(self.machine, gpu=self.gpu)
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.address = model.PciAddress.parse(self.gpu)
        self.published = []
        self.cloud = services.Services()
        self.cloud.publish = self.published.append
        self.restart()

    def restart(self):
        """Start anew, as a new process does, on the same machine and files."""
        platform_ = simulated.open_platform(self.machine)
        self.addCleanup(self.machine.uninstall)
        self.addCleanup(setattr, privileged, '_platform', None)
        privileged.run_here(platform_)
        store._stores.pop(self.state_path, None)
        self.node = nodes.Node(
            platform_, self.state_path,
            policies.Settings(policies=(self.policy,)),
            self.cloud)
        self.records = self.node.records
        # Each server comes up, however soon a test deletes it.
        self.records.clock = itertools.count(
            time.time(), 2 * binder.CAME_UP_SECONDS).__next__
        self.live = self.node.live
        self.binder = self.node.binder
        self.live.refresh()

    def handle(self, profile, number=0):
        """A handle's (function, type, UUID) as Cyborg would send it."""
        gpu = self.live.gpu(self.address)
        (offer,) = [offer for offer in self.live.offers(gpu)
                    if offer.profile == profile]
        parent = offer.parents[number % len(offer.parents)]
        return (str(parent), offer.vgpu_type_id,
                str(uuid.uuid5(uuid.NAMESPACE_DNS, f'{profile} {number}')))

    def creatable(self):
        """How many more of each profile are offered."""
        gpu = self.live.gpu(self.address)
        return {offer.profile: offer.creatable
                for offer in self.live.offers(gpu)}

    def stranger(self, profile_id, start, size):
        """Create an instance, as another tool would."""
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu), profile_id,
            ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size)))

    def truth(self):
        """Return what the hardware has, whatever the live view has."""
        with self.machine.operation():
            gpu = self.machine.gpu(self.gpu).state
            return (sorted((item.profile_id, item.start)
                           for item in gpu.instances.values()),
                    sorted((vgpu.uuid, vgpu.function, vgpu.type_id)
                           for vgpu in gpu.vgpus))

    def belief(self):
        """Return what the live view has, in the form of :meth:`truth`."""
        gpu = self.live.gpu(self.address)
        return (sorted((item.profile_id, item.placement.start) for item
                       in (gpu.mig.instances if gpu.mig else ())),
                sorted((vgpu.uuid, str(vgpu.function),
                        int(vgpu.type_id.split('-')[1]))
                       for vgpu in gpu.vgpus))

    def assert_quiet(self):
        """Assert that view, journal and hardware agree and all is finished."""
        self.assertEqual(self.truth(), self.belief())
        entries = self.records.claims()
        self.assertEqual({gpu_record.Phase.BOUND} if entries else set(),
                         {entry.phase for entry in entries})
        self.assertEqual(
            sorted((None if entry.vfio else entry.handle,
                    str(entry.function)) for entry in entries),
            [item[:2] for item in self.truth()[1]])

    def calls(self, action, *args):
        """Return the C symbols that an action calls, and how often."""
        self.machine.reset_calls()
        action(*args)
        return collections.Counter(self.machine.calls)
