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
from oslo_config import cfg

from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd import base

_T4 = '''
[gpu_devices]
enabled_vgpu_types = nvidia-231, nvidia-223
[vgpu_nvidia-231]
device_addresses = 0000:3b:00.0,0000:5e:00.0
[vgpu_nvidia-223]
device_addresses = 0000:af:00.0
'''
_A100 = '''
[gpu_devices]
enabled_vgpu_types = nvidia-622, nvidia-623
[vgpu_nvidia-622]
device_addresses = 0000:07:00.4, 0000:07:00.5, 0000:0f:00.4
[vgpu_nvidia-623]
device_addresses = 0000:07:00.6
'''


class ImportCase(base.CommandCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.output = os.path.join(self.directory, 'policies.conf')

    def file(self, text, name='old.conf'):
        path = os.path.join(self.directory, name)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(textwrap.dedent(text))
        return path

    def imported(self, host, *texts):
        """Import files; the resulting policies and lines of differences."""
        files = [self.file(text, f'{number}.conf')
                 for number, text in enumerate(texts)]
        output, errors = self.run_program('--simulate', host, 'config',
                                          'import', *files)
        self.file(output, 'policies.conf')
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[self.output], default_config_dirs=[])
        return policies.read(conf).policies, errors.splitlines()

    def refused(self, host, text, *reasons):
        path = self.file(text)
        output, errors = self.run_program(
            '--simulate', host, 'config', 'import', path, '--output',
            self.output, code=1)
        self.assertEqual('', output)
        self.assertFalse(os.path.exists(self.output))
        self.assertEqual(1, len(errors.splitlines()), errors)
        for reason in (path, *reasons):
            self.assertIn(reason, errors)

    def reported(self, host, *prepared):
        """The address, resource class and total of each reported provider.

        :param prepared: addresses of GPUs that are bound to vfio-pci.
        """
        state = os.path.join(self.directory, 'machine')
        machine = simulator.Machine.load(host, state)
        for address in prepared:
            machine.bind_driver(address, 'vfio-pci')
        return [(row['address'], row['resource_class'], row['total'])
                for row in self.rows(
                    '--config-file', self.output, '--simulate', host,
                    '--state', state, 'report', 'show')
                if row['reported'] == 'yes']


