# SPDX-License-Identifier: Apache-2.0

"""The map of a host's GPUs."""

from __future__ import annotations

import dataclasses

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import gpu_map
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.tests.unit.partition import boards

HANDLE = '5a1e7b0c-0000-4000-8000-000000000001'
NOTHING = ()
FUNCTION = model.PciAddress(0, 1, 0, 4)

A100 = """\
0  0000:07:00.0
   mig
  0   1   2   3   4   5   6   7
┌───────────────┬───────┬───┬───┐
│    4g.40gb    │2g.20gb│ 1g│ ░ │
│*5a1e7b0c-0000…│   #8  │+me│ ░ │
│               │       │ #9│   │
└───────────────┴───────┴───┴───┘

* attach handle  # instance id  · free  ░ nothing can be created there now"""


def tile(board, *live, mode=policy.Mode.MIG, claims=NOTHING):
    return gpu_map.tile(boards.gpu(boards.ALL[board], live), 0, mode,
                        claims)


def drawn(*tiles, width=80, pens=gpu_map.UNICODE, **kwargs):
    return '\n'.join(gpu_map.lines(tiles, pens, width, **kwargs))


def states(item):
    return [(box.state.value, str(box.placement), box.name)
            for box in item.boxes]


class TestBoxes(base.BaseTestCase):

    def test_a_unit_that_nothing_reaches_is_blocked(self):
        # A 1g.20gb at 6 would reach unit 7, but it overlaps the 1g.10gb.
        self.assertEqual(
            [('created', '0:4', '4g.40gb'), ('created', '4:1', '1g.10gb'),
             ('free', '5:3', None)],
            states(tile('A100-80', ('4g.40gb', 0), ('1g.10gb', 4))))
        self.assertEqual(
            [('created', '0:4', '4g.40gb'), ('free', '4:2', None),
             ('created', '6:1', '1g.10gb'), ('blocked', '7:1', None)],
            states(tile('A100-80', ('4g.40gb', 0), ('1g.10gb', 6))))
        self.assertEqual(
            [('free', '0:4', None), ('created', '4:2', '2g.20gb'),
             ('free', '6:2', None)],
            states(tile('A100-80', ('2g.20gb', 4))))

    def test_handles(self):
        claims = [(handle, FUNCTION, model.Placement(0, 4))
                  for handle in ('one', 'two')]
        first = tile('A100-80', ('4g.40gb', 0), claims=claims).boxes[0]
        self.assertEqual((gpu_map.State.BOUND, ('one', 'two')),
                         (first.state, first.handles))

    def test_vgpus(self):
        other = dataclasses.replace(FUNCTION, function=5)
        gpu = boards.gpu((), mig=None, mdevs=(
            model.Mdev(HANDLE, FUNCTION, 'nvidia-9'),
            model.Mdev(HANDLE[:-1] + '2', FUNCTION, 'nvidia-9')),
            vfs=(model.VirtualFunction(other, 1, 'nvidia', None,
                                       current_vgpu_type=10),))
        claims = [(HANDLE, FUNCTION, None), ('vf', other, None)]
        item = gpu_map.tile(gpu, 0, policy.Mode.VGPU, claims)
        self.assertEqual(['bound', 'created', 'bound'],
                         [box.state.value for box in item.boxes])
        self.assertIn('1x nvidia-10, 2x nvidia-9', drawn(item))
        self.assertIn('*2 bound', drawn(item))

    def test_gpus_without_partitions(self):
        gpu = boards.gpu((), mig=None)
        for mode, state, text in (
                (policy.Mode.PASSTHROUGH, 'passthrough', 'passthrough'),
                (policy.Mode.OFF, 'off', 'not offered'),
                (None, 'off', 'not offered'),
                (policy.Mode.VGPU, 'free', 'no vGPU'),
                (policy.Mode.MIG, 'blocked', 'MIG mode is off')):
            item = gpu_map.tile(gpu, None, mode, NOTHING)
            self.assertEqual([(state, 'None', None)], states(item))
            self.assertIn(text, drawn(item))
        off = boards.gpu(boards.A30, enabled=False)
        self.assertIn('MIG mode is off', drawn(
            gpu_map.tile(off, 0, policy.Mode.MIG, NOTHING)))
        self.assertIn('MIG mode is on, no placements', drawn(
            gpu_map.tile(boards.gpu(()), 0, policy.Mode.MIG, NOTHING)))

    def test_an_instance_is_drawn_without_placements(self):
        gpu = boards.without_placements(
            boards.gpu(boards.A30, [('1g.6gb', 1)]))
        (box,) = gpu_map.tile(gpu, 0, policy.Mode.MIG, NOTHING).boxes
        self.assertEqual(('1g.6gb', 7), (box.name, box.instance_id))
        self.assertIn('#7', drawn(gpu_map.tile(
            gpu, 0, policy.Mode.MIG, NOTHING)))

    def test_a_gpu_that_cannot_be_read(self):
        gpu = dataclasses.replace(boards.gpu((), mig=None),
                                  problems=('NVML: lost',))
        item = gpu_map.tile(gpu, 0, None, NOTHING)
        self.assertEqual('unread', item.boxes[0].state.value)
        self.assertIn('could not be read', drawn(item))


