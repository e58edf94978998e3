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

import os
import textwrap

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import legacy


class LegacyTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path

    def file(self, text, name='cyborg.conf'):
        path = os.path.join(self.directory, name)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(textwrap.dedent(text))
        return path

    def read(self, text):
        return legacy.read([self.file(text)])

    def refused(self, text, group, option, reason):
        path = self.file(text)
        error = self.assertRaises(exception.LegacyOptionError, legacy.read,
                                  [path])
        self.assertIn(f'{path}: [{group}] {option} = ', str(error))
        self.assertIn(reason, str(error))

    def test_both_services(self):
        cyborg = self.file('''
            [gpu_devices]
            enabled_vgpu_types = nvidia-231, nvidia-223
            filter_sriov_vfs = true
            [vgpu_nvidia-231]
            device_addresses = 0000:3B:00.0,0000:5e:00.0, 0000:3b:00.0
            [vgpu_nvidia-223]
            device_addresses = 0000:af:00.0
            [vgpu_nvidia-1]
            device_addresses = nonsense, but not enabled
            ''')
        nova = self.file('''
            [devices]
            enabled_mdev_types = nvidia-474,mlx5_core-local
            [mdev_nvidia-474]
            device_addresses = 0000:41:00.4
            mdev_class = CUSTOM_SMALL
            max_instances = 3
            [mdev_mlx5_core-local]
            device_addresses = anything
            ''', 'nova.conf')
        found = legacy.read([cyborg, nova])
        self.assertTrue(found.filters_functions)
        self.assertFalse(found.has_policies)
        self.assertEqual(('mlx5_core-local',), found.foreign_types)
        self.assertEqual(
            [('Cyborg', cyborg, 'vgpu_nvidia-231',
              ['0000:3b:00.0', '0000:5e:00.0'], 'VGPU', None),
             ('Cyborg', cyborg, 'vgpu_nvidia-223', ['0000:af:00.0'],
              'VGPU', None),
             ('Nova', nova, 'mdev_nvidia-474', ['0000:41:00.4'],
              'CUSTOM_SMALL', 3)],
            [(item.service.value, item.path, item.group,
              [str(address) for address in item.addresses],
              item.resource_class, item.max_instances)
             for item in found.types])

    def test_one_type_of_nova_is_for_every_gpu(self):
        found = self.read('''
            [devices]
            enabled_mdev_types = nvidia-231
            [gpu]
            policies = x
            ''')
        self.assertEqual(((),), tuple(item.addresses
                                      for item in found.types))
        self.assertTrue(found.has_policies)

    def test_former_names_of_nova(self):
        found = self.read('''
            [devices]
            enabled_vgpu_types = nvidia-231
            [vgpu_nvidia-231]
            device_addresses = 0000:3b:00.0
            ''')
        self.assertEqual(['Nova'], [item.service.value
                                    for item in found.types])
        self.assertEqual('0000:3b:00.0', str(found.types[0].addresses[0]))

    def test_a_group_of_cyborg_is_not_of_nova(self):
        found = self.read('''
            [gpu_devices]
            enabled_vgpu_types = nvidia-231
            [vgpu_nvidia-231]
            device_addresses = 0000:3b:00.0
            [devices]
            enabled_mdev_types = nvidia-231
            ''')
        self.assertEqual([1, 0], [len(item.addresses)
                                  for item in found.types])

    def test_nothing_enabled(self):
        self.refused('', 'gpu_devices', 'enabled_vgpu_types',
                     'nothing to import')
        self.refused('[devices]\nenabled_mdev_types = i915-GVTg_V5_4\n',
                     'gpu_devices', 'enabled_vgpu_types',
                     'nothing to import')

    def test_types_that_are_none(self):
        self.refused('[gpu_devices]\nenabled_vgpu_types = T4-2Q\n',
                     'gpu_devices', 'enabled_vgpu_types', 'nvidia-231')
        self.refused(
            '[devices]\nenabled_mdev_types = nvidia-1, nvidia-1\n',
            'devices', 'enabled_mdev_types', 'named twice')

    def test_addresses_are_required(self):
        self.refused('[gpu_devices]\nenabled_vgpu_types = nvidia-231\n',
                     'vgpu_nvidia-231', 'device_addresses', 'required')
        self.refused('''
            [devices]
            enabled_mdev_types = nvidia-231, nvidia-232
            [mdev_nvidia-231]
            device_addresses = 0000:3b:00.0
            ''', 'mdev_nvidia-232', 'device_addresses', 'required')

    def test_values_that_are_none(self):
        self.refused('''
            [gpu_devices]
            enabled_vgpu_types = nvidia-231
            [vgpu_nvidia-231]
            device_addresses = 3b:00.0
            ''', 'vgpu_nvidia-231', 'device_addresses',
            '0000:3b:00.0')
        for option, value, reason in (
                ('max_instances', '0', 'greater than or equal to 1'),
                ('max_instances', 'many', 'not valid'),
                ('mdev_class', 'GPU', 'CUSTOM_')):
            self.refused(f'''
                [devices]
                enabled_mdev_types = nvidia-231
                [mdev_nvidia-231]
                {option} = {value}
                ''', 'mdev_nvidia-231', option, reason)

    def test_files_that_cannot_be_read(self):
        for path in (os.path.join(self.directory, 'absent'), self.directory,
                     self.file('[no end\nx', 'bad.conf')):
            error = self.assertRaises(exception.InvalidValue, legacy.read,
                                      [path])
            self.assertIn(path, str(error))
