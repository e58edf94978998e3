# SPDX-License-Identifier: Apache-2.0


import dataclasses
import errno
import os

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.tests.unit.host import base

_WHOLE = 'pid:[4026531836]'
_VF = model.PciAddress.parse('0000:41:00.4')
_MDEV = 'c5b0a1d2-34f6-4c7e-9b8a-001122334451'


class ProcTest(base.SimulatedTestCase):
    """Which processes have a VFIO device open, from /proc and sysfs."""

    MACHINE = 't4x4'

    def setUp(self):
        super().setUp()
        self.root = self.useFixture(fixtures.TempDir()).path
        self.proc = os.path.join(self.root, 'proc')
        self.machine_here = platform.Platform(
            sysfs=pci.Sysfs(os.path.join(self.root, 'sys')),
            nvml=self.nvml, proc=pci.Sysfs(self.proc))
        place = os.path.join(self.root, 'sys/bus/pci/devices', str(_VF))
        os.makedirs(os.path.join(place, 'vfio-dev', 'vfio7'))
        os.symlink('../../../../kernel/iommu_groups/58',
                   os.path.join(place, 'iommu_group'))
        self._link('self/ns/pid', _WHOLE)
        self.process(1, '/dev/null')
        os.makedirs(os.path.join(self.proc, 'sys'))

    def _link(self, path, target):
        path = os.path.join(self.proc, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink(target, path)

    def process(self, pid, *files):
        for number, path in enumerate(files):
            self._link(f'{pid}/fd/{number}', path)

    def holders(self, function=_VF):
        return usage.vfio_holders(self.machine_here, function)

    def refused(self):
        return str(self.assertRaises(exception.UsageUnknown, self.holders))

    def test_by_device_and_by_group(self):
        self.process(30, '/dev/null', '/dev/vfio/devices/vfio7')
        self.process(4, '/dev/vfio/58')
        self.assertEqual((4, 30), self.holders())

    def test_in_other_mounts_and_unlinked(self):
        self.process(30, '/vfio/devices/vfio7')
        self.process(31, '/dev/vfio/58 (deleted)')
        self.assertEqual((30, 31), self.holders())

    def test_an_mdev_has_its_own_group(self):
        place = os.path.join(self.root, 'sys/bus/mdev/devices', _MDEV)
        os.makedirs(place)
        os.symlink('../../../../kernel/iommu_groups/91',
                   os.path.join(place, 'iommu_group'))
        self.process(30, '/dev/vfio/58')
        self.assertEqual((), self.holders(_MDEV))
        self.process(31, '/dev/vfio/91')
        self.assertEqual((31,), self.holders(_MDEV))

    def test_a_function_that_was_never_anybodys(self):
        self.process(30, '/dev/vfio/devices/vfio7')
        self.assertEqual((), self.holders(model.PciAddress(0, 0x42, 0, 0)))

    def test_what_vanishes_meanwhile_holds_nothing(self):
        os.makedirs(os.path.join(self.proc, '50'))
        self.process(30, '/dev/vfio/devices/vfio7')
        self.assertEqual((30,), self.holders())

    def test_what_may_not_be_looked_into_is_not_taken_for_nobody(self):
        for call, number in (('listdir', errno.EACCES),
                             ('readlink', errno.EACCES),
                             ('readlink', errno.EPERM)):
            real = getattr(os, call)

            def refuse(path, real=real, number=number):
                if '/1/fd' in path:
                    raise OSError(number, os.strerror(number), path)
                return real(path)

            with fixtures.MonkeyPatch(f'os.{call}', refuse):
                self.assertIn('/1/fd', self.refused())
                self.assertIn(str(_VF), self.refused())

    def test_a_process_that_ends_while_it_is_looked_into(self):
        real = os.readlink

        def gone(path):
            if '/1/fd' in path:
                raise ProcessLookupError(errno.ESRCH, 'gone', path)
            return real(path)

        with fixtures.MonkeyPatch('os.readlink', gone):
            self.assertEqual((), self.holders())

    def test_the_kernel_knows_what_a_container_does_not_see(self):
        self._link('self/ns/pid', 'pid:[4026532201]')
        nodes = os.path.join(self.root, 'dev')
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.host.usage._NODES', nodes))
        os.mkdir(nodes)
        self.refused()
        os.symlink('/dev/null', os.path.join(nodes, '58'))
        self.refused()
        place = os.path.join(self.root, 'sys/class/vfio/58')
        os.makedirs(place)
        for number, is_closed in (('1:5', False), ('1:3', True)):
            with open(os.path.join(place, 'dev'), 'w',
                      encoding='ascii') as stream:
                stream.write(number + '\n')
            if is_closed:
                self.assertEqual((), self.holders())
            else:
                self.refused()
        busy = OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real = os.open

        def refuse(path, *arguments, **named):
            if str(path).startswith(nodes):
                raise busy
            return real(path, *arguments, **named)
        self.useFixture(fixtures.MonkeyPatch('os.open', refuse))
        self.refused()


class MdevGuestTest(base.SimulatedTestCase):
    """What NVML reports about guests on mdevs."""

    def setUp(self):
        super().setUp()
        self.cut(self.first, 19)
        gpu = self.gpu()
        kind = next(item for item in gpu.vgpu_types
                    if item.gi_profile_id == 19)
        self.name = self.create_mdev(gpu.vfs[0].address, kind.mdev_type_id)

    def test_only_what_runs_is_known(self):
        gpu = self.gpu()
        self.assertEqual(((), ()), (usage.guests(self.platform, gpu),
                                    usage.vgpus(self.platform, gpu)))
        self.machine.start_guest(self.name)
        instance = gpu.mig.instances[0].instance_id
        self.assertEqual(
            (usage.GuestVgpu(gpu.vgpus[0].type_id, self.name, instance),),
            usage.guests(self.platform, gpu))
        self.assertEqual(((self.name, instance),),
                         usage.vgpus(self.platform, gpu))

    def test_on_which_function(self):
        gpu = self.gpu()
        where = [vf.address for vf in gpu.vfs[:2]]
        self.assertEqual([False, False], [
            usage.may_run(self.platform, gpu, address) for address in where])
        self.machine.start_guest(self.name)
        self.assertEqual([True, False], [
            usage.may_run(self.platform, gpu, address) for address in where])


class VendorGuestTest(base.SimulatedTestCase):
    """What NVML reports about guests if it names no function."""

    MACHINE = 'l40sx4'

    def setUp(self):
        super().setUp()
        self.functions = [vf.address for vf in self.gpu().vfs[:3]]
        self.kind = self.type('L40S-8Q')
        for function in self.functions[:2]:
            self.set_vgpu(function, self.kind.type_id)

    def _mix(self):
        """The same vGPUs, in mixed-size mode."""
        for function in self.functions[:2]:
            self.set_vgpu(function, 0)
        self.mix()
        for function in self.functions[:2]:
            self.set_vgpu(function, self.kind.type_id)

    def _may_run(self, machine=None):
        gpu = self.gpu()
        return [usage.may_run(machine or self.platform, gpu, function)
                for function in self.functions]

    def _without_holders(self):
        """The machine, with every VFIO device seemingly closed."""
        return dataclasses.replace(self.platform,
                                   vfio_holders=lambda address: ())

    def test_told_apart_by_placement(self):
        self._mix()
        self.assertEqual([False] * 3, self._may_run())
        self.machine.start_guest(str(self.functions[1]))
        self.assertEqual([False, True, False], self._may_run())
        # The processes that have a device open make no difference.
        self.assertEqual([False, True, False],
                         self._may_run(self._without_holders()))

    def test_by_who_has_which_device_open(self):
        self.machine.start_guest(str(self.functions[1]))
        # The other function's open device accounts for the one guest.
        self.assertEqual([False, True, False], self._may_run())
        self.machine.start_guest(str(self.functions[0]))
        self.assertEqual([True, True, False], self._may_run())

    def test_a_guest_that_nothing_accounts_for_is_on_either(self):
        self._mix()
        # Drivers that are older than mixed sizes answer like this.
        self.machine.faults.fail('nvmlVgpuInstanceGetPlacementId',
                                 pynvml.NVML_ERROR_NOT_SUPPORTED, times=None)
        self.machine.start_guest(str(self.functions[1]))
        self.assertEqual([True, True, False],
                         self._may_run(self._without_holders()))

    def test_what_cannot_be_read_is_an_error(self):
        self.machine.faults.fail('nvmlDeviceGetActiveVgpus',
                                 pynvml.NVML_ERROR_UNKNOWN, times=None)
        self.assertRaises(exception.NvmlError, self._may_run)


class VendorInstanceTest(base.SimulatedTestCase):
    """vGPUs of vendor VFIO on GPU instances."""

    MACHINE = 'rtxpro6000x8'

    def setUp(self):
        super().setUp()
        gpu = self.gpu()
        self.kind = self.type('DC-1-24Q')
        self.made = self.cut(self.first, self.kind.gi_profile_id)
        self.function = gpu.vfs[2].address
        self.set_vgpu(self.function, self.kind.type_id)

    def test_told_apart_by_instance(self):
        self.cut(self.first, self.kind.gi_profile_id)
        other = self.gpu().vfs[5].address
        self.set_vgpu(other, self.kind.type_id)
        self.machine.start_guest(str(other))
        machine = dataclasses.replace(self.platform,
                                      vfio_holders=lambda address: ())
        gpu = self.gpu()
        self.assertEqual([False, True], [
            usage.may_run(machine, gpu, function)
            for function in (self.function, other)])

    def test_where_the_file_does_not_tell_the_instance(self):
        self.machine.start_guest(str(self.function))
        self.machine.faults.fail_read('*/nvidia/gpu_instance_id',
                                      errno.ENXIO, times=None)
        gpu = self.gpu()
        self.assertIsNone(gpu.vgpus[0].instance_id)
        self.assertEqual(((str(self.function), self.made.instance_id),),
                         usage.vgpus(self.platform, gpu))
