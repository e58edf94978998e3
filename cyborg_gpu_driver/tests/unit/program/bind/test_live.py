# SPDX-License-Identifier: Apache-2.0

"""What the live view has between two snapshots."""

import uuid

import fixtures
import pynvml

from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.tests.unit.program.bind import binder_case


class VfioTest(binder_case.BinderCase):

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
