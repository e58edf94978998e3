# SPDX-License-Identifier: Apache-2.0

"""The steps that a node offers, and the faults of its GPUs: pure functions."""

import dataclasses

from oslotest import base

from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.host.snapshot import model

_GPU = model.Gpu(model.PciAddress(0, 8, 0, 0), '10de', '1eb8', '0302')


class StepsTest(base.BaseTestCase):

    def test_drivers(self):
        for driver, fit in ((None, True), ('vfio-pci', True),
                            ('nvgrace_gpu_vfio_pci', True),
                            ('nouveau', False), ('nvidia', False)):
            gpu = dataclasses.replace(_GPU, driver=driver)
            self.assertEqual(fit, not cleaning.obstacle(
                cleaning.RESET, model.Host((gpu,)), {gpu.address}), driver)


    def test_what_no_inspection_has_written(self):
        for value in (8, 'eight', [], {}, {'boards': None}, {'boards': [1]},
                      {'boards': [{'device_id': '20b7'}]},
                      {'boards': [{'device_id': '20b7', 'count': 'x'}]}):
            self.assertIn('inspect the node again', cleaning.boards(
                (_GPU,), {'nvidia_gpus': value}))