class PoliciesTest(ImportCase):

    def values(self, made):
        return [(item.name, item.mode.value,
                 [str(address) for address in item.match_address],
                 list(item.profiles), list(item.vgpu_types))
                for item in made]

    def test_t4(self):
        made, _ = self.imported('t4x4', _T4)
        self.assertEqual(
            [('vgpu-1', 'vgpu', ['0000:3b:00.0', '0000:5e:00.0'], [],
              ['T4-2Q']),
             ('vgpu-2', 'vgpu', ['0000:af:00.0'], [], ['T4-2B']),
             ('passthrough', 'passthrough', [], [], [])], self.values(made))
        self.assertEqual(
            [('0000:3b:00.0', 'CUSTOM_NVIDIA_T4_2Q', 8),
             ('0000:5e:00.0', 'CUSTOM_NVIDIA_T4_2Q', 8),
             ('0000:af:00.0', 'CUSTOM_NVIDIA_T4_2B', 8),
             ('0000:d8:00.0', 'PGPU', 1)],
            self.reported('t4x4', '0000:d8:00.0'))

    def test_functions_become_their_gpu_in_mode_mig(self):
        made, _ = self.imported('dgx-a100-80', _A100)
        self.assertEqual(
            [('mig-1', 'mig', ['0000:07:00.0'], ['1g.10gb', '2g.20gb'],
              ['A100DX-1-10C', 'A100DX-2-20C']),
             ('mig-2', 'mig', ['0000:0f:00.0'], ['1g.10gb'],
              ['A100DX-1-10C']),
             ('passthrough', 'passthrough', [], [], [])], self.values(made))
        self.assertEqual(
            [('0000:07:00.0', 'CUSTOM_NVIDIA_1G_10GB', 7),
             ('0000:07:00.0', 'CUSTOM_NVIDIA_2G_20GB', 3),
             ('0000:0f:00.0', 'CUSTOM_NVIDIA_1G_10GB', 7)],
            self.reported('dgx-a100-80'))

    def test_both_services_on_one_host(self):
        made, lines = self.imported('mixed', '''
            [gpu_devices]
            enabled_vgpu_types = nvidia-705
            [vgpu_nvidia-705]
            device_addresses = 0000:41:01.0
            ''', '''
            [devices]
            enabled_mdev_types = nvidia-230
            [mdev_nvidia-230]
            max_instances = 4
            mdev_class = CUSTOM_DESKTOP
            ''')
        self.assertEqual(
            [('vgpu-1', 'vgpu', ['0000:3b:00.0'], [], ['T4-1Q']),
             ('mig-1', 'mig', ['0000:41:00.0'], ['1g.10gb+me'],
              ['A100DX-1-10CME']),
             ('passthrough', 'passthrough', [], [], [])], self.values(made))
        self.assertEqual(
            [('0000:3b:00.0', 'CUSTOM_NVIDIA_T4_1Q', 4),
             ('0000:41:00.0', 'CUSTOM_NVIDIA_1G_10GB_ME', 1),
             ('0000:81:00.0', 'PGPU', 1), ('0000:c1:00.0', 'PGPU', 1)],
            self.reported('mixed', '0000:81:00.0'))
        self.assertEqual((('T4-1Q', 4),), made[0].max_instances)
        self.assertFalse([line for line in lines
                          if 'max_instances' in line])
        self.assertTrue([line for line in lines
                         if 'resources:CUSTOM_DESKTOP=1' in line])

    def test_a_limit_for_all_gpus_of_the_host(self):
        made, lines = self.imported('t4x4', '''
            [devices]
            enabled_mdev_types = nvidia-230
            [mdev_nvidia-230]
            max_instances = 6
            ''')
        self.assertEqual((('T4-1Q', 6),), made[0].max_instances)
        self.assertIn(
            'max_instances = 6 limited 4 GPUs together and now limits each '
            'of them', ' '.join(lines))
        self.assertEqual([6] * 4, [
            total for _, _, total in self.reported('t4x4')])

    def test_a_type_of_which_an_instance_holds_several(self):
        made, _ = self.imported('rtxpro6000x8', '''
            [devices]
            enabled_mdev_types = nvidia-1555, nvidia-1561
            [mdev_nvidia-1555]
            device_addresses = {}
            [mdev_nvidia-1561]
            device_addresses = {}
            '''.format(*self.addresses('rtxpro6000x8')))
        self.assertEqual(
            [('mig-1', [], ['DC-1-8Q']),
             ('mig-2', ['1g.24gb+gfx'], ['DC-1-24Q'])],
            [(item.name, list(item.profiles), list(item.vgpu_types))
             for item in made[:-1]])

    def addresses(self, host):
        return [row['address'] for row in self.rows(
            '--simulate', host, 'gpu', 'list')][:2]

    def test_functions_that_are_not_enabled_yet(self):
        address = '0000:41:00.5'
        host = self.file('''
            driver_version: '550.144.02'
            cuda_version: 12040
            gpus:
              - model: a100-80
                address: '0000:41:00.0'
                framework: mdev
            ''', 'host.yaml')
        made, lines = self.imported(host, f'''
            [gpu_devices]
            enabled_vgpu_types = nvidia-615
            [vgpu_nvidia-615]
            device_addresses = {address}
            ''')
        self.assertEqual(['0000:41:00.0'],
                         [str(item) for item in made[0].match_address])
        self.assertTrue([line for line in lines if f'{address} does not exist '
                         'now' in line])


