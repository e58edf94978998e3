# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The processes that use the GPUs, and obstacles to a reset."""

import errno
import os
import pathlib

import fixtures

from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import session
from cyborg_gpu_driver.host.sysfs import files as sysfs
from cyborg_gpu_driver.support.hardware import access_facts
from cyborg_gpu_driver.support.hardware import anonymous
from cyborg_gpu_driver.support.hardware import file_facts
from cyborg_gpu_driver.support.hardware import nvml_facts
from cyborg_gpu_driver.tests.unit.support.hardware import base


def _machine(root):
    return platform.Platform(sysfs.Sysfs(root), session.NvmlSession())


class AccessTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.seen = self.open('t4x4')
        self.gpu = self.machine.gpus[0].address

    def test_an_idle_machine(self):
        found = access_facts.collect(self.seen)
        self.assertEqual(4, len(found['gpus']))
        gpu = found['gpus'][self.gpu]
        self.assertEqual([], gpu['holders'])
        self.assertTrue(gpu['can_reset'])
        self.assertTrue(found['nvidia_smi'])

    def test_holders(self):
        self.machine.add_holder(self.gpu, 4711, 'acme-train')
        self.machine.add_holder(self.gpu, 4712, 'nv-hostengine')
        gpu = access_facts.collect(self.seen)['gpus'][self.gpu]
        self.assertEqual([{'pid': 4711, 'name': 'acme-train'},
                          {'pid': 4712, 'name': 'nv-hostengine'}],
                         gpu['holders'])
        self.assertEqual(
            [{'pid': None, 'name': 'another program'},
             {'pid': None, 'name': 'nv-hostengine'}],
            anonymous.anonymise(gpu)['holders'])

    def test_a_serial_number_by_its_name(self):
        # The record is of a GPU that was not queried with NVML.
        found = anonymous.anonymise({
            'record': {'serial': '1320021', 'uuid': None},
            'log': ['board 1320021 is gone', 'XID 13200211']})
        self.assertEqual({'serial': 'SERIAL-1', 'uuid': None},
                         found['record'])
        self.assertEqual(['board SERIAL-1 is gone', 'XID 13200211'],
                         found['log'])

    def test_it_is_not_among_them(self):
        """The program lists the holders of a GPU before it opens the GPU."""
        access_facts.collect(self.seen)
        self.assertEqual(0, sum(self.machine.calls.values()))

    def test_display(self):
        self.machine.load_drm(modeset=True)
        found = access_facts.collect(self.seen)
        self.assertEqual('Y', found['nvidia_drm']['modeset'])
        self.assertIn({'pid': 0, 'name': 'nvidia_drm'},
                      found['gpus'][self.gpu]['holders'])
        self.assertIn({'pid': 0, 'name': 'nvidia_drm'},
                      anonymous.anonymise(found)['gpus'][self.gpu][
                          'holders'])

    def test_fabric_manager(self):
        self.machine.start_fabric_manager()
        self.assertTrue(access_facts.collect(self.seen)[
            'fabric_manager_runs'])
        self.machine.stop_fabric_manager()
        self.assertFalse(access_facts.collect(self.seen)[
            'fabric_manager_runs'])

    def test_a_driver_that_nobody_knows(self):
        self.machine.bind_driver(self.gpu, 'nouveau')
        gpu = access_facts.collect(self.seen)['gpus'][self.gpu]
        self.assertEqual('UsageUnknown', gpu['holders']['error']['type'])

    def test_modes(self):
        records = {record['call']: record
                   for record in nvml_facts.collect(self.seen.nvml)}
        self.assertEqual([1, 1], records['nvmlDeviceGetEccMode']['result'])
        for call in ('nvmlDeviceGetGpuFabricInfoV',
                     'nvmlSystemGetConfComputeSettings',
                     'nvmlSystemGetConfComputeState',
                     'nvmlDeviceGetDefaultEccMode'):
            self.assertTrue({'result', 'error'} & set(records[call]), call)


class FilesTest(base.TestCase):
    """A machine without NVIDIA's driver."""

    def setUp(self):
        super().setUp()
        self.sysfs = pathlib.Path(self.directory, 'sys')
        self.devices = self.sysfs / 'bus/pci/devices'
        self.group = self.sysfs / 'kernel/iommu_groups/17'
        (self.group / 'devices').mkdir(parents=True)
        self.devices.mkdir(parents=True)
        self.add('0000:41:00.0', '0x030200', reset_method='flr bus',
                 driver_override='vfio-pci', reset='')
        self.add('0000:41:00.1', '0x040300', driver='snd_hda_intel')

    def add(self, name, kind, driver=None, **files):
        place = self.devices / name
        place.mkdir()
        for file, text in {'vendor': '0x10de', 'class': kind,
                           **files}.items():
            (place / file).write_text(f'{text}\n')
        (place / 'iommu_group').symlink_to(self.group)
        (self.group / 'devices' / name).symlink_to(place)
        if driver:
            target = self.sysfs / 'bus/pci/drivers' / driver
            target.mkdir(parents=True)
            (place / 'driver').symlink_to(target)

    def test_group(self):
        found = access_facts.collect(_machine(str(self.sysfs)))
        gpu, = found['gpus'].values()
        self.assertEqual([], gpu['holders'])
        self.assertEqual(('flr bus', 'vfio-pci', '17', True), (
            gpu['reset_method'], gpu['driver_override'], gpu['iommu_group'],
            gpu['can_reset']))
        self.assertEqual(
            {'0000:41:00.0': None, '0000:41:00.1': 'snd_hda_intel'},
            {name: member['driver'] for name, member
             in gpu['iommu_group_members'].items()})
        self.assertEqual({'modeset': None, 'fbdev': None},
                         found['nvidia_drm'])
        self.assertIs(False, found['fabric_manager_runs'])

    def test_a_driver_that_does_not_release_the_gpu(self):
        """A real pipe that nobody writes blocks like the kernel's lock."""
        path = self.devices / '0000:41:00.0' / 'driver_override'
        path.unlink()
        os.mkfifo(path)
        self.useFixture(fixtures.MonkeyPatch(
            f'{file_facts.__name__}._LOCKED_SECONDS', 0.2))
        gpu, = access_facts.collect(_machine(str(self.sysfs)))[
            'gpus'].values()
        self.assertIn('does not release', gpu['driver_override']['error'][
            'message'])
        found = file_facts.collect(sysfs.Sysfs(str(self.sysfs)))
        self.assertEqual(
            errno.ETIMEDOUT, found['functions']['0000:41:00.0'][
                'driver_override']['error']['errno'])
        # Each open of the pipe ends the children that were left behind.
        path.write_text('vfio-pci')

    def test_nothing_can_be_read(self):
        found = access_facts.collect(_machine('/nonexistent'))
        self.assertEqual({}, found['gpus'])
