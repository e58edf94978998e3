# SPDX-License-Identifier: Apache-2.0

"""Base classes of tests on a simulated machine."""

import logging
import uuid

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.program import machines


class LogTestCase(base.BaseTestCase):
    """A test case that keeps what the library logs."""

    def setUp(self):
        super().setUp()
        self.log = LogRecords()
        logger = logging.getLogger('cyborg_gpu_driver')
        logger.addHandler(self.log)
        self.addCleanup(logger.removeHandler, self.log)
        self.addCleanup(logger.setLevel, logger.level)
        logger.setLevel(logging.DEBUG)


class SimulatedTestCase(LogTestCase):
    """A test case with a machine under pynvml, and its platform."""

    MACHINE = 'dgx-a100-80'
    GPUS: int | None = None
    """How many GPUs of the machine to keep; None keeps all."""

    def setUp(self):
        super().setUp()
        self.use(self.MACHINE)

    def use(self, name):
        self.machine = machines.load(name, gpus=self.GPUS)
        self.platform = platform.open_platform(self.machine)
        self.addCleanup(self.machine.uninstall)
        self.nvml = self.platform.nvml
        self.reader = reader.HostReader(self.platform)
        self.addresses = [model.PciAddress.parse(gpu.address)
                          for gpu in self.machine.gpus]
        self.first = self.addresses[0]

    def device(self, address=None):
        return self.nvml.device(address or self.first)

    def cut(self, address, profile_id, *placement):
        """Create a GPU instance, at a start and size if given."""
        return self.nvml.create_gpu_instance(
            self.device(address), profile_id,
            model.Placement(*placement) if placement else None)

    def create_mdev(self, function, type_id):
        """Create an mdev; return its UUID."""
        name = str(uuid.uuid4())
        self.platform.sysfs.write(
            name, 'bus', 'pci', 'devices', str(function),
            'mdev_supported_types', type_id, 'create')
        return name

    def set_vgpu(self, function, number):
        """Set the vGPU type of a function of vendor VFIO; 0 for none."""
        self.platform.sysfs.write(
            str(number), 'bus', 'pci', 'devices', str(function), 'nvidia',
            'current_vgpu_type')

    def gpu(self, address=None, **how):
        return self.reader.snapshot(**how).gpu(address or self.first)

    def type(self, name, address=None):
        return next(item for item in self.gpu(address).vgpu_types
                    if item.name == name)

    def mix(self, enable=True):
        nvml_vgpu.set_mixed_sizes(self.nvml, self.device(), enable)

    def refusal(self, *call):
        """Return the symbol of the error with which NVML refuses a call."""
        return self.assertRaises(exception.NvmlError, *call).symbol

    def calls(self):
        """Return the calls of each symbol since the last such request."""
        counted = dict(self.machine.calls)
        self.machine.reset_calls()
        return counted


class LogRecords(logging.Handler):
    """A handler that keeps the messages."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append((record.levelno, record.getMessage()))

    def about(self, text, level=logging.INFO):
        return [message for number, message in self.messages
                if text in message and number >= level]
