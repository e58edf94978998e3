# SPDX-License-Identifier: Apache-2.0

"""What each simulated board offers, read like real hardware."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.simulator import platform as simulated
from cyborg_gpu_driver.simulator.machine import machine as simulator

MDEV = model.Framework.MDEV_VF
VENDOR = model.Framework.VENDOR_VFIO


class SimulatedCase(base.BaseTestCase):

    def gpus(self, host):
        machine = simulator.Machine.load(host)
        self.addCleanup(machine.uninstall)
        return reader.HostReader(
            simulated.open_platform(machine)).snapshot().gpus

    def totals(self, gpu, mode, *types):
        """The total of each offer, all of it creatable on an empty GPU."""
        found = offers.offers(
            gpu, policy.Policy('p', mode, vgpu_types=types))
        for offer in found:
            self.assertEqual(('', offer.total),
                             (offer.problem, offer.creatable), offer)
        return {offer.profile: offer.total for offer in found}


class TestOffers(SimulatedCase):

    def test_mig_backed(self):
        for host, framework, expected in (
                ('dgx-a100-40', MDEV, {
                    '1g.5gb': 7, '1g.5gb+me': 1, '2g.10gb': 3,
                    '3g.20gb': 2, '4g.20gb': 1, '7g.40gb': 1}),
                ('a100x4-vfio', VENDOR, {
                    '1g.10gb': 7, '1g.10gb+me': 1, '1g.20gb': 4,
                    '2g.20gb': 3, '3g.40gb': 2, '4g.40gb': 1,
                    '7g.80gb': 1}),
                ('a30x4', MDEV, {
                    '1g.6gb': 4, '1g.6gb+me': 1, '2g.12gb': 2,
                    '2g.12gb+me': 1, '4g.24gb': 1}),
                ('rtxpro6000x8', VENDOR, {
                    '1g.24gb+gfx': 4, '2g.48gb+gfx': 2,
                    '4g.96gb+gfx': 1})):
            gpu = self.gpus(host)[0]
            self.assertIs(framework, gpu.framework)
            self.assertEqual(expected, self.totals(gpu, policy.Mode.MIG))

    def test_scheduler_where_no_instance_is_shared(self):
        rules = policy.Policy('x', policy.Mode.MIG,
                              scheduler=model.SchedulerPolicy.EQUAL_SHARE)
        self.assertEqual([], offers.check_policy(
            self.gpus('rtxpro6000x8')[0], rules))
        (said,) = offers.check_policy(self.gpus('a100x4-vfio')[0], rules)
        self.assertIn('vgpu_scheduler: has no effect', said)

    def test_time_slice_where_the_driver_takes_none(self):
        rules = policy.Policy('x', policy.Mode.VGPU,
                              scheduler=model.SchedulerPolicy.EQUAL_SHARE,
                              time_slice=2000000)
        gpu = self.gpus('l40sx4')[0]
        self.assertEqual([], offers.check_policy(gpu, rules))
        (said,) = offers.check_policy(dataclasses.replace(
            gpu, scheduler=dataclasses.replace(gpu.scheduler,
                                               takes_slice=False)), rules)
        self.assertIn('vgpu_time_slice_us: has no effect', said)

    def test_fewer_functions_than_handles(self):
        """Handles that may be bound side by side never share a function.

        An A100 of 40 GB with a vGPU type for 1g.10gb is such a GPU: of 18
        handles that may be bound side by side, 16 have a function.
        """
        rules = policy.Policy('x', policy.Mode.MIG)
        gpu = self.gpus('a100x4-vfio')[0]
        self.assertEqual([], offers.check_policy(gpu, rules))
        few = dataclasses.replace(gpu, vfs=gpu.vfs[:16])
        (said,) = offers.check_policy(few, rules)
        self.assertIn(f'policy x, GPU {gpu.address}: profiles: 1g.10gb has 5 '
                      'of 7 attach handles', said)
        parents = [
            parent for item in offers.offers(few, rules)
            if item.profile != '7g.80gb' for parent in item.parents]
        self.assertEqual(16, len(parents))
        self.assertEqual(16, len(set(parents)))
        self.assertEqual([], offers.check_policy(few, dataclasses.replace(
            rules, profiles=('1g.10gb', '2g.20gb'))))
