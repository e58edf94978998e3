# SPDX-License-Identifier: Apache-2.0

"""Writes to files of NVIDIA's driver that do not return.

A pipe that nobody reads stands for such a file: its open() waits.
"""

import os
import pathlib

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu

_UUID = '4b20d080-1b54-4048-85b3-a6a62d165c01'
_GPU = '0000:5f:00.0'
_FUNCTION = '0000:5f:00.4'
_OTHER = '0000:60:00.0'


class HangTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for address in (_GPU, _FUNCTION, _OTHER):
            self.make('bus/pci/devices', address, 'vendor').write_text(
                '0x10de\n')
        (self.root / 'bus/pci/devices' / _FUNCTION / 'physfn').symlink_to(
            f'../{_GPU}')
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.privileged.mig._platform', None))
        privileged.run_here(platform.Platform(
            pci.Sysfs(str(self.root)), nvml.NvmlSession(timeout=1.0)))

    def make(self, *parts):
        path = self.root.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def pipe(self, *parts):
        path = self.make(*parts)
        os.mkfifo(path)
        return path

    def check(self, pipe, text, call, *arguments):
        """Check that a call is given up and that only its GPU is affected."""
        error = self.assertRaises(exception.NvmlNotAnswering, call,
                                  *arguments)
        self.assertIn(f'GPU {_GPU} does not answer: a write to {pipe.name} '
                      'did not return within 1 s', str(error))
        error = self.assertRaises(exception.StepFailed,
                                  privileged_gpu.check_ended,
                                  [_GPU, _FUNCTION])
        self.assertIn(f'a write to {pipe.name}', str(error))
        privileged_gpu.check_ended([_OTHER])
        self.assertEqual(text, pipe.read_text())
        while deadline.stuck([model.PciAddress.parse(_GPU)]):
            os.sched_yield()
        privileged_gpu.check_ended([_GPU, _FUNCTION])

    def test_create_mdev(self):
        pipe = self.pipe('class/mdev_bus', _FUNCTION,
                         'mdev_supported_types/nvidia-231/create')
        self.check(pipe, _UUID, privileged_vgpu.create_mdev, _FUNCTION,
                   'nvidia-231', _UUID)

    def test_set_vgpu_type(self):
        pipe = self.pipe('bus/pci/devices', _FUNCTION,
                         'nvidia/current_vgpu_type')
        self.check(pipe, '0', privileged_vgpu.set_vgpu_type, _FUNCTION, 0)

    def test_set_vgpu_placement(self):
        pipe = self.pipe('bus/pci/devices', _FUNCTION, 'nvidia/vgpu_params')
        self.check(pipe, 'vgpu-placement-id=4',
                   privileged_vgpu.set_vgpu_placement, _FUNCTION, 4)

    def test_set_vgpu_placement_of_an_mdev(self):
        device = self.make('devices/pci0000:5e', _FUNCTION, _UUID)
        pipe = self.pipe(device, 'nvidia/vgpu_params')
        self.make('bus/mdev/devices', _UUID).symlink_to(device)
        self.check(pipe, 'vgpu-placement-id=4',
                   privileged_vgpu.set_vgpu_placement, _UUID, 4)
