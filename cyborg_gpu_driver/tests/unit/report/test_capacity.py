# SPDX-License-Identifier: Apache-2.0


from oslotest import base

from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.report import samples

HOST = 'compute1'


class TestInventories(base.BaseTestCase):

    def reserved(self, found, owned=None):
        return {item.resource_class: (item.total, item.reserved)
                for item in capacity.inventories(found, owned or {}, HOST)}

    def test_of_the_providers_that_are_reported(self):
        host, found = samples.host()
        for device in samples.reported(host, found, HOST):
            self.assertEqual(
                {(item.provider_uuid, item.resource_class,
                  item.num_accelerators) for item in device.deployables},
                {(item.provider, item.resource_class, item.total)
                 for item in capacity.inventories(
                     found[device.address], {}, HOST)})

    def test_what_cannot_be_reported_has_none(self):
        self.assertEqual({}, self.reserved(
            [samples.t4_offer(problem='MIG mode is on')]))

    def test_a_whole_gpu_is_reserved_while_it_is_busy(self):
        whole = policy.Policy('p', policy.Mode.PASSTHROUGH)
        for processes, reserved in ((0, 0), (2, 1)):
            gpu = boards.gpu((), mig=None, processes=processes)
            self.assertEqual({'PGPU': (1, reserved)},
                             self.reserved(offers.offers(gpu, whole)))
        # A guest has the GPU: NVML sees neither it nor its processes.
        gpu = boards.gpu((), mig=None, visible_to_nvml=False,
                         driver='vfio-pci')
        self.assertEqual({'PGPU': (1, 0)},
                         self.reserved(offers.offers(gpu, whole)))

    def test_reserved(self):
        for total, owned, creatable, expected in (
                (7, 0, 7, 0),
                (7, 3, 4, 0),
                # Instances of other tools, and blocked placements.
                (7, 3, 1, 3),
                (1, 0, 0, 1),
                (1, 1, 0, 0),
                # More owned than the total, or more creatable: a snapshot
                # taken in the middle of a change.
                (2, 3, 0, 0),
                (2, 0, 5, 0),
                (2, 0, -5, 2)):
            offer = samples.t4_offer(total=total, creatable=creatable)
            self.assertEqual({'CUSTOM_NVIDIA_T4_2B': (total, expected)},
                             self.reserved([offer], {offer.profile: owned}))

    def test_what_is_withheld_is_promised_to_nobody(self):
        for found in samples.host()[1].values():
            for item in capacity.inventories(found, {}, HOST, withheld=True):
                self.assertEqual(item.total, item.reserved)
        # Placement already counts what is bound.
        offer = samples.t4_offer()
        (item,) = capacity.inventories([offer], {offer.profile: 1}, HOST,
                                       withheld=True)
        self.assertEqual(item.total - 1, item.reserved)
