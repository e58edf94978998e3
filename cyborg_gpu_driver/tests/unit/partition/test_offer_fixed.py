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

"""Fixed vGPUs for a Nova that leaves it to handles who manages them."""

import json

from oslotest import base

from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import offers
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.report import build

GPU = model.PciAddress.parse('0000:16:00.0')


def gpu(*types):
    """A GPU whose virtual functions carry vGPUs of these types; 0 none."""
    return model.Gpu(
        address=GPU, vendor_id='10de', device_id='26b9', class_code='0302',
        driver='nvidia', visible_to_nvml=True, sriov_totalvfs=4,
        sriov_numvfs=len(types), framework=model.Framework.VENDOR_VFIO,
        vgpu_types=(model.VgpuType(1, 'X-12Q', 'Quadro', 12288, 4),
                    model.VgpuType(2, 'X-24Q', 'Quadro', 24576, 2)),
        vfs=tuple(model.VirtualFunction(
            model.PciAddress(0, 0x16, 0, number + 1), number, 'nvidia',
            None, current_vgpu_type=type_id)
            for number, type_id in enumerate(types)))


class TestFixedOffers(base.BaseTestCase):

    def offers(self, board, *fixed, **kwargs):
        return offers.offers(board, policy.Policy(
            'p', policy.Mode.VGPU, fixed_vgpus=fixed),
            **{'managed_handles': True, **kwargs})

    def test_functions_are_handed_out_as_they_are(self):
        (offer,) = self.offers(gpu(0, 1, 1, 1), ('X-12Q', 2))
        self.assertEqual(('', 2, 2), (offer.problem, offer.total,
                                      offer.creatable))
        device = build.device(gpu(0, 1, 1, 1), [offer], 'host')
        (deployable,) = device.deployables
        self.assertEqual('CUSTOM_NVIDIA_X_12Q', deployable.resource_class)
        self.assertEqual(
            [('PCI', '2', 'no'), ('PCI', '3', 'no')],
            [(handle.attach_type, info['function'], info['managed'])
             for handle in deployable.handles
             for info in [json.loads(handle.attach_info)]])

    def test_not_before_all_are_made(self):
        (offer,) = self.offers(gpu(0, 1, 0, 0), ('X-12Q', 2))
        self.assertEqual(('1 of 2 are made yet', 0),
                         (offer.problem, offer.creatable))
        self.assertEqual((), build.device(
            gpu(), [offer], 'host').deployables)

    def test_what_cannot_be(self):
        (offer,) = self.offers(gpu(0, 1), ('Y-1Q', 1))
        self.assertIn('no vGPU type Y-1Q', offer.problem)
        (offer,) = self.offers(gpu(0, 1))
        self.assertIn('names no fixed_vgpus', offer.problem)

    def test_only_where_nova_can_take_them(self):
        (offer,) = self.offers(gpu(0, 1), ('X-12Q', 1),
                               managed_handles=False)
        self.assertIn('left to Nova', offer.problem)
        # On demand goes before: the operator has said so.
        found = offers.offers(gpu(0, 0), policy.Policy(
            'p', policy.Mode.VGPU, vgpu_types=('X-12Q',)),
            vfio_handles=True, managed_handles=True)
        self.assertEqual([False], [offer.as_made for offer in found])
