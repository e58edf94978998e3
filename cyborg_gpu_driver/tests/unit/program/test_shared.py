# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Which of the journal's entries keep a GPU instance alive."""

import dataclasses
import uuid

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.program import shared
from cyborg_gpu_driver.tests.unit.program import binder_case


class SharedInstancesTest(binder_case.BinderCase):

    machine = 'rtxpro6000x8'
    gpu = '0000:16:00.0'
    policy = policy.Policy('p', policy.Mode.MIG, vgpu_types=('DC-1-8Q',))

    def setUp(self):
        super().setUp()
        self.tools = hardware.Hardware(privileged.machine())
        self.shared = shared.SharedInstances(self.tools, self.journal)

    def entry(self, number, start):
        """One with an instance of its own."""
        gpu = self.live.gpu(self.address)
        return self.tools.make_instance(journal.Entry(
            handle=str(uuid.UUID(int=number)), gpu=self.address,
            function=gpu.vfs[number].address, mdev_type='nvidia-1555',
            profile='DC-1-8Q', phase=journal.Phase.BOUND, profile_id=47,
            placement=model.Placement(start, 3), vfio=True))

    def test_an_entry_of_before_a_reboot_keeps_nothing_alive(self):
        entry = self.entry(1, 0)
        stale = dataclasses.replace(
            entry, handle=str(uuid.UUID(int=2)),
            instance_id=entry.instance_id + 1)
        self.journal.put(entry, stale)
        self.assertEqual(entry.instance, self.shared.remove(
            entry, self.live.refresh_gpu))
        self.assertEqual([], self.truth()[0])

    def test_a_vgpu_is_not_settled_on_an_id_that_is_reused(self):
        # The vGPU lies on a stranger's, whose id was an entry's before.
        self.stranger(47, 0, 3)
        entry = self.entry(1, 3)
        (strangers,) = [
            item.instance_id for item in self._live()
            if item.placement.start == 0]
        self.journal.put(entry, dataclasses.replace(
            entry, handle=str(uuid.UUID(int=2)), instance_id=strangers,
            placement=model.Placement(6, 3)))
        self.tools.make_vgpu(entry)
        self.assertEqual(strangers, self.tools.instance_under(entry))
        self.assertEqual((entry, strangers), self.shared.settle(entry))
        self.assertEqual([(47, 0), (47, 3)], self.truth()[0])

    def _live(self):
        self.live.refresh()
        return self.live.gpu(self.address).mig.instances

    def test_an_entry_without_an_instance_has_none_to_remove(self):
        entry = dataclasses.replace(self.entry(1, 0), placement=None,
                                    profile_id=None, instance_id=None)
        self.assertIsNone(self.shared.remove(
            entry, self.live.refresh_gpu))
        self.assertIsNone(entry.instance)
        self.assertEqual([(47, 0)], self.truth()[0])
