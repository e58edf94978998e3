# SPDX-License-Identifier: Apache-2.0

"""What all the GPUs of a cloud offer together."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.tests.unit.cloud import samples

_MIG = 'CUSTOM_GPU_KIND_MIG'
_HOPPER = 'CUSTOM_GPU_MODEL_H100_PCIE'
_FOUND = (
    samples.provider(used=2, reserved=1, traits=(
        _MIG, samples.MODEL, 'CUSTOM_GPU_NUMA_3', 'CUSTOM_NVIDIA_20B2')),
    samples.provider(gpu='0000:0f:00.0', traits=(
        _MIG, samples.MODEL, 'CUSTOM_GPU_NUMA_3')),
    samples.provider(host='compute2', traits=(
        _MIG, _HOPPER, 'CUSTOM_GPU_NUMA_3')),
    samples.provider('2g.20gb', total=3, reserved=1),
    samples.provider('passthrough', '0000:47:00.0', total=1, traits=(
        'CUSTOM_GPU_KIND_PASSTHROUGH', 'CUSTOM_GPU_MEMORY_80GB')),
    samples.provider('1g.10gb.me'), samples.provider('T4-2B'),
    samples.provider('nvlink-2', '0000:65:00.0', total=1,
                     resource_class='CUSTOM_NVIDIA_NVLINK_2_H100_NVL'),
    samples.provider('nvlink-2', '0000:98:00.0', total=1,
                     resource_class='CUSTOM_NVIDIA_NVLINK_2_A100_PCIE_40GB'),
    # One without an inventory offers nothing.
    dataclasses.replace(samples.provider('4g.40gb'), inventories={}))


class EntriesTest(base.BaseTestCase):

    def test_a_definition_file_can_name_each(self):
        found = hosts.catalogue(_FOUND)
        self.assertEqual(
            ['1g.10gb', '1g.10gb.me', '2g.20gb', 'T4-2B',
             'nvlink-2_A100_PCIE_40GB', 'nvlink-2_H100_NVL', 'passthrough'],
            [*found])
        for label, nodes in found.items():
            self.assertEqual({definition.profile_class(label)},
                             {node.resource_class for node in nodes})
