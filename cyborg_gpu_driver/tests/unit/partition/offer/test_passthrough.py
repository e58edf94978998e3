# SPDX-License-Identifier: Apache-2.0

"""Offers of whole GPUs."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.tests.unit.partition import boards

WHOLE = policy.Policy('whole', policy.Mode.PASSTHROUGH)
PF = model.PciAddress(0, 7, 0, 0)


class TestPassthrough(base.BaseTestCase):

    def test_whole(self):
        gpu = boards.gpu((), mig=None)
        self.assertEqual((offers.Offer(
            PF, 'whole', policy.Mode.PASSTHROUGH, 'passthrough', total=1,
            in_use=0, creatable=1, parents=(PF,)),),
            offers.offers(gpu, WHOLE))

    def test_mig_capable_is_whole_while_mig_is_off(self):
        offer, = offers.offers(boards.gpu(boards.A30, enabled=False), WHOLE)
        self.assertEqual(('', 1), (offer.problem, offer.creatable))

    def test_carved_up(self):
        for fields, said in (
                ({'mig': model.Mig(True, True)}, 'MIG mode is on'),
                ({'vfs': boards.vfs(4)}, '4 virtual function(s)'),
                ({'sriov_numvfs': 3}, '3 virtual function(s)'),
                ({'mdevs': (model.Mdev('u', PF, 'nvidia-1'),)}, '1 vGPU(s)'),
                ({'vfs': boards.vfs(2, used=['nvidia-1'])}, '1 vGPU(s)'),
                ({'vfs': (dataclasses.replace(
                    boards.vfs(1)[0], current_vgpu_type=1145),)},
                 '1 vGPU(s)'),
                ({'physfn': PF}, 'a virtual function of 0000:07:00.0')):
            gpu = boards.gpu((), **{'mig': None, **fields})
            offer, = offers.offers(gpu, WHOLE)
            self.assertIn(said, offer.problem)
            self.assertEqual((1, 0), (offer.total, offer.creatable))

    def test_busy(self):
        gpu = boards.gpu((), mig=None, processes=2)
        offer, = offers.offers(gpu, WHOLE)
        self.assertEqual(
            (1, 0, '', '2 process(es) of this machine use it'),
            (offer.total, offer.creatable, offer.problem, offer.busy))
        offer, = offers.offers(
            dataclasses.replace(gpu, vfs=boards.vfs(1)), WHOLE)
        self.assertEqual((0, ''), (offer.creatable, offer.busy))
        self.assertIn('partitioned', offer.problem)

    def test_its_nvlinks_must_be_isolated(self):
        gpu = boards.gpu((), mig=None, nvlink_open='FABRIC_MODE is 0')
        offer, = offers.offers(gpu, WHOLE)
        self.assertEqual((1, 0, ''), (offer.total, offer.creatable,
                                      offer.problem))
        self.assertIn('nvlink_not_isolated', offer.busy)
        offer, = offers.offers(gpu, dataclasses.replace(
            WHOLE, nvlink_not_isolated=True))
        self.assertEqual((1, ''), (offer.creatable, offer.busy))

    def test_its_iommu_group_must_be_viable(self):
        turing = whole.Neighbour('0000:07:00.2', '0c03', 'xhci_hcd')
        storage = whole.Neighbour('0000:0a:00.0', '0108', 'nvme')
        second = whole.Neighbour('0000:08:00.0', '0302', 'vfio-pci')
        audio = whole.Neighbour('0000:07:00.1', '0403', 'vfio-pci')
        bridge = whole.Neighbour('0000:06:00.0', '0604', 'pcieport')
        unbound = whole.Neighbour('0000:0b:00.0', '0200', None)
        for neighbours, said in (
                ((audio, bridge, unbound), ''),
                ((audio, turing), '0000:07:00.2 (driver xhci_hcd)'),
                ((storage,), '0000:0a:00.0 (driver nvme)'),
                ((second,), 'GPU 0000:08:00.0'),
                (None, 'cannot be read')):
            gpu = boards.gpu((), mig=None, driver='vfio-pci',
                             neighbours=neighbours)
            offer, = offers.offers(gpu, WHOLE, must_be_bound=True)
            self.assertEqual(0 if said else 1, offer.creatable)
            self.assertIn(said, offer.busy)
            self.assertEqual(bool(said), bool(offer.busy))
        gpu = boards.gpu((), mig=None, iommu_group=None)
        self.assertIn('no IOMMU group', offers.offers(gpu, WHOLE)[0].busy)
        # The agent binds all of the board with the GPU.
        gpu = boards.gpu((), mig=None, neighbours=(turing,))
        self.assertEqual('', offers.offers(gpu, WHOLE)[0].busy)
        gpu = boards.gpu((), mig=None, neighbours=(storage,))
        self.assertIn('nvme', offers.offers(gpu, WHOLE)[0].busy)

    def test_libvirt_must_be_able_to_take_it(self):
        for must, fields, said in (
                (True, {}, 'bound to nvidia; '),
                (True, {'driver': 'nouveau'}, 'bound to nouveau; '),
                (True, {'driver': None}, 'not bound to vfio-pci'),
                (True, {'driver': 'vfio-pci'}, ''),
                (True, {'driver': 'nvgrace_gpu_vfio_pci'}, ''),
                (False, {}, '')):
            offer, = offers.offers(
                boards.gpu((), **{'mig': None, **fields}), WHOLE,
                must_be_bound=must)
            self.assertTrue(offer.busy.startswith(said), offer.busy)
            self.assertEqual((bool(said), '', int(not said)), (
                bool(offer.busy), offer.problem, offer.creatable))
