# SPDX-License-Identifier: Apache-2.0

"""Which GPUs a report sends in full."""

from __future__ import annotations

import dataclasses

from oslotest import base

from cyborg_gpu_driver.report import drift
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.tests.unit.report import samples

_PLENTY = 1000


class SteadyTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        host, offered = samples.host()
        self.devices = samples.reported(host, offered, 'compute1')
        self.there = {deployable.provider_uuid for device in self.devices
                      for deployable in device.deployables}
        self.now = 0.0
        self.steady = drift.Steady(lambda: self.now)

    def full(self, devices=None, there=None, room=_PLENTY):
        """Addresses of the devices that a report sends in full."""
        devices = self.devices if devices is None else devices
        thinned = self.steady.thin(
            devices, self.there if there is None else there, room)
        self.assertEqual([device.address for device in devices],
                         [device.address for device in thinned])
        for device, sent in zip(devices, thinned, strict=True):
            self.assertIn(sent, (device, build.stub_device(device.address)))
        return [device.address for device in thinned if not device.stub]

    def settle(self):
        for _ in range(2):
            self.full()
        self.assertEqual([], self.full())

    def all(self):
        return [device.address for device in self.devices]

    def test_a_changed_device_is_full_twice(self):
        self.settle()
        first, *others = self.devices
        changed = [dataclasses.replace(first, model='other'), *others]
        self.assertEqual([first.address], self.full(changed))
        self.assertEqual([first.address], self.full(changed))
        self.assertEqual([], self.full(changed))

    def test_who_uses_a_gpu_is_no_change(self):
        self.settle()
        first, *others = self.devices
        self.assertEqual([], self.full(
            [dataclasses.replace(first, busy='somebody'), *others]))

    def test_all_are_full_after_the_interval(self):
        self.settle()
        self.now += drift.INTERVAL - 1
        self.assertEqual([], self.full())
        self.now += 1
        self.assertEqual(self.all(), self.full())
        self.assertEqual([], self.full())

    def test_a_device_without_a_provider_stays_full(self):
        """Cyborg could not create the provider, or has deleted it."""
        self.settle()
        last = self.devices[-1]
        there = self.there - {last.deployables[0].provider_uuid}
        for _ in range(4):
            self.assertEqual([last.address], self.full(there=there))

    def test_without_placement_only_changes_are_full(self):
        self.settle()
        self.assertEqual([], [
            device for device in self.steady.thin(self.devices, None, 0)
            if not device.stub])

    def test_a_stub_takes_no_room(self):
        """An unhealthy GPU in use is a stub that has its providers."""
        first, second, *_ = self.devices
        self.assertEqual([second.address], [
            device.address for device in self.steady.thin(
                (dataclasses.replace(first, stub=True), second), set(), 0)
            if not device.stub])

    def test_new_gpus_come_a_few_at_a_time(self):
        """The first is always sent, the others while there is room."""
        numbers = [len(device.deployables) for device in self.devices]
        self.assertGreater(len(numbers), 2)
        first, second, *_ = self.all()
        self.assertEqual([first], self.full(there=set(), room=0))
        self.assertEqual([first], self.full(
            there=set(), room=numbers[0] + min(numbers[1:]) - 1))
        self.assertEqual([first, second], self.full(
            there=set(), room=numbers[0] + numbers[1])[:2])
        made = {deployable.provider_uuid
                for deployable in self.devices[0].deployables}
        self.assertIn(second, self.full(there=made, room=0))

    def test_room_for_what_placement_has_takes_no_room(self):
        self.assertEqual(self.all(), self.full(room=0))


class RoomTest(base.BaseTestCase):

    def test_room(self):
        """A quarter of the timeout, with 18 requests for each provider."""
        self.assertEqual(83, drift.room(60, 0.01))
        self.assertEqual(13, drift.room(60, 0.06))
        self.assertEqual(0, drift.room(60, float('inf')))
