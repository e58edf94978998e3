# SPDX-License-Identifier: Apache-2.0

"""The number of servers for which there is room."""

import hypothesis
from hypothesis import strategies
from oslotest import base

from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.tests.unit.cloud import samples

_SLICE = resources.group('CUSTOM_NVIDIA_1G_10GB')
_HALF = resources.group('CUSTOM_NVIDIA_3G_40GB')
_WHOLE = resources.group('PGPU')
_ONE = samples.provider()
_SIBLING = samples.provider('3g.40gb', total=2)
_OTHER = samples.provider(gpu='0000:0f:00.0', reserved=4)
_OTHER_SIBLING = samples.provider('3g.40gb', '0000:0f:00.0', total=2,
                                  reserved=1)
_FREE = strategies.lists(strategies.integers(0, 7), max_size=4)


def _room(found, *groups):
    room = hosts.room(groups, found)
    return room.servers, room.exact


class RoomTest(base.BaseTestCase):

    def test_several_of_one_group_are_on_one_gpu(self):
        two = resources.group('CUSTOM_NVIDIA_1G_10GB', 2)
        self.assertEqual((4, True), _room([_ONE, _OTHER], two))
        six = resources.group('CUSTOM_NVIDIA_1G_10GB', 6)
        self.assertEqual((1, True), _room([_ONE, _OTHER], six))

    def test_groups_that_ask_for_much_are_served_first(self):
        found = [samples.provider(total=4),
                 samples.provider(gpu='0000:0f:00.0', total=3)]
        groups = [resources.group('CUSTOM_NVIDIA_1G_10GB', amount)
                  for amount in (2, 2, 3)]
        self.assertEqual((1, False), _room(found, *groups))

    def test_traits(self):
        self.assertEqual((0, True), _room([_ONE], resources.group(
            'CUSTOM_NVIDIA_1G_10GB', forbidden=frozenset({samples.MODEL}))))
        self.assertEqual((0, True), _room([_ONE], resources.group(
            'CUSTOM_NVIDIA_1G_10GB', required=frozenset({'CUSTOM_X'}))))
        self.assertEqual((7, True), _room([_ONE], resources.group(
            'CUSTOM_NVIDIA_1G_10GB', required=frozenset({samples.MODEL}))))

    def test_siblings_exclude_each_other(self):
        found = [_ONE, _SIBLING]
        self.assertEqual((0, False), _room(found, _SLICE, _HALF))
        found = [_ONE, _SIBLING, _OTHER, _OTHER_SIBLING]
        self.assertEqual((2, False), _room(found, _SLICE, _HALF))
        whole = samples.provider('passthrough', '0000:47:00.0', total=1)
        self.assertEqual((1, False), _room([_ONE, whole], _SLICE, _WHOLE))

    def test_a_gpu_that_has_been_begun_is_filled_first(self):
        found = [samples.provider(gpu=f'0000:0{n}:00.0') for n in (1, 2)] + [
            samples.provider('3g.40gb', f'0000:0{n}:00.0', total=2)
            for n in (1, 2)]
        self.assertEqual((2, False), _room(found, _SLICE, _HALF))

    def test_what_placement_never_has(self):
        for group in (resources.group('CUSTOM_NVIDIA_1G_10GB', 0),
                      resources.group('CUSTOM_NVIDIA_1G_10GB', -1), (),
                      tuple(sorted(_SLICE + _HALF))):
            self.assertEqual((0, True), _room([_ONE, _SIBLING], group))
        self.assertEqual((0, True), _room([_ONE]))

    @hypothesis.given(_FREE, strategies.integers(1, 3))
    def test_groups_of_one_class_are_counted_exactly(self, free, groups):
        found = [samples.provider(gpu=f'0000:0{n}:00.0', total=amount)
                 for n, amount in enumerate(free)]
        self.assertEqual((sum(free) // groups, True),
                         _room(found, *[_SLICE] * groups))

    def test_by_host(self):
        found = [_ONE, samples.provider(host='compute2', used=7),
                 samples.provider(host='compute3', used=5)]
        rooms = hosts.room_by_host((_SLICE,), found)
        self.assertEqual({'compute1': 7, 'compute2': 0, 'compute3': 2}, {
            host: room.servers for host, room in rooms.items()})
        self.assertEqual(hosts.Room(9, True),
                         hosts.total_room(rooms.values()))
        self.assertEqual(hosts.Room(3, False), hosts.total_room(
            [hosts.Room(1, True), hosts.Room(2, False)]))
