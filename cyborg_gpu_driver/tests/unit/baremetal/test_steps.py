# SPDX-License-Identifier: Apache-2.0

"""The steps that a node offers, and the faults of its GPUs: pure functions."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.baremetal import modes
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health

_A30 = model.Gpu(
    model.PciAddress(0, 7, 0, 0), '10de', '20b7', '0302', model='NVIDIA A30',
    architecture='ampere', driver='nvidia', visible_to_nvml=True,
    mig=model.Mig(False, False))
_T4 = model.Gpu(
    model.PciAddress(0, 8, 0, 0), '10de', '1eb8', '0302', model='Tesla T4',
    architecture='turing', driver='nvidia', visible_to_nvml=True)
_NO_MODES = modes.Modes()


class ObstacleTest(base.BaseTestCase):

    def obstacle(self, step, *gpus, resettable=()):
        return cleaning.obstacle(step, model.Host(gpus), resettable)

    def test_no_gpu(self):
        for step in (inventory.APPLY_LAYOUT, *cleaning.CLEAN_PRIORITIES):
            self.assertIn('no NVIDIA GPU', self.obstacle(step))

    def test_one_of_them_with_mig_is_enough(self):
        for step in (inventory.APPLY_LAYOUT, cleaning.CLEAR):
            self.assertIn('supports MIG', self.obstacle(step, _T4))
            self.assertEqual('', self.obstacle(step, _T4, _A30))

    def test_all_of_them_must_be_reset(self):
        self.assertEqual('', self.obstacle(
            cleaning.RESET, _T4, _A30,
            resettable={_T4.address, _A30.address}))
        self.assertIn(f'cannot reset GPU {_A30.address}', self.obstacle(
            cleaning.RESET, _T4, _A30, resettable={_T4.address}))

    def test_drivers(self):
        for driver, fit in ((None, True), ('vfio-pci', True),
                            ('nvgrace_gpu_vfio_pci', True),
                            ('nouveau', False), ('nvidia', False)):
            gpu = dataclasses.replace(_T4, driver=driver,
                                      visible_to_nvml=False)
            self.assertEqual(fit, not self.obstacle(
                cleaning.RESET, gpu, resettable={gpu.address}), driver)

    def test_modes_that_last(self):
        self.assertTrue(cleaning.keeps_mig_mode(_A30))
        self.assertFalse(cleaning.keeps_mig_mode(dataclasses.replace(
            _A30, architecture='hopper')))
        self.assertFalse(cleaning.keeps_mig_mode(dataclasses.replace(
            _T4, architecture='ampere')))


class FaultsTest(base.BaseTestCase):

    def boards(self, *boards):
        return cleaning.boards(
            (_A30, _T4), {'nvidia_gpus': {'boards': boards}})

    def test_boards(self):
        board = {'device_id': '20b7', 'model': None, 'count': 1}
        other = {'device_id': '2330', 'model': 'NVIDIA H100', 'count': 1}
        self.assertEqual('', cleaning.boards((_A30,), {}))
        self.assertEqual('', self.boards({**board, 'device_id': '1eb8'},
                                         board))
        self.assertIn('Tesla T4, NVIDIA A30 where the last inspection found '
                      '2 x NVIDIA A30, NVIDIA H100',
                      self.boards({**board, 'count': 2}, other))
        self.assertIn('found no GPU', self.boards())

    def test_what_no_inspection_has_written(self):
        for value in (8, 'eight', [], {}, {'boards': None}, {'boards': [1]},
                      {'boards': [{'device_id': '20b7'}]},
                      {'boards': [{'device_id': '20b7', 'count': 'x'}]}):
            self.assertIn('inspect the node again', cleaning.boards(
                (_A30,), {'nvidia_gpus': value}))

    def test_a_gpu_with_everything(self):
        gpu = dataclasses.replace(
            _A30, problems=('a problem',), sriov_numvfs=4, mig=model.Mig(
                True, True, instances=(model.GpuInstance(
                    model.Placement(2, 1), 14, 3),)))
        found = cleaning.of_gpu(gpu, (health.Condition('LOST', 0, 0),),
                                _NO_MODES, None)
        self.assertEqual((
            'a problem', 'NVML cannot reach it',
            '4 virtual functions are left',
            'GPU instance profile 14 is left at 2:1',
            'its MIG mode is on instead of off: clear_gpu_partitions sets it, '
            'or inspect the node again to accept this mode'), found)
        self.assertNotIn('MIG mode', ' '.join(
            cleaning.of_gpu(gpu, (), None, None)))

    def test_modes(self):
        on = modes.Modes({_A30.address: True}, {_A30.address: True})
        for mig, pending, wanted, ecc, words in (
                (False, False, _NO_MODES, None, ''),
                # A restart will correct the mode.
                (True, False, _NO_MODES, None, ''),
                (False, True, on, True, ''),
                # A GPU without an ECC mode has nothing to compare.
                (False, True, on, None, ''),
                (False, True, on, False, 'its ECC mode is off instead of on'),
                (False, False, on, True, 'its MIG mode is off instead of on')):
            found = cleaning.of_gpu(dataclasses.replace(
                _A30, mig=model.Mig(mig, pending)), (), wanted, ecc)
            self.assertEqual(bool(words), bool(found))
            self.assertIn(words, ''.join(found))