class DifferencesTest(ImportCase):

    def said(self, lines, *parts):
        """Check that exactly one line contains all the parts."""
        found = [line for line in lines
                 if all(part in line for part in parts)]
        self.assertEqual(1, len(found), lines)

    def test_names(self):
        _, lines = self.imported('t4x4', _T4)
        self.said(lines, 'resources:VGPU=1 with '
                  'trait:CUSTOM_NVIDIA_1EB8_T4_2Q -> '
                  'resources:CUSTOM_NVIDIA_T4_2Q=1')
        self.said(lines, '_0000:5e:00.0 -> ', '_gpu_0000:5e:00.0_T4-2Q')
        self.said(lines, 'Delete the servers that have vGPUs of the old ')
        self.said(lines, 'replace nvidia_gpu_driver with ')
        self.assertNotIn('Nova', '\n'.join(lines))

    def test_the_new_names_are_those_of_the_report(self):
        _, lines = self.imported('dgx-a100-80', _A100)
        text = '\n'.join(lines)
        for row in self.rows('--config-file', self.output, '--simulate',
                             'dgx-a100-80', 'report', 'show'):
            if row['reported'] == 'no':
                continue
            self.assertIn(row['name'], text)
            self.assertIn(f'resources:{row["resource_class"]}=1', text)
            named = [part for part in text.split() if part.startswith(
                'trait:CUSTOM_NVIDIA_20B2')]
            self.assertTrue({part[len('trait:'):] for part in named}
                            & set(row['traits']))

    def test_functions(self):
        _, lines = self.imported('dgx-a100-80', _A100)
        self.said(lines, '0000:07:00.0: 17 of its 20 virtual functions are '
                  'no longer reported as GPUs for passthrough')
        self.said(lines, '0000:07:00.0: the files name 3 of its 20 virtual '
                  'functions')
        self.said(lines, '0000:47:00.0: not offered for passthrough')
        self.said(lines, '0000:07:00.0: it is no longer reported as a GPU')
        _, lines = self.imported('dgx-a100-80', _A100, '''
            [gpu_devices]
            filter_sriov_vfs = true
            ''')
        self.assertNotIn('virtual functions are no longer reported',
                         '\n'.join(lines))

    def test_what_is_unknown_here(self):
        made, lines = self.imported('t4x4', _T4 + '''
            [devices]
            enabled_mdev_types = nvidia-999, i915-GVTg_V5_4, nvidia-231
            [mdev_nvidia-999]
            device_addresses = 0000:d8:00.0, 0000:17:00.0
            [mdev_nvidia-231]
            device_addresses = 0000:3b:00.0
            '''.replace('            ', ''))
        self.assertEqual('nvidia-999', made[2].vgpu_types[0])
        self.said(lines, '0000:d8:00.0: nvidia-999 is not offered', 'T4-2Q')
        self.said(lines, '0000:17:00.0 is neither a GPU of this host')
        self.said(lines, '0000:3b:00.0: nvidia-231 is named in',
                  '[vgpu_nvidia-231]', '[mdev_nvidia-231]')
        self.said(lines, 'i915-GVTg_V5_4')
        self.said(lines, 'remove nvidia-999 from [devices]')
        self.said(lines, '_pci_0000_d8_00_0 -> none yet')

    def test_nova_for_all_leaves_what_is_named(self):
        made, lines = self.imported('t4x4', _T4, '''
            [devices]
            enabled_mdev_types = nvidia-230
            ''')
        self.assertEqual([['0000:3b:00.0', '0000:5e:00.0'],
                          ['0000:af:00.0'], ['0000:d8:00.0'], []],
                         [[str(address) for address in item.match_address]
                          for item in made])
        self.assertEqual([('T4-2Q',), ('T4-2B',), ('T4-1Q',), ()],
                         [item.vgpu_types for item in made])
        self.said(lines, '[vgpu_nvidia-223] takes precedence on 0000:af')

    def test_nova_alone_gave_nothing_away_whole(self):
        _, lines = self.imported('mixed', '''
            [devices]
            enabled_mdev_types = nvidia-230
            [gpu]
            policies = old
            ''')
        self.said(lines, '0000:81:00.0: it is offered for passthrough now')
        self.said(lines, '0000:41:00.0: not offered for passthrough',
                  'MIG mode is on')
        self.assertNotIn('0000:41:00.0: from now on', '\n'.join(lines))
        self.said(lines, 'already have [gpu] policies')

    def test_two_types_of_one_profile(self):
        _, lines = self.imported('rtxpro6000x8', '''
            [gpu_devices]
            enabled_vgpu_types = nvidia-1562, nvidia-1561
            [vgpu_nvidia-1561]
            device_addresses = 0000:16:00.4
            [vgpu_nvidia-1562]
            device_addresses = 0000:16:00.5
            ''')
        self.said(lines, '0000:16:00.0: DC-1-24Q is not offered',
                  'same GPU instance profile')

    def test_vgpus_that_live_now(self):
        state = os.path.join(self.directory, 'state')
        old = self.file(_T4)
        platform.open_platform('t4x4', state).sysfs.write(
            '3c9e2a1b-0000-4000-8000-000000000001', 'bus', 'pci', 'devices',
            '0000:3b:00.0', 'mdev_supported_types', 'nvidia-231', 'create')
        _, errors = self.run_program('--simulate', 't4x4', '--state', state,
                                     'config', 'import', old)
        self.said(errors.splitlines(), '0000:3b:00.0: it has 1 vGPU(s)')


