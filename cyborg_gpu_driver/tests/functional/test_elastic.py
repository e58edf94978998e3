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

"""GPUs of mode auto: offered in every role until a server decides."""

from cyborg_gpu_driver.demo import nova_part
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.functional import gpu_cloud

IDLE = {'passthrough': (1, 0), '1g.10gb': (7, 0), '3g.40gb': (2, 0),
        'A100DX-20C': (4, 0), 'A100DX-40C': (2, 0)}


class ElasticCase(gpu_cloud.GpuTestCase):

    starts_reported = True
    roles = 'passthrough,mig,vgpu'
    overrides = {
        'gpu': {'policies': 'elastic,rest'},
        'gpu_policy:elastic': {
            'mode': 'auto', 'roles': 'passthrough,mig,vgpu',
            'match_address': '0000:07:00.0', 'profiles': '1g.10gb,3g.40gb',
            'vgpu_types': 'A100DX-20C,A100DX-40C'},
        'gpu_policy:rest': {'mode': 'off'}}

    def setUp(self):
        super().setUp()
        self.whole = self.profile('PGPU')
        self.slice = self.profile('CUSTOM_NVIDIA_3G_40GB')
        self.small = self.profile('CUSTOM_NVIDIA_1G_10GB')
        self.vgpu = self.profile('CUSTOM_NVIDIA_A100DX_20C')

    @property
    def world(self):
        """The simulated machine, for what happens to it from outside."""
        return simulator.Machine.load(self.machine, self.hardware_path)

    def is_now(self):
        """Driver, MIG mode and whether there are virtual functions."""
        state = self.hardware()
        return self.world.drivers.of(self.gpu), state.mig, bool(state.vfs)

    def assert_closed(self, *labels):
        """Nothing of these can be had."""
        found = self.reserved()
        for label in labels:
            total, reserved = found[label]
            self.assertEqual(total, reserved, label)


class ElasticTest(ElasticCase):

    def test_an_idle_gpu_is_offered_in_all_roles(self):
        self.assertEqual(IDLE, self.reserved())
        self.assertEqual(('vfio-pci', False, False), self.is_now())

    def test_a_slice_decides_and_gives_back(self):
        server = self.cloud.bind(self.slice)
        # Reserved before the bind has returned.
        self.assert_closed('passthrough', 'A100DX-20C', 'A100DX-40C')
        self.assertEqual((2, 0), self.reserved()['3g.40gb'])
        self.assertEqual(('nvidia', True, True), self.is_now())
        for other in (self.whole, self.vgpu):
            self.assertRaises(nova_part.NoCandidates, self.cloud.bind, other)
        second = self.cloud.bind(self.slice)
        self.report()
        self.cloud.unbind(server)
        self.report()
        self.assert_closed('passthrough', 'A100DX-20C', 'A100DX-40C')
        self.cloud.unbind(second)
        self.report()
        self.assertEqual(IDLE, self.reserved())
        self.assertEqual(('vfio-pci', False, False), self.is_now())

    def test_a_vgpu_decides_and_gives_back(self):
        server = self.cloud.bind(self.vgpu)
        self.assert_closed('passthrough', '1g.10gb', '3g.40gb')
        self.assertEqual(('nvidia', False, True), self.is_now())
        self.report()
        self.assert_closed('passthrough', '1g.10gb', '3g.40gb')
        self.cloud.unbind(server)
        self.report()
        self.assertEqual(IDLE, self.reserved())

    def test_a_whole_gpu_decides_and_gives_back(self):
        server = self.cloud.bind(self.whole)
        self.world.attach_whole(self.gpu)
        self.report()
        self.assert_closed('1g.10gb', '3g.40gb', 'A100DX-20C', 'A100DX-40C')
        self.world.detach_whole(self.gpu)
        self.cloud.unbind(server)
        self.report()
        self.assertEqual(IDLE, self.reserved())
        self.cloud.unbind(self.cloud.bind(self.small))
