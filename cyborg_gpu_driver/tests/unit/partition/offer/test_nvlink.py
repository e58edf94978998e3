# SPDX-License-Identifier: Apache-2.0

"""Offers of groups of GPUs; more tests are beside those of their binds."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.partition.offer import whole as offer_whole
from cyborg_gpu_driver.tests.unit.partition import boards

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
