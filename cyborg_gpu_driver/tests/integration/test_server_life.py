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

"""A server with a GPU, from its first boot to its end."""

from __future__ import annotations

from cyborg_gpu_driver.tests.integration import base

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'


class ServerLifeTest(base.TestCase):

    def test_a_slice_stays_through_a_reboot_and_goes_with_the_server(self):
        server = self.boot(self.flavor_of(_SLICE))
        (arq,) = self.arqs(server)
        self.assertEqual('Bound', arq['state'])
        (slices,) = self.slices(arq['hostname']).values()
        self.assertEqual((1, 1), slices)

        server = self.reboot(server)

        self.assertEqual('ACTIVE', server.status, server.fault)
        self.assertEqual([arq['attach_handle_uuid']],
                         [item['attach_handle_uuid']
                          for item in self.arqs(server)])
        self.assertEqual([arq['attach_handle_uuid']], [
            vgpu.uuid for gpu in self.cloud.hardware(
                arq['hostname']).values() for vgpu in gpu.vgpus])

        self.delete(server)

        self.assert_nothing_left()
