# SPDX-License-Identifier: Apache-2.0

"""NVML's session, and finding and describing devices."""

import os

import pynvml

from cyborg_gpu_driver.tests.unit.simulator import base

A100 = '0000:41:00.0'
H100 = '0000:81:00.0'


class TestSession(base.MachineTestCase):

    def test_a_session_does_not_survive_a_fork(self):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                pynvml.nvmlDeviceGetCount()
                answer = b'works'
            except pynvml.NVMLError as error:
                answer = str(error.value).encode()
            os.write(writer, answer)
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(str(pynvml.NVML_ERROR_UNINITIALIZED).encode(),
                         os.read(reader, 100))
        os.close(reader)
        os.close(writer)
        self.assertEqual(8, pynvml.nvmlDeviceGetCount())


class TestDevices(base.MachineTestCase):
    host = 'mixed'

    def test_binding_a_driver_hides_and_shows(self):
        device = self.at(H100)
        self.machine.bind_driver(H100, 'vfio-pci')
        self.assertEqual(2, pynvml.nvmlDeviceGetCount())
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT,
                         pynvml.nvmlDeviceGetName, device)
        self.machine.bind_driver(H100, 'nvidia')
        self.machine.bind_driver('0000:c1:00.0', 'nvidia')
        self.assertEqual('NVIDIA A40', pynvml.nvmlDeviceGetName(
            self.at('0000:c1:00.0')))

    def test_names_of_nothing(self):
        self.assert_code(pynvml.NVML_ERROR_NOT_FOUND, self.at,
                         '0000:99:00.0')
        self.assert_code(pynvml.NVML_ERROR_INVALID_ARGUMENT, self.at,
                         'first')