class TestLines(base.BaseTestCase):
    maxDiff = None

    def test_one(self):
        self.assertEqual(A100, drawn(tile(
            'A100-80', ('4g.40gb', 0), ('2g.20gb', 4), ('1g.10gb+me', 6),
            claims=[(HANDLE, FUNCTION, model.Placement(0, 4))])))

    def test_side_by_side(self):
        tiles = [tile('A100-80'), tile('A30', ('4g.24gb', 0)),
                 tile('RTX PRO 6000')]
        for width, rows in ((20, 3), (79, 3), (80, 2), (121, 2), (122, 1)):
            text = drawn(*tiles, width=width)
            self.assertEqual(rows, sum(
                line.startswith('0  0000') for line in text.splitlines()))
            self.assertLessEqual(max(map(len, text.splitlines()[:-1])),
                                 max(width, gpu_map.TILE))

    def test_colours_do_not_move_anything(self):
        tiles = [tile('A100-80', ('1g.10gb', 6)), tile('A30')]
        seen = set()

        def paint(text, state):
            seen.add(state)
            return f'\x1b[36m{text}\x1b[0m'
        text = drawn(*tiles, paint=paint)
        self.assertEqual({'created', 'free', 'blocked'}, seen)
        self.assertEqual(drawn(*tiles), gpu_map._ESCAPE.sub('', text))

    def test_a_handle_that_would_break_the_lines(self):
        text = drawn(tile('A30', ('4g.24gb', 0), claims=[
            ('a\nb\x1b[1m', FUNCTION, model.Placement(0, 4))]))
        self.assertIn('*a?b?[1m', text)

    def test_a_grid_too_fine(self):
        profile = model.GpuInstanceProfile(
            1, '1g.1gb', 1, 1024, 64,
            tuple(model.Placement(start, 1) for start in range(64)))
        item = gpu_map.tile(boards.gpu((profile,), [('1g.1gb', 40)]), 0,
                            policy.Mode.MIG, NOTHING)
        self.assertIn('1x 1g.1gb', drawn(item))

    def test_no_gpus(self):
        self.assertEqual('', drawn())


class TestPens(base.BaseTestCase):

    def test_by_encoding(self):
        for encoding, pens in (('utf-8', gpu_map.UNICODE),
                               ('ascii', gpu_map.ASCII),
                               ('latin-1', gpu_map.ASCII),
                               (None, gpu_map.ASCII),
                               ('no-such', gpu_map.ASCII)):
            self.assertIs(pens, gpu_map.pens_for(encoding), encoding)
