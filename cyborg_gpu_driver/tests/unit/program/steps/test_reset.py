# SPDX-License-Identifier: Apache-2.0

"""The one way to reset a GPU, and MIG mode changes that take a reset."""

import dataclasses
import errno
import textwrap

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.nvml import access
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.steps import reset
from cyborg_gpu_driver.program.steps import vfio
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.program import machines

_GPU = '0000:31:00.0'
_HOST = f"""\
driver_version: '%s'
virtual: %s
gpus:
  - {{model: %s, address: '{_GPU}', nvlink: %s}}
nvswitches: [%s]
"""
_SWITCH = ("{address: '0000:c1:00.0', vendor: 10de, device: '%s', "
           "class: '068000', driver: nvidia-nvswitch}")


class ResetCase(machines.MachineCase):
    """One Ampere board."""

    def setUp(self):
        super().setUp()
        self.address = model.PciAddress.parse(_GPU)
        self.host()

    def host(self, board='a100-40', switch=None, virtual=False,
             version='550.144.02'):
        self.simulate(
            f'{board}-{switch}-{virtual}', textwrap.dedent(_HOST) % (
                version, str(virtual).lower(), board,
                'switches' if switch else '[]',
                _SWITCH % switch if switch else ''))
        self.use(platform.open_platform(self.machine))

    def use(self, machine):
        self.platform = machine
        privileged.run_here(machine)
        self.addCleanup(machine.nvml.reset)
        self.reader = reader.HostReader(machine)

    def without_smi(self):
        self.machine.faults.fail('nvidia-smi', errno.ENOENT, times=None)
        self.machine.stop_persistenced()

    def reset(self):
        return reset.once(self.platform, self.address)

    def refused(self, error, words, act=None):
        """Assert that a call is refused and does nothing to the GPU."""
        before = self.state()
        raised = self.assertRaises(error, act or self.reset)
        self.assertIn(words, str(raised))
        self.assertEqual(before, self.state())
        self.whole()

    def state(self):
        with self.machine.operation():
            state = self.machine.gpu(_GPU).state
            return state.driver, state.epoch, state.mig

    def whole(self):
        self.assertEqual((), tuple(self.machine.damage))
        self.assertEqual((), tuple(self.machine.blocked_unbinds))


class ResetTest(ResetCase):

    def test_without_nvidia_smi(self):
        self.reader.snapshot()
        self.without_smi()
        self.reset()
        self.whole()
        self.assertEqual('nvidia', self.state()[0])
        (gpu,) = self.reader.snapshot().gpus
        self.assertEqual((), gpu.problems)

    def test_holders_are_named(self):
        for name, remedy in (('nv-hostengine', 'nvidia-dcgm'),
                             ('something', '(something)')):
            self.machine.add_holder(_GPU, 815, name)
            self.refused(exception.GpuInUse, remedy)
            self.without_smi()
            self.refused(exception.GpuInUse, remedy)
            self.machine.remove_holder(815)

    def test_persistence_mode_outlives_a_reset_without_nvidia_smi(self):
        self.without_smi()
        with self.platform.nvml.kept():
            device = self.platform.nvml.device(self.address)
            self.platform.nvml.call('nvmlDeviceSetPersistenceMode', device, 1)
        self.reset()
        with self.machine.operation():
            self.assertTrue(self.machine.gpu(_GPU).state.persistence)

    def test_what_nvidia_smi_says_is_told(self):
        self.machine.faults.fail('nvidia-smi', errno.EBUSY)
        self.refused(exception.StepFailed, 'In use by another client')

    def test_a_process_of_ours_that_does_not_let_go(self):
        self.platform.nvml.access.timeout = 0.3
        other = self.platform.nvml.another()
        self.addCleanup(other.reset)
        with other.kept():
            other.device(self.address)
            self.refused(exception.StepFailed, 'did not close NVML')
        self.reset()

    def test_a_session_that_takes_no_part_is_a_holder(self):
        stranger = self.platform.nvml.another()
        stranger.access = access.Access()
        stranger.device(self.address)
        self.refused(exception.GpuInUse, 'open in process')
        stranger.reset()
        self.reset()

    def test_a_gpu_that_does_not_answer_any_more(self):
        self.machine.faults.fail('nvmlDeviceGetUUID', 15, times=None)
        raised = self.assertRaises(exception.StepFailed, self.reset)
        self.assertIn('does not answer after its reset', str(raised))


class SwitchTest(ResetCase):
    """GPUs on NVSwitches."""

    def test_ampere_needs_the_fabric_manager(self):
        self.host(switch='1af1')
        self.machine.start_fabric_manager()
        self.assertEqual('nvidia-smi', self.reset())
        self.machine.stop_fabric_manager()
        self.refused(exception.StepFailed, 'fabric manager is not running')
        # nvidia-smi knows it where the process would not be visible.
        self.machine.host = dataclasses.replace(self.machine.host,
                                                container=True)
        self.refused(exception.StepFailed, 'Fabric Manager is not running')

    def test_hopper_does_not(self):
        self.host('h100-80', '22a3')
        self.machine.stop_fabric_manager()
        self.assertEqual('nvidia-smi', self.reset())

    def test_nothing_but_nvidia_smi(self):
        self.host('h100-80', '22a3')
        self.without_smi()
        self.refused(exception.StepFailed, 'is not installed')

    def test_the_gpus_of_guests_are_reset_by_the_kernel(self):
        for board, switch in (('a100-40', '1af1'), ('h100-80', '22a3')):
            self.host(board, switch)
            self.machine.bind_driver(_GPU, 'vfio-pci')
            self.assertEqual('flr bus', self.reset())
            self.assertEqual('vfio-pci', self.state()[0])
            self.whole()

    def test_between_two_guests_the_display_module_is_no_obstacle(self):
        self.host('h100-80', '22a3', version='595.45.04')
        self.machine.load_drm()
        self.refused(exception.StepFailed, 'or nvidia_drm has the GPU open')
        self.assertEqual('flr bus', reset.once(
            self.platform, self.address, was_guests=True))
        self.assertEqual('nvidia', self.state()[0])
        self.whole()


