# SPDX-License-Identifier: Apache-2.0

"""Which processes have the device node of a GPU open."""

import pathlib

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci

_GPU = model.PciAddress.parse('0000:3b:00.0')
_INFORMATION = """Model: \t\t NVIDIA A100-SXM4-40GB
IRQ:   \t\t 183
GPU UUID: \t GPU-11111111-2222-3333-4444-555555555555
Bus Type: \t PCIe
Bus Location: \t 0000:3b:00.0
Device Minor: \t 1
"""


class HoldersTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.proc = root / 'proc'
        self.sys = root / 'sys'
        self.device = self.sys / 'bus/pci/devices' / str(_GPU)
        self.device.mkdir(parents=True)
        self.bind('nvidia')
        self.information = (self.proc / 'driver/nvidia/gpus' / str(_GPU)
                            / 'information')
        self.information.parent.mkdir(parents=True)
        self.information.write_text(_INFORMATION)
        self.add_process(1, 'systemd')

    def bind(self, driver):
        link = self.device / 'driver'
        if link.is_symlink():
            link.unlink()
        link.symlink_to(f'../../drivers/{driver}')

    def add_process(self, pid, name, *files):
        place = self.proc / str(pid)
        (place / 'fd').mkdir(parents=True)
        (place / 'comm').write_text(name + '\n')
        for number, file in enumerate(files):
            (place / 'fd' / str(number)).symlink_to(file)

    def add_node(self, pid, name, node, device):
        """Add a process with a device open under the name of a node."""
        link = self.proc / f'of-{pid}' / node
        link.parent.mkdir()
        link.symlink_to(device)
        self.add_process(pid, name, link)

    def machine(self):
        return platform.Platform(pci.Sysfs(str(self.sys)), nvml.NvmlSession(),
                                 proc=pci.Sysfs(str(self.proc)))

    def holders(self):
        return usage.holders(self.machine(), _GPU)

    def test_nobody(self):
        self.add_process(7, 'other', '/dev/nvidia0', '/dev/nvidia10',
                         '/dev/nvidiactl', '/dev/nvidia-uvm')
        self.assertEqual((), self.holders())

    def test_by_the_number_that_the_driver_gave(self):
        # The number of /dev/null is 1:3. A container may have renamed the
        # node, and may have another GPU's node under this name.
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.host.usage._MAJOR', 1))
        self.information.write_text(_INFORMATION[:-2] + '3\n')
        self.add_node(9, 'nvidia-persiste', 'nvidia3', '/dev/null')
        self.add_node(8, 'python', 'nvidia0', '/dev/null')
        self.add_node(7, 'other', 'nvidia3', '/dev/zero')
        self.add_process(6, 'other', '/dev/null')
        self.assertEqual(((8, 'python'), (9, 'nvidia-persiste')),
                         self.holders())

    def test_what_cannot_be_known_is_said(self):
        self.information.write_text('Model: \t\t Unknown\n')
        self.assertIn('Device Minor', str(self.assertRaises(
            exception.UsageUnknown, self.holders)))
        self.information.write_text('Device Minor: \t many\n')
        self.assertRaises(exception.UsageUnknown, self.holders)
        self.information.unlink()
        self.assertRaises(exception.UsageUnknown, self.holders)
        self.bind('nouveau')
        self.assertIn('bound to nouveau', str(self.assertRaises(
            exception.UsageUnknown, self.holders)))

    def test_a_guest(self):
        self.bind('vfio-pci')
        (self.device / 'iommu_group').symlink_to('../../groups/41')
        self.add_process(5, 'qemu-system-x86', '/dev/vfio/41')
        self.assertEqual(((5, 'qemu-system-x86'),), self.holders())

    def test_a_gpu_without_a_driver_has_no_node(self):
        (self.device / 'driver').unlink()
        self.assertEqual((), self.holders())

    def test_the_fabric_manager(self):
        machine = self.machine()
        self.assertFalse(usage.fabric_manager_runs(machine))
        # In a PID namespace of its own, this is left to NVIDIA's programs.
        namespace = self.proc / 'self' / 'ns'
        namespace.mkdir(parents=True)
        (namespace / 'pid').symlink_to('pid:[4026532412]')
        self.assertTrue(usage.fabric_manager_runs(machine))
        (namespace / 'pid').unlink()
        # The kernel keeps fifteen characters of a process name.
        self.add_process(6, 'nv-fabricmanager'[:15])
        self.assertTrue(usage.fabric_manager_runs(machine))
