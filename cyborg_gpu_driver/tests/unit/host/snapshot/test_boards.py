# SPDX-License-Identifier: Apache-2.0

from oslotest import base

from cyborg_gpu_driver.host.snapshot import boards
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator import files

_ADDRESS = model.PciAddress.parse('0000:07:00.0')


def _gpu(device, subsystem, **more):
    return model.Gpu(_ADDRESS, '10de', device, '0302', '10de', subsystem,
                     **more)


class BoardsTest(base.BaseTestCase):

    def test_every_model_of_the_simulator(self):
        for name in files.model_names():
            board = files.load_model(name)
            found = boards.complete(_gpu(board.device,
                                         board.subsystem_device))
            self.assertEqual(
                (board.product, board.memory_mib,
                 '.'.join(map(str, board.compute_capability))),
                (found.model, found.memory_mib, found.compute_capability),
                name)
            self.assertIn(found.architecture, (
                'volta', 'turing', 'ampere', 'ada', 'hopper', 'blackwell'))

    def test_what_is_known_stays(self):
        known = _gpu('2330', '16c1', memory_mib=1, architecture='other')
        found = boards.complete(known)
        self.assertEqual((1, 'other', 'NVIDIA H100 80GB HBM3'),
                         (found.memory_mib, found.architecture, found.model))
        other = _gpu('2330', '16c1', model='NVIDIA H100 of tomorrow')
        self.assertIs(other, boards.complete(other))
