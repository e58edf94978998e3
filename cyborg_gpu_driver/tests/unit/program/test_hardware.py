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

"""Making one vGPU, where nobody else looks first."""

import dataclasses
import uuid

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.program import privileged_vgpu
from cyborg_gpu_driver.tests.unit.program import binder_case


class VgpuCase(binder_case.BinderCase):

    vfio = False
    policy = policy.Policy('p', policy.Mode.VGPU)

    def setUp(self):
        super().setUp()
        self.tools = hardware.Hardware(privileged.machine())
        self.entry = journal.Entry(
            handle=str(uuid.UUID(int=1)), gpu=self.address,
            function=model.PciAddress.parse(self.function),
            mdev_type=self.types[0], profile='x', phase=journal.Phase.BOUND,
            vfio=self.vfio)


class VgpuTests:

    def test_made_once_and_not_again(self):
        self.assertIsNone(self.tools.vgpu_type(self.entry))
        for _ in range(2):
            self.assertEqual(self.entry, self.tools.make_vgpu(self.entry))
            self.assertEqual(self.types[0],
                             self.tools.vgpu_type(self.entry))
        self.assertEqual(1, len(self.truth()[1]))

    def test_what_is_there_is_not_made_something_else(self):
        self.tools.make_vgpu(self.entry)
        before = self.truth()
        other = dataclasses.replace(self.entry, mdev_type=self.types[1])
        error = self.assertRaises(exception.BindRefused,
                                  self.tools.make_vgpu, other)
        self.assertIn(self.types[0], str(error))
        self.assertEqual(before, self.truth())

    def test_removed_once_and_not_again(self):
        self.tools.make_vgpu(self.entry)
        gpu = self.live.gpu(self.address)
        for _ in range(2):
            self.tools.remove_vgpu(self.entry, gpu)
            self.assertEqual([], self.truth()[1])

    def test_only_vendor_vfio_tells_of_an_instance(self):
        self.tools.make_vgpu(self.entry)
        self.assertIsNone(self.tools.instance_under(self.entry))


class MdevTest(VgpuTests, VgpuCase):

    machine = 't4x4'
    gpu = function = '0000:3b:00.0'
    types = ('nvidia-231', 'nvidia-233')


class VfioTest(VgpuTests, VgpuCase):

    machine = 'a100x4-vfio'
    gpu = '0000:b1:00.0'
    function = '0000:b1:00.5'
    types = ('nvidia-696', 'nvidia-697')
    vfio = True

    def test_a_function_that_is_gone_has_no_vgpu(self):
        gone = dataclasses.replace(
            self.entry, function=model.PciAddress.parse('0000:b1:1f.7'))
        self.assertIsNone(self.tools.vgpu_type(gone))
        self.tools.remove_vgpu(gone, self.live.gpu(self.address))

    def test_another_type_is_not_cleared(self):
        privileged_vgpu.set_vgpu_type(self.function, 697)
        before = self.truth()
        self.tools.remove_vgpu(self.entry, self.live.gpu(self.address))
        self.assertEqual(before, self.truth())