class ModeTest(ResetCase):

    def switch(self, enable=True, **options):
        (gpu,) = self.reader.snapshot().gpus
        return reset.switch(self.platform, gpu, enable, **options)

    def test_on_and_off_beside_another_session(self):
        other = self.platform.nvml.another()
        self.addCleanup(other.reset)
        for enable in (True, False):
            other.device(self.address)
            self.assertTrue(self.switch(enable))
            self.assertEqual(enable, self.state()[2])
        self.whole()

    def test_holders_are_named(self):
        self.machine.add_holder(_GPU, 815, 'nv-hostengine')
        self.refused(exception.ChangeRefused,
                     'process 815 (nv-hostengine): stop', self.switch)
        with self.machine.operation():
            self.assertFalse(self.machine.gpu(_GPU).state.pending)

    def test_one_whom_nobody_sees_is_left_to_the_driver(self):
        self.machine.add_holder(_GPU, 815, 'hidden')
        self.use(dataclasses.replace(self.platform,
                                     gpu_holders=lambda address: ()))
        self.refused(exception.ChangeRefused, 'In use by another client',
                     self.switch)

    def test_a_mode_that_is_left_pending(self):
        self.machine.add_holder(_GPU, 815, 'nv-hostengine')
        self.assertFalse(self.switch(may_reset=False))
        self.machine.remove_holder(815)
        self.assertTrue(self.switch())

    def test_a_virtual_machine_cannot_reset_its_gpu(self):
        self.host(virtual=True)
        self.refused(exception.ChangeRefused, 'when this machine is restarted',
                     self.switch)
        self.assertEqual(0, self.machine.calls['nvidia-smi'])

    def test_hopper_changes_beside_monitors(self):
        self.host('h100-80')
        self.machine.add_holder(_GPU, 815, 'nv-hostengine')
        self.assertTrue(self.switch())


class Health:
    """Knows of no problems that a reset cures."""

    def reset_done(self, address):
        pass


class TenantTest(ResetCase):
    """What a tenant leaves on a GPU that the agent handed over."""

    def host(self, *arguments, **named):
        super().host(*arguments, **named)
        self.use(dataclasses.replace(self.platform,
                                     records=machines.Records()))
        self.resetter = reset.Resetter(self.platform, Health())
        self.hand_over()

    def hand_over(self):
        (gpu,) = self.reader.snapshot().gpus
        vfio.hand_over(self.platform, gpu)

    def clean(self):
        (gpu,) = self.reader.snapshot().gpus
        self.resetter.reset(gpu, lambda: None)

    def ecc(self):
        with self.machine.operation():
            return self.machine.gpu(_GPU).state.ecc_modes

    def test_not_while_a_process_uses_it(self):
        self.clean()
        self.hand_over()
        self.machine.bind_driver(_GPU, 'nvidia')
        self.machine.add_process(_GPU, 815)
        self.machine.change_gpu(_GPU, ecc_modes=[False] * 2)
        self.refused(exception.GpuInUse, 'process', self.clean)
        self.assertEqual([False, False], self.ecc())

    def test_the_ecc_mode_is_restored_in_the_second_try(self):
        self.machine.change_gpu(_GPU, ecc_modes=[False] * 2)
        self.machine.faults.fail('nvmlDeviceGetUUID', 999)
        self.assertRaises(exception.NvmlError, self.clean)
        self.assertEqual([False, False], self.ecc())
        self.clean()
        self.assertEqual([True, True], self.ecc())

    def test_the_ecc_mode_for_the_next_reset_is_kept(self):
        self.clean()
        self.machine.change_gpu(_GPU, ecc_modes=[True, False])
        self.hand_over()
        self.clean()
        self.assertEqual([False, False], self.ecc())

    def test_the_mig_mode_is_restored(self):
        self.machine.change_gpu(_GPU, mig=True, pending=True)
        self.clean()
        with self.machine.operation():
            state = self.machine.gpu(_GPU).state
            self.assertEqual((False, False), (state.mig, state.pending))

    def test_a_mode_that_cannot_be_restored(self):
        for name, leave in (
                ('ECC', {'ecc_modes': [False] * 2}),
                ('MIG', {'mig': True, 'pending': True})):
            self.host()
            self.machine.change_gpu(_GPU, **leave)
            self.useFixture(fixtures.MonkeyPatch(
                'cyborg_gpu_driver.program.privileged.'
                + {'ECC': 'gpu', 'MIG': 'mig'}[name]
                + f'.set_{name.lower()}_mode', lambda address, enable: None))
            error = self.assertRaises(exception.StepFailed, self.clean)
            self.assertIn(f'{name} mode', str(error))

    def test_confidential_computing_closes_the_gpu(self):
        self.host('h100-80')
        self.machine.change_gpu(_GPU, confidential=True)
        for _ in range(2):
            error = self.assertRaises(exception.StepFailed, self.clean)
            self.assertIn('nvidia_gpu_tools.py --devices 31:00.0 '
                          '--set-cc-mode=off', str(error))

    def test_confidential_computing_of_a_confidential_guest(self):
        self.host('h100-80')
        self.machine.set_confidential_computing('on')
        error = self.assertRaises(exception.StepFailed, self.clean)
        self.assertIn('confidential computing is on, and was off',
                      str(error))
