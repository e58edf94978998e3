# SPDX-License-Identifier: Apache-2.0

"""The machines that come with the library, and a user's own files."""

import os

import fixtures
import pynvml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.simulator.machine import machine
from cyborg_gpu_driver.tests.unit.simulator import base as simulator_base

HOST = """
driver_version: '550.144.02'
gpus:
  - model: t4
    address: '0000:3b:00.0'
"""


class TestShippedHosts(simulator_base.MachineTestCase):
    host = 'mixed'

    def test_every_host_loads_and_answers(self):
        counts = {}
        for name in machine.names():
            with machine.Machine.load(name):
                pynvml.nvmlInit()
                counts[name] = pynvml.nvmlDeviceGetCount()
                for index in range(counts[name]):
                    device = pynvml.nvmlDeviceGetHandleByIndex(index)
                    self.assertTrue(pynvml.nvmlDeviceGetName(device))
        # The fourth GPU of mixed belongs to vfio-pci.
        self.assertEqual(
            {'a100x4-vfio': 4, 'a30x4': 4, 'dgx-a100-40': 8,
             'dgx-a100-80': 8, 'h100nvlx2': 2, 'h100nvlx2-595': 2,
             'hgx-h100': 8, 'hgx-h100-vfio': 8, 'hgx-h200': 8,
             'hgx-h200-vfio': 8, 'l40sx4': 4, 'mixed': 3,
             'rtxpro6000x8': 8, 't4x4': 4, 'vgpu-only': 9},
            counts)


class TestFilesOfOnesOwn(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path

    def write(self, text, name='own.yaml'):
        path = os.path.join(self.directory, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        return path

    def refusal(self, text):
        """Return the error about a host file; it must name the file."""
        path = self.write(text)
        error = self.assertRaises(exception.DocumentError,
                                  machine.Machine.load, path)
        self.assertIn(f'{path}: ', str(error))
        return str(error)

    def test_what_a_file_may_set(self):
        gpu = machine.Machine.load(self.write(HOST + """
    numa_node: 1
    iommu_group: 7
    driver: null
""")).host.gpus[0]
        self.assertEqual((1, 7, None), (
            gpu.numa_node, gpu.iommu_group, gpu.driver))

    def test_unknown_name(self):
        error = self.assertRaises(exception.HostUnusable,
                                  machine.Machine.load, 'dgx-b300')
        self.assertIn('dgx-b300', str(error))
        self.assertIn('mixed', str(error))

    def test_what_is_no_file(self):
        path = os.path.join(self.directory, 'pipe.yaml')
        os.mkfifo(path)
        for arguments in ((path,), ('mixed', path)):
            error = self.assertRaises(exception.HostUnusable,
                                      machine.Machine.load, *arguments)
            self.assertIn(f'{path!r}: not a file', str(error))

    def test_no_such_file(self):
        path = os.path.join(self.directory, 'absent.yaml')
        error = self.assertRaises(exception.HostUnusable,
                                  machine.Machine.load, path)
        self.assertIn(path, str(error))

    def test_what_is_refused(self):
        on_a30 = HOST.replace('model: t4', 'model: a30')
        for text, *said in (
                ('gpus: [', 'not YAML'), ('- gpus', 'a mapping'),
                (f'{HOST}    colour: green\n',
                 "gpus[0]: unknown key 'colour'; known keys: model, address,"),
                (HOST.replace('model: t4', 'mig: false'),
                 "gpus[0]: key 'model' is missing; expected text"),
                (HOST.replace('model: t4', 'model: t5'),
                 "gpus[0].model: found 't5'; expected one of a10, a100-40",
                 'rtx-pro-6000'),
                (HOST.replace("'0000:3b:00.0'", '0000:41:00.0'),
                 'gpus[0].address: found 2460.0; expected a PCI address in '
                 "quotes, such as '0000:3b:00.0'"),
                (HOST + HOST[HOST.index('  - '):],
                 "gpus[1].address: found '0000:3b:00.0'; expected an address "
                 'used only once'),
                (f'{HOST}    mig: true\n', 't4 has no MIG'),
                (f'{on_a30}    vfs: 17\n',
                 "gpus[0].vfs: found 17; expected 'all' or at most 16"),
                (f"{on_a30}    nvlink: ['0000:5e:00.0']\n",
                 'gpus: 0000:3b:00.0 has the NVLink peer 0000:5e:00.0; '
                 'expected a GPU or an NVSwitch of this file'),
                (HOST.replace('model: t4', 'model: a100-80')
                 + '    nvlink: switches\n', 'nvswitches')):
            message = self.refusal(text)
            for part in said:
                self.assertIn(part, message)
