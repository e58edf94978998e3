# SPDX-License-Identifier: Apache-2.0

"""Moving a GPU from one kernel driver to another, and resetting it."""

import dataclasses
import errno
import os
from unittest import mock

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.tests.unit.program import pci_files

_GPU = '0000:3b:00.0'
_AUDIO = '0000:3b:00.1'
_ALIASES = """\
alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
"""


class DriverTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.kernel = pci_files.PciFiles(
            self.useFixture(fixtures.TempDir()).path)
        self.kernel.function(_GPU, 'nvidia')
        self.kernel.function(_AUDIO, 'snd_hda_intel', kind='0x040300')
        self.held = ()
        self.guests = ()
        self.proc = self.useFixture(fixtures.TempDir()).path
        self.say_memory('?')
        self.use(platform.Platform(
            pci.Sysfs(self.kernel.root, self.kernel), nvml.NvmlSession(),
            proc=pci.Sysfs(self.proc), sleep=lambda seconds: None,
            gpu_holders=lambda address: self.held,
            vfio_holders=lambda address: self.guests, driver_timeout=30))

    def say_memory(self, state):
        """Set what the driver of a host without vGPU software says."""
        place = f'{self.proc}/driver/nvidia/gpus/{_GPU}'
        os.makedirs(place, exist_ok=True)
        with open(f'{place}/power', 'w', encoding='ascii') as stream:
            stream.write(f'Runtime D3 status:  ?\nVideo Memory:  {state}\n')

    def use(self, machine):
        self.machine = machine
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.privileged.mig._platform', None))
        privileged.run_here(machine)

    def refused(self, error, call, *arguments):
        """Assert that a call is refused and writes nothing; return why."""
        raised = self.assertRaises(error, call, *arguments)
        self.assertEqual([], self.kernel.written)
        return str(raised)

    def test_a_gpu_goes_to_vfio_with_its_audio_and_comes_back(self):
        privileged_driver.bind(_GPU, 'vfio-pci')
        self.assertEqual(['vfio-pci', 'vfio-pci'],
                         [self.kernel.driver(_GPU),
                          self.kernel.driver(_AUDIO)])
        self.assertEqual([
            (f'devices/{_GPU}/driver_override', 'vfio-pci'),
            ('drivers/nvidia/unbind', _GPU),
            ('drivers/vfio-pci/bind', _GPU),
            (f'devices/{_AUDIO}/driver_override', 'vfio-pci'),
            ('drivers/snd_hda_intel/unbind', _AUDIO),
            ('drivers/vfio-pci/bind', _AUDIO)], self.kernel.written)
        self.kernel.written.clear()
        privileged_driver.bind(_GPU, 'vfio-pci')
        self.assertEqual([], self.kernel.written)
        privileged_driver.bind(_GPU, 'nvidia')
        self.assertEqual([
            (f'devices/{_GPU}/driver_override', ''),
            ('drivers/vfio-pci/unbind', _GPU),
            ('drivers/nvidia/bind', _GPU),
            (f'devices/{_AUDIO}/driver_override', ''),
            ('drivers/vfio-pci/unbind', _AUDIO),
            ('drivers_probe', _AUDIO)], self.kernel.written)
        self.assertEqual(['nvidia', 'snd_hda_intel'],
                         [self.kernel.driver(_GPU),
                          self.kernel.driver(_AUDIO)])

    def test_a_board_with_a_driver_of_its_own(self):
        self.use(dataclasses.replace(
            self.machine, module_aliases=lambda: _ALIASES))
        for device, driver in (('2342', 'nvgrace_gpu_vfio_pci'),
                               ('2330', 'vfio-pci')):
            self.kernel.function(
                _GPU, 'nvidia', modalias='pci:v000010DEd0000'
                f'{device}sv000010DEsd00001809bc03sc02i00')
            privileged_driver.bind(_GPU, 'vfio-pci')
            self.assertEqual(driver, self.kernel.driver(_GPU))
            self.assertEqual('vfio-pci', self.kernel.driver(_AUDIO))
            self.assertIn((f'devices/{_GPU}/driver_override', driver),
                          self.kernel.written)
            privileged_driver.reset(_GPU)
            self.assertEqual(driver, self.kernel.driver(_GPU))
            privileged_driver.bind(_GPU, 'nvidia')
            self.assertEqual((f'devices/{_GPU}/driver_override', ''),
                             self.kernel.written[-6])

    def test_a_gpu_is_reset_only_while_it_has_no_driver(self):
        privileged_driver.reset(_GPU)
        self.assertEqual([('drivers/nvidia/unbind', _GPU),
                          (f'devices/{_GPU}/reset', '1'),
                          ('drivers/nvidia/bind', _GPU)],
                         self.kernel.written)

    def test_the_driver_decides_and_not_what_proc_shows(self):
        self.held = ((4711, 'python'),)
        privileged_driver.reset(_GPU)
        self.kernel.written.clear()
        self.held = ()
        self.say_memory('Active')
        self.assertIn('no process has its device node open', self.refused(
            exception.GpuInUse, privileged_driver.reset, _GPU))
        os.unlink(f'{self.proc}/driver/nvidia/gpus/{_GPU}/power')
        self.assertIn('the driver does not say', self.refused(
            exception.UsageUnknown, privileged_driver.reset, _GPU))

    def test_nothing_is_taken_from_a_guest(self):
        privileged_driver.bind(_GPU, 'vfio-pci')
        self.kernel.written.clear()
        self.guests = (os.getpid(),)
        for call, arguments in ((privileged_driver.bind, ('nvidia',)),
                                (privileged_driver.reset, ())):
            self.assertIn(f'process {os.getpid()}', self.refused(
                exception.GpuInUse, call, _GPU, *arguments))

    def test_the_display_driver_in_the_kernel_is_a_holder(self):
        self.kernel.file('module/nvidia_drm/parameters/modeset', 'Y')
        self.assertEqual((), tuple(privileged_driver.holders(_GPU)))
        self.kernel.file(f'bus/pci/devices/{_GPU}/drm/card0/dev', '226:0')
        self.say_memory('Active')
        self.assertIn('kernel module nvidia_drm: ', self.refused(
            exception.GpuInUse, privileged_driver.reset, _GPU))
        self.kernel.file('module/nvidia/version', '580.95.05')
        self.refused(exception.GpuInUse, privileged_driver.reset, _GPU)
        # This driver makes the module let go, but hides others behind it.
        self.kernel.file('module/nvidia/version', '580.105.08')
        self.held = ((4711, 'python'),)
        self.refused(exception.GpuInUse, privileged_driver.reset, _GPU)
        self.held = ()
        privileged_driver.reset(_GPU)
        self.kernel.file('module/nvidia_drm/parameters/modeset', 'N')
        self.assertEqual((), tuple(privileged_driver.holders(_GPU)))

    def test_a_gpu_with_virtual_functions_is_not_taken(self):
        for number in range(16):
            self.kernel.link(f'bus/pci/devices/{_GPU}/virtfn{number}',
                             f'../0000:3b:{1 + number // 8:02x}.{number % 8}')
        self.assertIn('it has 16 virtual functions (sriov-manage -d',
                      self.refused(exception.GpuInUse,
                                   privileged_driver.reset, _GPU))

    def test_other_functions_than_nvidias_gpus_are_refused(self):
        self.kernel.function('0000:3c:00.0', 'mlx5_core', vendor='0x15b3',
                             kind='0x020000')
        self.kernel.function('0000:3b:00.4', None, physfn='')
        for address in ('0000:3c:00.0', _AUDIO, '0000:3b:00.4',
                        '0000:99:00.0'):
            for call, arguments in ((privileged_driver.bind, ('nvidia',)),
                                    (privileged_driver.reset, ()),
                                    (privileged_driver.holders, ())):
                self.refused(exception.UnknownGpu, call, address, *arguments)
        self.refused(exception.InvalidValue, privileged_driver.bind,
                     '../x', 'nvidia')
        for driver in ('mlx5_core', '../x', ''):
            self.refused(exception.InvalidValue, privileged_driver.bind,
                         _GPU, driver)

    def test_a_stranger_in_the_group_keeps_the_gpu_where_it_is(self):
        self.kernel.function('0000:3a:00.0', 'pcieport', vendor='0x1000',
                             kind='0x060400')
        self.kernel.function('0000:3c:00.0', 'mlx5_core', vendor='0x15b3',
                             kind='0x020000')
        said = self.refused(exception.StepFailed, privileged_driver.bind,
                            _GPU, 'vfio-pci')
        self.assertIn('0000:3c:00.0 (driver mlx5_core) is in the same IOMMU '
                      'group, 41', said)

    def test_a_gpu_without_a_group_is_not_for_guests(self):
        self.kernel.function('0000:5e:00.0', 'nvidia', group=None)
        self.assertIn('turn on the IOMMU', self.refused(
            exception.StepFailed, privileged_driver.bind, '0000:5e:00.0',
            'vfio-pci'))

    def test_a_driver_that_is_not_loaded(self):
        for file in ('bind', 'unbind'):
            os.unlink(f'{self.kernel.root}/bus/pci/drivers/vfio-pci/{file}')
        os.rmdir(f'{self.kernel.root}/bus/pci/drivers/vfio-pci')
        self.assertIn('modprobe vfio-pci', self.refused(
            exception.StepFailed, privileged_driver.bind, _GPU, 'vfio-pci'))

    def test_a_gpu_that_is_refused_goes_back_to_its_driver(self):
        self.kernel.refuses = ('vfio-pci',)
        error = self.assertRaises(exception.StepFailed,
                                  privileged_driver.bind, _GPU, 'vfio-pci')
        self.assertIn('its driver is nvidia, as before', str(error))
        self.assertEqual('nvidia', self.kernel.driver(_GPU))
        self.assertEqual('(null)', self.machine.sysfs.read(
            'bus', 'pci', 'devices', _GPU, 'driver_override'))

    def test_a_gpu_that_cannot_be_reset_stays_at_its_driver(self):
        os.unlink(f'{self.kernel.root}/bus/pci/devices/{_GPU}/reset')
        self.assertIn('no way to reset it', self.refused(
            exception.StepFailed, privileged_driver.reset, _GPU))

    def _with_a_driver_that_hangs_at(self, name):
        self.kernel.hangs_at = name
        self.addCleanup(self.kernel.lets_go.set)
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.privileged.driver._RESET_SECONDS', 0))
        self.use(dataclasses.replace(self.machine, driver_timeout=0.3))

    def test_a_driver_that_does_not_let_go(self):
        self._with_a_driver_that_hangs_at('unbind')
        error = self.assertRaises(exception.DriverStuck,
                                  privileged_driver.reset, _GPU)
        self.assertIn('driver nvidia did not release it', str(error))
        self.assertIn('cannot be interrupted', str(error))
        self.assertEqual([('drivers/nvidia/unbind', _GPU)],
                         self.kernel.written)
        # The kernel keeps the lock of the GPU, so nothing else returns.
        for call, arguments in ((privileged_driver.reset, ()),
                                (privileged_driver.bind, ('nvidia',)),
                                (privileged_driver.bind, ('vfio-pci',))):
            error = self.assertRaises(exception.DriverStuck, call, _GPU,
                                      *arguments)
            self.assertIn('cannot be interrupted', str(error))

    def test_another_function_whose_driver_does_not_return(self):
        privileged_driver.bind(_GPU, 'vfio-pci')
        self._with_a_driver_that_hangs_at('drivers_probe')
        self.assertIn(_AUDIO, str(self.assertRaises(
            exception.DriverStuck, privileged_driver.bind, _GPU, 'nvidia')))

    def test_a_machine_that_has_room_for_no_process(self):
        self.use(dataclasses.replace(
            self.machine, sysfs=pci.Sysfs(self.kernel.root)))
        refusal = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        with mock.patch('os.fork', autospec=True, side_effect=refusal):
            error = self.assertRaises(exception.SysfsError,
                                      privileged_driver.bind, _GPU,
                                      'vfio-pci')
        self.assertEqual(errno.EAGAIN, error.errno)

    def test_a_driver_in_the_kernel_that_does_not_let_go(self):
        """Opening a real pipe blocks as long as nothing reads it."""
        path = f'{self.kernel.root}/bus/pci/drivers/nvidia/unbind'
        os.unlink(path)
        os.mkfifo(path)
        self.use(platform.Platform(
            pci.Sysfs(self.kernel.root), self.machine.nvml,
            proc=self.machine.proc, gpu_holders=lambda address: (),
            driver_timeout=0.5))
        self.assertRaises(exception.DriverStuck, privileged_driver.reset,
                          _GPU)
        # This read ends the child that was left behind.
        with open(path, encoding='ascii') as stream:
            self.assertEqual(_GPU, stream.read())
