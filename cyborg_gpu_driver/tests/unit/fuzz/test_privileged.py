# SPDX-License-Identifier: Apache-2.0

"""Privileged operations take any arguments and open only control files."""

import inspect
import os
import re

import fixtures
import hypothesis
from hypothesis import strategies

from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.simulator import platform as simulated
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.fuzz import base

_OPERATIONS = sorted(
    (function.__wrapped__
     for module in (privileged, privileged_driver, privileged_gpu,
                    privileged_vgpu)
     for function in vars(module).values()
     if privsep.gpu_context.is_entrypoint(function)),
    key=lambda function: function.__name__)
_HANDLE = '7f3b1c0e-5b6a-4d0f-9a53-0d4d8e1f2a3b'
_GOOD = {
    'address': ('0000:07:00.0', '0000:0f:00.0', '0000:07:00.4'),
    'addresses': (['0000:07:00.0', '0000:07:00.4'],),
    'parent': ('0000:07:00.4', '0000:07:00.5'),
    'function': ('0000:07:00.4', '0000:07:00.0'),
    'mdev_type': ('nvidia-622', 'nvidia-624', 'nvidia-999999999'),
    'uuid': (_HANDLE,), 'vgpu': (_HANDLE, '0000:07:00.4'),
    'driver': ('nvidia', 'vfio-pci'),
    'enable': (True, False), 'policy': ('best-effort', 'fixed-share'),
    'profile_id': (0, 9, 19), 'start': (0, 4), 'size': (4, 8)}
_WRITTEN = re.compile(
    r'/sys/(bus/pci/devices/[0-9a-f:.]+/'
    r'(reset|driver_override|nvidia/(current_vgpu_type|vgpu_params))'
    r'|bus/pci/drivers/(nvidia|vfio-pci)/(unbind|bind)'
    r'|bus/mdev/devices/[0-9a-f-]+/(remove|nvidia/vgpu_params)'
    r'|class/mdev_bus/[0-9a-f:.]+/mdev_supported_types/nvidia-[0-9]+/create'
    ')', re.ASCII)
_VALUES = strategies.one_of(base.PLAIN, strategies.binary(max_size=20))


@strategies.composite
def _calls(draw):
    """An operation with arguments, some of which may be valid."""
    operation = draw(strategies.sampled_from(_OPERATIONS))
    return operation, tuple(
        draw(strategies.one_of(
            _VALUES, strategies.sampled_from(_GOOD.get(name, (1,)))))
        for name in inspect.signature(operation).parameters)


class PrivilegedTest(base.FuzzCase):

    def setUp(self):
        super().setUp()
        machine = simulator.Machine.load('dgx-a100-80')
        self.addCleanup(machine.uninstall)
        self.written = []
        opened = machine.os.open

        def record(path, flags, *mode):
            if flags & (os.O_WRONLY | os.O_RDWR):
                self.written.append(path)
            return opened(path, flags, *mode)

        machine.os.open = record
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.privileged.mig._platform', None))
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.privileged.vgpu._PAUSE', 0))
        self.addCleanup(privsep.gpu_context.set_client_mode,
                        privsep.gpu_context.client_mode)
        privileged.run_here(simulated.open_platform(machine))

    def test_there_are_operations_of_each_module(self):
        self.assertEqual(4, len({operation.__module__
                                 for operation in _OPERATIONS}))

    @base.examples(600)
    @hypothesis.given(_calls())
    def test_arguments(self, call):
        operation, arguments = call
        del self.written[:]
        self.attempt(operation, *arguments)
        for path in self.written:
            self.assertIsNotNone(_WRITTEN.fullmatch(path), path)
