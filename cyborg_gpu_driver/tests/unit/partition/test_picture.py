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

import dataclasses

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import gpu_map
from cyborg_gpu_driver.tests.unit.partition import boards
from cyborg_gpu_driver.tests.unit.partition.mig import test_geometry

A100 = '''\
  unit          0       1       2       3       4       5       6       7
            ┌───────────────────────────────┬───────────────┬───────┬───────┐
            │            4g.40gb            │    2g.20gb    │1g.10gb│   ·   │
            │              id 7             │     web-1     │  +me  │   ·   │
            │                               │               │  id 9 │       │
            └───────────────────────────────┴───────────────┴───────┴───────┘
  compute   ■■■■■■■  7 of 7 slices
  memory    ■■■■■■■□  7 of 8 units
  fits now  nothing'''

RTX = '''\
  unit        0    1    2    3    4    5    6    7    8    9    10   11
            +----+----+----+--------------+-----------------------------+
            | .  | .  | .  |1g.24gb+me.all|          2g.48gb-me         |
            | .  | .  | .  |     id 7     |             id 8            |
            +----+----+----+--------------+-----------------------------+
  compute   ###-  3 of 4 slices
  memory    ---#########  9 of 12 units
  fits now  1 x 1g.24gb-me'''


def drawn(board, *live, **kwargs):
    gpu = boards.gpu(boards.ALL[board], live)
    return '\n'.join(gpu_map.grid_lines(gpu, **kwargs))


