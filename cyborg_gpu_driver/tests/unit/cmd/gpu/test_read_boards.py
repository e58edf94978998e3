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

"""The output of ``offer list`` for each kind of board.

The figures are repeated here from public tables, so that the tests do not
rely on the simulator's model files.
"""

import os
import re

import fixtures
import yaml

from cyborg_gpu_driver.tests.unit.cmd import base

MIG = re.compile(r'\d+g\.\d+gb.*', re.ASCII)
VGPU = re.compile(r'[A-Z0-9]+-\d+[ABCQ]4?', re.ASCII)

SUPPORT = {
    'NVIDIA A100-SXM4-40GB': {'MIG', 'vGPU'},
    'NVIDIA A30': {'MIG', 'vGPU'},
    'NVIDIA H100 80GB HBM3': {'MIG', 'vGPU'},
    'NVIDIA A40': {'vGPU'},
    'NVIDIA RTX A6000': {'vGPU'},
    'NVIDIA A10': {'vGPU'},
    'NVIDIA A16': {'vGPU'},
    'Tesla T4': {'vGPU'},
    'Tesla V100-PCIE-32GB': {'vGPU'},
}
"""Which boards have MIG and vGPU: a published table for OpenStack users."""

# The total of each profile by model: vGPU types from NVIDIA's vGPU type
# tables (vGPU for Compute, release 7, and vGPU Software User Guide), GPU
# instances from the MIG User Guide and mig-parted's shipped configuration.
TOTALS = {
    'a10': {'A10-1Q': 24, 'A10-2B': 12, 'A10-3Q': 8, 'A10-4C': 6,
            'A10-6C': 4, 'A10-8C': 3, 'A10-12C': 2, 'A10-24C': 1},
    'a16': {'A16-1Q': 16, 'A16-2B': 8, 'A16-4C': 4, 'A16-8C': 2,
            'A16-16C': 1},
    'l4': {'L4-1Q': 24, 'L4-2B': 12, 'L4-4C': 6, 'L4-6C': 4, 'L4-8C': 3,
           'L4-12C': 2, 'L4-24C': 1},
    'rtx-a6000': {'RTXA6000-1Q': 32, 'RTXA6000-2B': 24, 'RTXA6000-4C': 12,
                  'RTXA6000-6C': 8, 'RTXA6000-8C': 6, 'RTXA6000-12C': 4,
                  'RTXA6000-16C': 3, 'RTXA6000-24C': 2, 'RTXA6000-48C': 1},
    'v100': {'V100D-1Q': 32, 'V100D-2Q': 16, 'V100D-4C': 8, 'V100D-8C': 4,
             'V100D-16C': 2, 'V100D-32C': 1},
    'h100-nvl': {'1g.12gb': 7, '1g.12gb+me': 1, '1g.24gb': 4, '2g.24gb': 3,
                 '3g.47gb': 2, '4g.47gb': 1, '7g.94gb': 1, 'H100L-4C': 23,
                 'H100L-6C': 15, 'H100L-11C': 8, 'H100L-15C': 6,
                 'H100L-23C': 4, 'H100L-47C': 2, 'H100L-94C': 1},
    'h200-nvl': {'1g.18gb': 7, '1g.18gb+me': 1, '1g.35gb': 4, '2g.35gb': 3,
                 '3g.71gb': 2, '4g.71gb': 1, '7g.141gb': 1, 'H200-4C': 32,
                 'H200-7C': 20, 'H200-8C': 16, 'H200-14C': 10,
                 'H200-17C': 8, 'H200-28C': 5, 'H200-35C': 4,
                 'H200-70C': 2, 'H200-141C': 1},
    'b200': {'1g.23gb': 7, '1g.23gb+me': 1, '1g.45gb': 4, '2g.45gb': 3,
             '3g.90gb': 2, '4g.90gb': 1, '7g.180gb': 1, 'B200X-180C': 1},
    'b300': {'1g.34gb': 7, '1g.34gb+me': 1, '1g.67gb': 4, '2g.67gb': 3,
             '3g.135gb': 2, '4g.135gb': 1, '7g.269gb': 1, 'B300X-269C': 1},
}
EVERY_MIG_PROFILE = {'h100-nvl', 'h200-nvl', 'b200', 'b300'}
FRAMEWORK = {'v100': 'mdev'}


class BoardsTest(base.CommandCase):

    def offered(self, host):
        """The total of each profile by model, from its first board."""
        models = {row['address']: row['model'] for row in self.rows(
            '--simulate', host, 'gpu', 'list')}
        found = {}
        for row in self.rows('--simulate', host, 'offer', 'list', '--all'):
            found.setdefault(models[row['address']], {}).setdefault(
                row['profile'], row['total'])
        return found

    def test_which_boards_have_mig_and_vgpu(self):
        found = {}
        for host in ('dgx-a100-40', 'a30x4', 'hgx-h100', 'vgpu-only'):
            # The last host has one board of each model.
            gpus = None if host == 'vgpu-only' else 2
            for model, profiles in self.offered(
                    self.part(host, gpus)).items():
                self.assertIn('passthrough', profiles)
                found[model] = {
                    what for what, pattern in (('MIG', MIG), ('vGPU', VGPU))
                    if any(map(pattern.fullmatch, profiles))}
        self.assertEqual(SUPPORT, found)

    def test_h100_nvl(self):
        profiles = self.offered('h100nvlx2')['NVIDIA H100 NVL']
        # 1 to 7 instances of 12 to 94 GB; up to 23 vGPUs of at least 4 GB.
        instances = {name: total for name, total in profiles.items()
                     if MIG.fullmatch(name)}
        sizes = [int(re.search(r'\.(\d+)gb', name)[1]) for name in instances]
        self.assertEqual(
            (1, 7, 12, 94),
            (min(instances.values()), max(instances.values()), min(sizes),
             max(sizes)))
        smallest = min((name for name in profiles if VGPU.fullmatch(name)),
                       key=lambda name: int(re.search(r'-(\d+)', name)[1]))
        self.assertEqual(('H100L-4C', 23), (smallest, profiles[smallest]))

    def test_totals_are_those_of_public_tables(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'h.yaml')
        for model, expected in TOTALS.items():
            with open(path, 'w', encoding='utf-8') as stream:
                yaml.safe_dump({
                    'driver_version': '580.65.05', 'gpus': [
                        {'model': model, 'address': '0000:41:00.0',
                         'framework': FRAMEWORK.get(model, 'vendor-vfio')}]},
                    stream)
            found, = self.offered(path).values()
            self.assertEqual(expected, {
                name: found.get(name) for name in expected}, model)
            if model in EVERY_MIG_PROFILE:
                self.assertEqual({*expected, 'passthrough'}, {*found}, model)
