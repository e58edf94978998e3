# SPDX-License-Identifier: Apache-2.0

"""Writes to files of NVIDIA's driver that do not return.

A pipe that nobody reads stands for such a file: its open() waits.
"""

import os
import pathlib
import stat

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

    def test_each_write(self):
        device = self.make('devices/pci0000:5e', _FUNCTION, _UUID)
        place = 'bus/pci/devices', _FUNCTION
        for parts, text, call, *arguments in (
                (('class/mdev_bus', _FUNCTION,
                  'mdev_supported_types/nvidia-231/create'), _UUID,
                 privileged_vgpu.create_mdev, _FUNCTION, 'nvidia-231', _UUID),
                ((*place, 'nvidia/current_vgpu_type'), '0',
                 privileged_vgpu.set_vgpu_type, _FUNCTION, 0),
                ((*place, 'nvidia/vgpu_params'), 'vgpu-placement-id=4',
                 privileged_vgpu.set_vgpu_placement, _FUNCTION, 4),
                ((device, 'nvidia/vgpu_params'), 'vgpu-placement-id=4',
                 privileged_vgpu.set_vgpu_placement, _UUID, 4)):
            pipe = self.pipe(*parts)
            if parts[0] is device:
                self.make('bus/mdev/devices', _UUID).symlink_to(device)
            self.check(pipe, text, call, *arguments)


_BUSY = 'Cannot obtain unbindLock for 0000:07:00.0'


class SriovTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.slept = []

    def manage(self, body, enable=True):
        """Use a script as sriov-manage; return its arguments and the error."""
        script = os.path.join(self.directory, 'sriov-manage')
        told = pathlib.Path(self.directory, 'told')
        told.write_text('')
        with open(script, 'w', encoding='utf-8') as stream:
            stream.write(f'#!/bin/sh\necho "$@" >> {told}\n'
                         f'runs=$(wc -l < {told})\n{body}\n')
        os.chmod(script, os.stat(script).st_mode | stat.S_IXUSR)
        error = ''
        try:
            privileged_vgpu.manage_functions(_GPU, enable, script,
                                             self.slept.append)
        except exception.StepFailed as failed:
            error = str(failed)
        return told.read_text().splitlines(), error

    def test_what_is_tried_again(self):
        for body, count, words in (
                ('exit 0', 1, ''),
                (f'[ $runs -ge 3 ] || {{ echo "{_BUSY}"; exit 1; }}', 3, ''),
                (f'echo "{_BUSY}"; exit 1', 5, 'unbindLock'),
                ('echo "no such GPU" >&2; exit 2', 1, 'no such GPU')):
            self.slept.clear()
            runs, error = self.manage(body)
            self.assertEqual([f'-e {_GPU}'] * count, runs, body)
            self.assertEqual(count - 1, len(self.slept))
            self.assertIn(words, error)
            self.assertEqual(bool(words), bool(error), error)

    def test_functions_removed(self):
        self.assertEqual(([f'-d {_GPU}'], ''),
                         self.manage('exit 0', enable=False))

    def test_no_script(self):
        error = self.assertRaises(
            exception.StepFailed, privileged_vgpu.manage_functions, _GPU, True,
            '/nonexistent/sriov-manage')
        self.assertIn('vGPU software', str(error))