class TestLines(base.BaseTestCase):
    maxDiff = None

    def test_a100(self):
        self.assertEqual(A100, drawn(
            'A100-80', ('4g.40gb', 0), ('2g.20gb', 4), ('1g.10gb+me', 6),
            owners={model.Placement(4, 2): 'web-1',
                    model.Placement(0, 2): 'nobody'}))

    def test_plain(self):
        self.assertEqual(RTX, drawn(
            'RTX PRO 6000', ('1g.24gb+me.all', 3), ('2g.48gb-me', 6),
            pens=gpu_map.ASCII))

    def test_owner_that_would_break_the_lines(self):
        lines = drawn('A30', ('4g.24gb', 0), owners={
            model.Placement(0, 4): 'a\nb\x1b[1m'}).splitlines()
        self.assertIn('a?b?[1m', lines[3])

    def test_empty(self):
        lines = drawn('A30').splitlines()
        self.assertEqual(['  compute   □□□□  0 of 4 slices',
                          '  memory    □□□□  0 of 4 units'], lines[5:7])
        self.assertEqual(
            '  fits now  4 × 1g.6gb or 1 × 1g.6gb+me or 2 × 2g.12gb or '
            '1 × 2g.12gb+me or', lines[7])
        self.assertEqual('            1 × 4g.24gb', lines[8])

    def test_unknown_instances(self):
        gpu = boards.gpu(boards.A30)
        gpu = dataclasses.replace(gpu, mig=dataclasses.replace(
            gpu.mig, instances=(
                model.GpuInstance(model.Placement(0, 2), 99, 1),
                model.GpuInstance(model.Placement(1, 2), 99, 2),
                model.GpuInstance(model.Placement(4, 1), 98, 3))))
        text = '\n'.join(gpu_map.grid_lines(gpu))
        self.assertIn('profile 99', text)
        self.assertIn('also      profile 99 at 1:2', text)
        self.assertIn('4 of 5 units', text)

    def test_a_grid_too_fine_is_listed(self):
        profile = model.GpuInstanceProfile(
            1, '1g.1gb', 1, 1024, 64,
            tuple(model.Placement(start, 1) for start in range(64)))
        gpu = boards.gpu((profile,), [('1g.1gb', 40)])
        lines = gpu_map.grid_lines(gpu)
        self.assertEqual('  unit 40   1g.1gb: id 7', lines[0])
        self.assertLessEqual(max(map(len, lines)), gpu_map.WIDTH)

    def test_mig_off(self):
        gpu = boards.gpu(boards.A30, enabled=False)
        self.assertEqual(('  MIG mode is off',), gpu_map.grid_lines(gpu))

    def test_no_placements(self):
        for profiles in ((), (model.GpuInstanceProfile(
                1, '1g.1gb', 1, 1024, 64, ()),)):
            self.assertEqual(
                ('  MIG mode is on, but NVML lists no placements',),
                gpu_map.grid_lines(boards.gpu(profiles)))

    def test_an_instance_is_drawn_without_placements(self):
        gpu = boards.without_placements(
            boards.gpu(boards.A30, [('1g.6gb', 1)]))
        drawn = '\n'.join(gpu_map.grid_lines(gpu))
        self.assertIn('1g.6gb', drawn)
        self.assertIn('id 7', drawn)

    def test_time_sliced(self):
        address = model.PciAddress(0, 1, 0, 0)
        gpu = boards.gpu(
            (), mig=None,
            mdev_types=(model.MdevType('nvidia-231', 'T4-2B', 5, 8),),
            mdevs=tuple(model.Mdev(uuid, address, type_id)
                        for uuid, type_id in (
                            ('a', 'nvidia-231'), ('b', 'nvidia-9'),
                            ('c', 'nvidia-231'), ('d', 'nvidia-231'))))
        self.assertEqual(('  T4-2B  ■■■□□□□□  3 of 8', '  nvidia-9  1'),
                         gpu_map.grid_lines(gpu))

    def test_time_sliced_without_mdev(self):
        gpu = boards.gpu(
            boards.A30, enabled=False,
            framework=model.Framework.VENDOR_VFIO,
            vgpu_types=(model.VgpuType(
                720, 'A30-12C', 'Compute', 12288, 2),),
            vfs=tuple(model.VirtualFunction(
                model.PciAddress(0, 1, 0, number), number, 'nvidia', None,
                current_vgpu_type=vgpu_type)
                for number, vgpu_type in ((4, 720), (5, 0))))
        self.assertEqual(('  A30-12C  ■□  1 of 2',), gpu_map.grid_lines(gpu))

    def test_nothing_to_draw(self):
        self.assertEqual((), gpu_map.grid_lines(boards.gpu((), mig=None)))

    @hypothesis.given(test_geometry.occupied_boards(), st.text(max_size=40),
                      st.sampled_from([gpu_map.UNICODE, gpu_map.ASCII]))
    def test_every_state_fits_a_terminal(self, reached, owner, pens):
        grid, occupancy = reached
        profiles = {item.profile_id: item for item in grid.profiles}
        gpu = boards.gpu(grid.profiles, [
            (profiles[profile_id].name, place.start)
            for profile_id, place in occupancy.taken])
        lines = gpu_map.grid_lines(gpu, {place: owner for _profile, place in
                                         occupancy.taken[:1]}, pens)
        self.assertLessEqual(max(map(len, lines)), gpu_map.WIDTH)
        self.assertEqual(list(lines), [line.rstrip() for line in lines])
        box = lines[1:lines.index(next(
            line for line in lines if line.startswith('  compute'))) - 1]
        self.assertEqual(1, len(set(map(len, box))))
        self.assertEqual(
            len(occupancy.taken) + grid.units
            - occupancy.mask.bit_count() + 1,
            sum(letter in ''.join(pens.top) for letter in
                lines[1].replace(pens.line, '')
                if letter != ' '))


class TestPens(base.BaseTestCase):

    def test_by_encoding(self):
        for encoding, pens in (('utf-8', gpu_map.UNICODE),
                               ('ascii', gpu_map.ASCII),
                               ('latin-1', gpu_map.ASCII),
                               (None, gpu_map.ASCII),
                               ('no-such', gpu_map.ASCII)):
            self.assertIs(pens, gpu_map.pens_for(encoding), encoding)