class RefusalTest(ImportCase):

    def test_two_types_at_one_address(self):
        self.refused('t4x4', _T4.replace('af:00', '3b:00'),
                     '[vgpu_nvidia-223] device_addresses = 0000:3b:00.0',
                     'has the type nvidia-231')

    def test_time_sliced_and_mig_backed_on_one_gpu(self):
        self.refused('dgx-a100-80', _A100.replace('nvidia-623',
                                                  'nvidia-615'),
                     '[vgpu_nvidia-615] device_addresses = 0000:07:00.6',
                     'A100DX-1-10C')

    def test_the_files_of_another_host(self):
        self.refused('hgx-h100', _T4, 'this host has no GPU')
        self.refused('hgx-h100', '[devices]\nenabled_mdev_types = '
                     'nvidia-231\n', '[devices] enabled_mdev_types',
                     'no GPU of this host has this type')

    def test_a_bad_option(self):
        self.refused('t4x4', _T4.replace('0000:af', 'af'),
                     '[vgpu_nvidia-223] device_addresses = af:00.0')


class OutputTest(ImportCase):

    def run_import(self, *arguments, code=0):
        return self.run_program('--simulate', 't4x4', 'config', 'import',
                                *arguments, code=code)

    def text(self, path):
        with open(path, encoding='utf-8') as stream:
            return stream.read()

    def test_a_file_is_overwritten_by_force_alone(self):
        old = self.file(_T4)
        shown, _ = self.run_import(old)
        output, errors = self.run_import(old, '--output', self.output)
        self.assertEqual('', output)
        self.assertIn('Delete the servers', errors)
        self.assertEqual(shown, self.text(self.output))
        self.file('mine', 'policies.conf')
        _, errors = self.run_import(old, '--output', self.output, code=1)
        self.assertIn('--force', errors)
        self.assertEqual('mine', self.text(self.output))
        self.run_import(old, '--output', self.output, '--force')
        self.assertEqual(shown, self.text(self.output))

    def test_what_is_imported_is_never_overwritten(self):
        old = self.file(_T4)
        link = os.path.join(self.directory, 'link')
        os.symlink(old, link)
        for source, path in ((old, old), (old, link), (link, old)):
            _, errors = self.run_import(source, '--output', path, '--force',
                                        code=1)
            self.assertIn('imported', errors)
        self.assertEqual(_T4, self.text(old))

    def test_a_place_that_cannot_be_written(self):
        _, errors = self.run_import(
            self.file(_T4), '--output',
            os.path.join(self.directory, 'no', 'where'), code=1)
        self.assertIn('--output', errors)
        self.assertIn('No such file', errors)
