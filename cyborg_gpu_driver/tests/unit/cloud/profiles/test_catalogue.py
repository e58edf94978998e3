# SPDX-License-Identifier: Apache-2.0

"""What all the GPUs of a cloud offer together."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import resources
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
    samples.provider('4g.40gb', resource_class='', total=0))


class EntriesTest(base.BaseTestCase):

    def entries(self, **filters):
        return {entry.label: entry for entry in hosts.catalogue(
            [one for one in _FOUND if one.resource_class], **filters)}

    def test_an_entry(self):
        self.assertEqual(hosts.CatalogueEntry(
            '1g.10gb', 'CUSTOM_NVIDIA_1G_10GB', (_MIG,),
            ('compute1', 'compute2'),
            gpus=3, total=21, used=2, reserved=1, free=18),
            self.entries()['1g.10gb'])

    def test_a_definition_file_can_name_each(self):
        found = self.entries()
        self.assertEqual(
            ['1g.10gb', '1g.10gb.me', '2g.20gb', 'T4-2B',
             'nvlink-2_A100_PCIE_40GB', 'nvlink-2_H100_NVL', 'passthrough'],
            [*found])
        for label, entry in found.items():
            self.assertEqual(entry.resource_class,
                             definition.profile_class(label))

    def test_filters(self):
        self.assertEqual(14, self.entries(host='compute1')['1g.10gb'].total)
        for model in ('h100', 'H100-PCIE', 'H100_PCIE'):
            self.assertEqual(
                [7], [entry.total for entry
                      in self.entries(model=model).values()])
        self.assertEqual(['passthrough'],
                         [*self.entries(kind='passthrough')])
        self.assertEqual({}, self.entries(model='B200'))

    def test_one_without_an_inventory_offers_nothing(self):
        gone = dataclasses.replace(samples.provider(), inventories={})
        self.assertEqual((), hosts.catalogue([gone]))


class ReachTest(base.BaseTestCase):

    def test_who_asks_for_a_class(self):
        one = resources.group('PGPU')
        two = resources.group('CUSTOM_NVIDIA_1G_10GB')
        profiles = [resources.DeviceProfile('both', (one, two)),
                    resources.DeviceProfile('a', (one,)),
                    resources.DeviceProfile('b', (two,))]
        self.assertEqual(('a', 'both'),
                         hosts.profiles_asking(profiles, 'PGPU'))
        flavors = [resources.Flavor(
            name, 1, 1, 1, True, ((resources.PROFILE_KEY, profile),))
            for name, profile in (('x', 'a'), ('y', 'b'), ('v', 'both'))]
        flavors.append(resources.Flavor('plain', 1, 1, 1, True, ()))
        self.assertEqual(('v', 'x'),
                         hosts.flavors_naming(flavors, ('a', 'both')))
