# SPDX-License-Identifier: Apache-2.0

"""What one claim stands for: its vGPU and its GPU instance."""

import dataclasses
import uuid

import fixtures
import pynvml

from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.tests.unit.program.bind import binder_case


class SharedInstancesTest(binder_case.BinderCase):

    machine = 'rtxpro6000x8'
    gpu = '0000:16:00.0'
    policy = policy.Policy('p', policy.Mode.MIG, vgpu_types=('DC-1-8Q',))

    def setUp(self):
        super().setUp()
        self.parts = self.node.claimed_vgpus

    def entry(self, number, start):
        """An entry with a GPU instance of its own."""
        gpu = self.live.gpu(self.address)
        entry = gpu_record.Claim(
            handle=str(uuid.UUID(int=number)), gpu=self.address,
            function=gpu.vfs[number].address, mdev_type='nvidia-1555',
            profile='DC-1-8Q', phase=gpu_record.Phase.BOUND, profile_id=47,
            placement=model.Placement(start, 3), vfio=True)
        (made,) = self.parts.create_instance(
            gpu, (entry,), entry.instance, [])
        return made

    def test_an_entry_of_before_a_reboot_keeps_nothing_alive(self):
        entry = self.entry(1, 0)
        for stale in ({'instance_id': entry.instance_id + 1},
                      {'boot': 'an earlier one'}):
            self.records.put_claims(entry, dataclasses.replace(
                entry, handle=str(uuid.UUID(int=2)), **stale))
            self.assertEqual(entry.instance, self.parts.destroy_instance(
                entry))
            self.assertEqual([], self.truth()[0])
            entry = self.entry(1, 0)

    def test_a_vgpu_is_not_settled_on_an_id_that_is_reused(self):
        # The vGPU is on another tool's instance, whose id an entry had before.
        self.stranger(47, 0, 3)
        entry = self.entry(1, 3)
        (strangers,) = [
            item.instance_id for item in self._live()
            if item.placement.start == 0]
        self.records.put_claims(entry, dataclasses.replace(
            entry, handle=str(uuid.UUID(int=2)), instance_id=strangers,
            placement=model.Placement(6, 3)))
        self.assertEqual(entry, self.parts.create_vgpu(
            self.live.gpu(self.address), entry))
        self.assertEqual(strangers, self.parts.instance_under(entry))
        self.assertEqual([(47, 0), (47, 3)], self.truth()[0])

    def test_an_instance_that_is_not_needed_is_not_on_the_gpu(self):
        # The NVIDIA driver puts the vGPU of the second entry on the instance
        # of the first one.
        first, second = self.entry(1, 0), self.entry(2, 3)
        self.records.put_claims(first, second)
        moved = self.parts.create_vgpu(
            self.live.gpu(self.address), second)
        self.assertEqual(first.instance, moved.instance)
        self.assertEqual([(47, 0)], self.truth()[0])

    def _live(self):
        self.live.refresh()
        return self.live.gpu(self.address).mig.instances


class MovedTest(binder_case.BinderCase):

    machine = 'rtxpro6000x8'
    gpu = '0000:16:00.0'
    policy = policy.Policy('p', policy.Mode.MIG, vgpu_types=('DC-1-8Q',))

    def test_offers_follow_the_journal(self):
        # For example, another process has moved an entry to another instance.
        self.stranger(47, 0, 3)
        self.live.refresh()
        self.assertEqual({'DC-1-8Q': 9}, self.creatable())
        gpu = self.live.gpu(self.address)
        (instance,) = gpu.mig.instances
        self.records.put_claims(gpu_record.Claim(
            handle=str(uuid.UUID(int=1)), gpu=self.address,
            function=gpu.vfs[0].address, mdev_type='nvidia-1555',
            profile='DC-1-8Q', phase=gpu_record.Phase.BOUND, profile_id=47,
            placement=instance.placement,
            instance_id=instance.instance_id))
        self.assertEqual({'DC-1-8Q': 11}, self.creatable())


class LostTest(binder_case.BinderCase):

    def test_what_a_gpu_has_that_was_lost_meanwhile(self):
        handle = self.handle('1g.5gb')
        self.binder.bind(*handle)
        self.stranger(14, 2, 2)
        self.machine.faults.fail(
            'nvmlDeviceGetMigMode', pynvml.NVML_ERROR_GPU_IS_LOST,
            times=None, address=self.gpu)
        self.live.refresh()
        self.assertIsNone(self.live.gpu(self.address).mig)
        self.machine.faults.clear()
        self.binder.unbind(*handle)
        self.assertEqual(([(14, 2)], []), self.truth())
        self.assert_quiet()


class SlowTest(binder_case.BinderCase):

    def test_a_slow_reading_does_not_replace_a_newer_one(self):
        read = reader.HostReader.gpu

        def slow(host_reader, address):
            found = read(host_reader, address)
            self.stranger(14, 2, 2)
            with fixtures.MonkeyPatch(f'{reader.__name__}.HostReader.gpu',
                                      read):
                self.live.refresh_gpu(address)
            return found

        with fixtures.MonkeyPatch(f'{reader.__name__}.HostReader.gpu', slow):
            self.live.refresh_gpu(self.address)
        self.assertEqual(([(14, 2)], []), self.belief())
