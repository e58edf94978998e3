# SPDX-License-Identifier: Apache-2.0

"""The partitions of rebuilt claims."""

import uuid

from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.program.bind import group_case


class RebuiltTest(group_case.GroupCase):

    gpu_options = {'simulate': 'hgx-h100-vfio'}
    options = {'mode': 'vgpu', 'vgpu_types': ['H100XM-80C']}

    def test_the_partition_is_known_as_soon_as_the_claim(self):
        offer = self.offers()[0]
        handle = str(uuid.uuid4())
        self.running.binder.bind(str(offer.parents[0]), offer.vgpu_type_id,
                                 handle)
        (before,) = self.records.claims()
        self.assertIsNotNone(before.fabric_partition)
        host_files.damage(self.state_path, before.gpu)
        self.running.reconciler._rebuilder._cloud.requests = (
            lambda: reconcile.Requests((reconcile.Request(
                handle, 'arq', None, before.function, before.mdev_type),)))
        self.report()
        (after,) = store.of(self.state_path).read(before.gpu).claims
        self.assertEqual(before.fabric_partition, after.fabric_partition)
