# SPDX-License-Identifier: Apache-2.0

import dataclasses

from cyborg.accelerator.common import utils as cyborg_utils
from cyborg.objects import base as cyborg_base
from oslotest import base

from cyborg_gpu_driver.report import objects
from cyborg_gpu_driver.tests.unit.report import samples


class TestObjects(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        host, offers = samples.host()
        *others, whole = samples.reported(host, offers, 'compute1')
        self.reported = (*others, dataclasses.replace(whole, stub=True))
        self.devices = objects.driver_devices(self.reported)

    def test_round_trip_through_rpc(self):
        serializer = cyborg_base.CyborgObjectSerializer()
        sent = serializer.serialize_entity(None, self.devices)
        received = serializer.deserialize_entity(None, sent)
        self.assertEqual(len(self.devices), len(received))
        for before, after in zip(self.devices, received, strict=True):
            self.assertTrue(cyborg_base.obj_equal_prims(before, after))

    def test_pci_texts_are_those_of_cyborgs_own_driver(self):
        # A host that switches from that driver keeps its devices.
        text = cyborg_utils.pci_str_to_json('0000:d8:00.0')
        device = self.devices[2]
        self.assertEqual(text, device.controlpath_id.cpid_info)
        self.assertEqual(text, device.deployable_list[0]
                         .attach_handle_list[0].attach_info)

    def test_mdev_keys_are_those_of_cyborgs_own_driver(self):
        handle = self.reported[1].deployables[0].handles[0]
        mark = handle.attach_info.rpartition('"vgpu_mark": "')[2][:-2]
        self.assertEqual(
            cyborg_utils.mdev_str_to_json('0000:3b:00.0', 'nvidia-231',
                                          mark),
            handle.attach_info)
