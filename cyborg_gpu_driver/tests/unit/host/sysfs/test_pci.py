# SPDX-License-Identifier: Apache-2.0

import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci

_GPU = {'vendor': '0x10de', 'device': '0x20b2', 'class': '0x030200',
        'subsystem_vendor': '0x10de', 'subsystem_device': '0x1463',
        'numa_node': '1'}


class Tree(fixtures.Fixture):
    """PCI functions in a temporary directory."""

    def _setUp(self):
        self.root = self.useFixture(fixtures.TempDir()).path

    def path(self, address, *parts):
        return os.path.join(self.root, 'bus', 'pci', 'devices', address,
                            *parts)

    def add(self, address, **files):
        os.makedirs(self.path(address), exist_ok=True)
        for name, text in files.items():
            with open(self.path(address, name), 'w') as stream:
                stream.write(f'{text}\n')

    def link(self, address, name, target):
        os.symlink(f'../../../{target}', self.path(address, name))


def _no_library(path):
    raise OSError(path)


class PciTest(base.BaseTestCase):
    """A machine without NVML, as sysfs alone shows it."""

    def setUp(self):
        super().setUp()
        for name, value in (('nvmlLib', None), ('CDLL', _no_library)):
            self.useFixture(fixtures.MonkeyPatch(f'pynvml.{name}', value))
        self.tree = self.useFixture(Tree())
        self.reader = reader.HostReader(platform.Platform(
            sysfs=pci.Sysfs(self.tree.root),
            nvml=nvml.NvmlSession()))

    def _gpus(self):
        return self.reader.snapshot().gpus

    def test_everything_that_sysfs_knows(self):
        self.tree.add('0000:3b:00.0', **_GPU, sriov_totalvfs=16,
                      sriov_numvfs=0)
        self.tree.link('0000:3b:00.0', 'driver', 'drivers/vfio-pci')
        self.tree.link('0000:3b:00.0', 'iommu_group', 'iommu_groups/17')
        gpu, = self._gpus()
        self.assertEqual(model.Gpu(
            address=model.PciAddress(0, 0x3b, 0, 0), vendor_id='10de',
            device_id='20b2', class_code='0302', subsystem_vendor_id='10de',
            subsystem_device_id='1463', numa_node=1, iommu_group=17,
            driver='vfio-pci', sriov_totalvfs=16,
            # From the table of known boards.
            model='NVIDIA A100-SXM4-80GB', architecture='ampere',
            memory_mib=81920, compute_capability='8.0'), gpu)

    def test_the_root_complex(self):
        self.tree.add('0000:3b:00.0', **_GPU)
        place = os.path.join(self.tree.root, 'devices', 'pci0000:3a',
                             '0000:3a:01.0')
        os.makedirs(place)
        os.rename(self.tree.path('0000:3b:00.0'),
                  os.path.join(place, '0000:3b:00.0'))
        os.symlink('../../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0',
                   self.tree.path('0000:3b:00.0'))
        (gpu,) = self._gpus()
        self.assertEqual('0000:3a', gpu.pcie_root)

    def test_only_display_functions_of_nvidia(self):
        self.tree.add('0000:01:00.0', **_GPU)
        self.tree.add('0000:01:00.1', **{**_GPU, 'class': '0x040300'})
        self.tree.add('0000:02:00.0', **{**_GPU, 'class': '0x068000'})
        self.tree.add('0000:03:00.0', **{**_GPU, 'vendor': '0x1002'})
        self.tree.add('0000:04:00.0', **{**_GPU, 'class': '0x030000'})
        self.assertEqual(
            [('0000:01:00.0', '0302'), ('0000:04:00.0', '0300')],
            [(str(gpu.address), gpu.class_code) for gpu in self._gpus()])

    def test_virtual_functions_hang_on_theirs_in_order(self):
        self._with_vfs(12)
        gpu, = self._gpus()
        self.assertEqual(list(range(12)), [vf.index for vf in gpu.vfs])
        self.assertEqual(
            [f'0000:3b:{1 + n // 8:02x}.{n % 8}' for n in range(12)],
            [str(vf.address) for vf in gpu.vfs])
        self.assertEqual(12, gpu.sriov_numvfs)
        self.assertEqual('nvidia', gpu.vfs[0].driver)

    def _with_vfs(self, count, total=16):
        self.tree.add('0000:3b:00.0', **_GPU, sriov_totalvfs=total,
                      sriov_numvfs=count)
        for number in range(count):
            address = f'0000:3b:{1 + number // 8:02x}.{number % 8}'
            self.tree.add(address, **_GPU)
            self.tree.link(address, 'physfn', 'devices/0000:3b:00.0')
            self.tree.link(address, 'driver', 'drivers/nvidia')
            self.tree.link('0000:3b:00.0', f'virtfn{number}',
                           f'devices/{address}')

    def test_no_file_that_waits_for_the_lock_of_a_device_is_read(self):
        """The kernel holds it while a driver does not release the device."""
        self._with_vfs(4)
        names = set()
        read = pci.Sysfs.read_bytes

        def noted(files, *parts):
            names.add(parts[-1])
            return read(files, *parts)

        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.host.sysfs.pci.Sysfs.read_bytes', noted))
        self.assertEqual(4, self._gpus()[0].sriov_numvfs)
        self.assertIn('sriov_totalvfs', names)
        self.assertEqual(set(), names & {'sriov_numvfs', 'driver_override'})

    def test_virtual_functions_that_are_not_all_there_are_a_problem(self):
        self._with_vfs(4)
        os.unlink(self.tree.path('0000:3b:00.0', 'virtfn2'))
        gpu, = self._gpus()
        self.assertIn('2 of 4', gpu.problems[0])

    def test_missing_files_cost_only_themselves(self):
        self.tree.add('0000:01:00.0', **_GPU)
        self.tree.add('0000:02:00.0', **_GPU)
        os.unlink(self.tree.path('0000:01:00.0', 'subsystem_vendor'))
        os.unlink(self.tree.path('0000:01:00.0', 'numa_node'))
        unhealthy, well = self._gpus()
        self.assertIsNone(unhealthy.subsystem_vendor_id)
        self.assertEqual('1463', unhealthy.subsystem_device_id)
        self.assertIn('subsystem_vendor', unhealthy.problems[0])
        self.assertEqual((), well.problems)
        self.tree.add('0000:01:00.0', **_GPU)
        self.assertEqual((), self._gpus()[0].problems)

    def test_file_with_nonsense(self):
        self.tree.add('0000:01:00.0', **{**_GPU, 'numa_node': 'north'})
        self.assertIn('north', self._gpus()[0].problems[0])

    def test_function_that_cannot_be_identified(self):
        self.tree.add('0000:01:00.0', **_GPU)
        os.makedirs(self.tree.path('0000:02:00.0'))
        host = self.reader.snapshot()
        self.assertEqual(1, len(host.gpus))
        self.assertIn('0000:02:00.0', host.problems[0])

    def test_gpu_that_leaves_the_bus(self):
        self.tree.add('0000:01:00.0', **_GPU)
        self.assertEqual(1, len(self._gpus()))
        os.rename(self.tree.path('0000:01:00.0'),
                  os.path.join(self.tree.root, 'elsewhere'))
        self.assertEqual((), self._gpus())
