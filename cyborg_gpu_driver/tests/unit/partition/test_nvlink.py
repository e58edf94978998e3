# SPDX-License-Identifier: Apache-2.0

"""Groups of GPUs that bridges connect, on boards cabled in any way."""

import dataclasses
import itertools

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.partition.offer import whole as offer_whole
from cyborg_gpu_driver.tests.unit.partition import boards

_GPUS = [model.PciAddress(0, bus, 0, 0) for bus in range(0x10, 0x18)]


def _groups(*links, number=8):
    """The groups of linked GPUs, as tuples of their numbers, by size."""
    peers = {gpu: set() for gpu in _GPUS[:number]}
    for one, other in links:
        peers[_GPUS[one]].add(_GPUS[other])
        peers[_GPUS[other]].add(_GPUS[one])
    found = {}
    for group in nvlink.of_bridges(peers):
        found.setdefault(len(group.members), []).append(
            tuple(map(_GPUS.index, group.members)))
    alone = found.pop(1)
    assert len(alone) == number
    return found


class BridgesTest(base.BaseTestCase):

    def test_bridges_of_two_and_of_four(self):
        self.assertEqual({2: [(0, 1), (2, 3)]}, _groups((0, 1), (2, 3)))
        self.assertEqual(
            {4: [(0, 1, 2, 3)], 2: [(0, 1), (2, 3)]},
            _groups(*itertools.combinations(range(4), 2)))

    def test_links_to_some_of_the_others_make_no_group(self):
        links = {*itertools.combinations(range(4), 2)} - {(0, 3)}
        self.assertEqual({2: [(4, 5)]}, _groups(*links, (4, 5)))
        # A DGX-1: "nvidia-smi topo -m" in NVIDIA/nccl issue 671.
        self.assertEqual({}, _groups(
            *itertools.combinations(range(4), 2),
            *itertools.combinations(range(4, 8), 2),
            *((gpu, gpu + 4) for gpu in range(4))))

    def test_a_gpu_that_is_missing_makes_no_new_groups(self):
        peers = {gpu: set(_GPUS[:4]) - {gpu} for gpu in _GPUS[:3]}
        self.assertEqual({1}, {len(group.members) for group
                               in nvlink.of_bridges(peers)})

    def test_a_link_that_only_one_end_shows(self):
        self.assertEqual((nvlink.Group((_GPUS[0],)), nvlink.Group(
            (_GPUS[1],))), nvlink.of_bridges(
                {_GPUS[0]: [_GPUS[1]], _GPUS[1]: []}))
        self.assertEqual((nvlink.Group((_GPUS[0],)),), nvlink.of_bridges(
            {_GPUS[0]: [_GPUS[1]]}))


class PartitionsTest(base.BaseTestCase):

    def test_one_with_an_unknown_gpu_is_no_group(self):
        known = model.PciAddress.parse('0000:18:00.0')
        members = tuple(model.FabricMember(number, None)
                        for number in (1, 2))
        found = [nvlink.of_partitions(
            [model.FabricPartition(7, of, False, True)], {known: 1})
            for of in (members[:1], members)]
        self.assertEqual([(nvlink.Group((known,), 7),), ()], found)


_LINKED = policy.Policy('linked', policy.Mode.NVLINK)


class UnknownTest(base.BaseTestCase):

    def test_what_to_do_about_it(self):
        for fields, words in (
                ({'driver': 'nvidia'}, 'the next report'),
                ({'driver': 'vfio-pci', 'bound_from': 'nvidia'},
                 'the next report'),
                ({'driver': 'vfio-pci'}, 'leave it bound to nvidia')):
            (offer,) = offers.offers(
                boards.gpu((), mig=None, **fields), _LINKED)
            self.assertEqual(0, offer.total)
            self.assertIn(words, offer.problem)


class GroupTest(base.BaseTestCase):

    def offer(self, *drivers, **facts):
        """The offer of a group of GPUs with these drivers.

        :param facts: of each member.
        """
        board = boards.gpu((), mig=None, model='H100', vfs=())
        gpus = [dataclasses.replace(
            board, driver=driver, address=model.PciAddress.parse(
                f'0000:0{number}:00.0'))
            for number, driver in enumerate(drivers)]
        state = offer_whole.State(
            nvlink.Group(tuple(gpu.address for gpu in gpus)),
            tuple(offer_whole.Member(gpu, **facts) for gpu in gpus))
        (offer,) = offers.offers(gpus[0], _LINKED, must_be_bound=True,
                                 groups=[state])
        return offer

    def busy(self, *drivers):
        offer = self.offer(*drivers)
        self.assertEqual('', offer.problem)
        return offer.busy

    def test_of_two_policies(self):
        offer = self.offer('vfio-pci', 'vfio-pci', governed=False)
        self.assertEqual(0, offer.creatable)
        self.assertIn('another policy governs GPU 0000:00:00.0',
                      offer.problem)

    def test_equal_reasons_are_said_once(self):
        bound = ('bound to nvidia; it will be offered when it is bound to '
                 'vfio-pci')
        self.assertEqual(bound, self.busy('nvidia', 'nvidia'))
        self.assertEqual(f'GPU 0000:00:00.0, 0000:02:00.0: {bound}',
                         self.busy('nvidia', 'vfio-pci', 'nvidia'))
        self.assertEqual('', self.busy('vfio-pci', 'vfio-pci'))
