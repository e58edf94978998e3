# SPDX-License-Identifier: Apache-2.0

"""No GPU is unbound without the consent of its driver."""

import collections
import contextlib
import dataclasses
import errno
import pathlib
import random
import sys

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.steps import vfio
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.program import machines

_GPU = '0000:31:00.0'
_HOST = f"""\
driver_version: '%s'
gpus:
  - {{model: %s, address: '{_GPU}', framework: %s}}
"""
_VGPU = ('570.124.03', 'a100-40', 'vendor-vfio')
_PLAIN = ('580.95.05', 'a100-40', 'none')
_NEW = ('595.45.04', 'h100-nvl', 'none')
_ROUNDS = 1000 if scope.ALL else 30
_ROUNDS_A_HOST = 10
_SEED = 20


def _unseen(address):
    raise exception.UsageUnknown(what=address, reason='hidden')


class ConsentCase(machines.MachineCase):

    def setUp(self):
        super().setUp()
        self.address = model.PciAddress.parse(_GPU)

    def host(self, version, board, framework):
        self.simulate(version, _HOST % (version, board, framework))
        self.platform = dataclasses.replace(
            platform.open_platform(self.machine), records=machines.Records())
        self.addCleanup(self.platform.nvml.reset)
        self.use()

    def use(self, **parts):
        """Use a platform with other parts."""
        privileged.run_here(dataclasses.replace(self.platform, **parts))

    def bind(self, driver):
        vfio.bind(self.platform, self.address, driver)

    def refused(self, words, error=exception.GpuInUse):
        raised = self.assertRaises(error, self.bind, 'vfio-pci')
        self.assertIn(words, str(raised))
        self.check_untouched()

    def check_untouched(self):
        self.assertEqual('nvidia', self.state().driver)
        self.assertFalse(self.state().locked)
        self.assertEqual((), self.machine.blocked_unbinds)

    def state(self):
        with self.machine.operation():
            return self.machine.gpu(_GPU).state

    def is_persistent(self):
        state = self.state()
        return state.persistence or state.daemon


class ConsentTest(ConsentCase):

    def test_on_a_default_host(self):
        for host in (_VGPU, _PLAIN, _NEW):
            self.host(*host)
            for driver in ('vfio-pci', 'nvidia', 'vfio-pci'):
                self.bind(driver)
                self.assertEqual(driver, self.state().driver)
            self.assertEqual((), self.machine.blocked_unbinds)

    def test_what_proc_does_not_show(self):
        for host in (_VGPU, _PLAIN):
            self.host(*host)
            self.machine.add_holder(_GPU, 815, 'cuda', hidden=True)
            self.refused('no process has its device node open')
            self.machine.remove_holder(815)
            self.machine.leak_use(_GPU)
            self.refused('restart the host')

    def test_the_driver_is_asked_five_times(self):
        self.host(*_VGPU)
        self.machine.add_holder(_GPU, 815, 'nv-hostengine')
        waits = []

        def sleep(seconds):
            waits.append(seconds)
            if len(waits) == 3:
                self.machine.remove_holder(815)
        self.use(sleep=sleep)
        self.bind('vfio-pci')
        self.assertEqual([1, 2, 3], waits)
        self.bind('nvidia')
        self.machine.add_holder(_GPU, 815, 'nv-hostengine')
        self.refused('process 815 (nv-hostengine): stop the unit')
        self.assertEqual([1, 2, 3, 1, 2, 3, 4], waits)

    def test_the_lock_is_given_back(self):
        self.host(*_VGPU)
        self.machine.faults.fail_write('*/driver_override', errno.EIO)
        self.refused('driver_override', exception.SysfsError)

    def test_a_gpu_that_is_not_reset_goes_back(self):
        self.host(*_VGPU)
        self.machine.faults.fail_write('*/reset', errno.EIO)
        error = self.assertRaises(exception.StepFailed,
                                  privileged_driver.reset, _GPU)
        self.assertIn('its driver is nvidia, as before', str(error))
        self.check_untouched()
        self.assertTrue(self.is_persistent())

    def test_not_even_to_take_it_back(self):
        self.host(*_VGPU)
        self.bind('vfio-pci')
        write = self.machine.os.write

        def leak_and_fail(descriptor, data):
            write(descriptor, data)
            if self.state().driver == 'nvidia':
                self.machine.leak_use(_GPU)
                raise OSError(errno.EIO, 'no')
        self.machine.os.write = leak_and_fail
        error = self.assertRaises(exception.StepFailed, self.bind, 'nvidia')
        self.assertIn('could not be given back', str(error))
        self.check_untouched()

    def test_an_old_display_module(self):
        self.host(*_PLAIN)
        self.machine.load_drm()
        self.refused('kernel module nvidia_drm')

    def test_a_new_one_needs_a_look_at_the_processes(self):
        self.host(*_NEW)
        self.machine.add_holder(_GPU, 815, 'nv-hostengine')
        self.refused('process 815 (nv-hostengine)')
        self.machine.remove_holder(815)
        self.use(gpu_holders=_unseen)
        self.refused('hidden', exception.UsageUnknown)
        self.machine.unload_drm()
        self.bind('vfio-pci')


class PersistenceTest(ConsentCase):

    def keep(self, persistence):
        self.platform.records.keep_board(self.address, gpu_record.Record(
            ids=(None,) * 4, boot='', time=0.0, persistence=persistence))

    def test_on_again_when_the_gpu_is_back(self):
        for persistence in (True, False):
            self.host(*_VGPU)
            self.keep(persistence)
            self.bind('vfio-pci')
            self.assertFalse(self.is_persistent())
            self.bind('nvidia')
            self.assertEqual(persistence, self.is_persistent())
            self.bind('vfio-pci')

    def test_on_again_after_a_refusal(self):
        self.host(*_VGPU)
        self.machine.leak_use(_GPU)
        self.refused('restart the host')
        self.assertTrue(self.is_persistent())

    def test_sriov_manage_turns_it_on_after_each_attempt(self):
        self.host(*_VGPU)
        self.machine.faults.fail('sriov-manage', errno.EBUSY, times=2)
        privileged_gpu.set_virtual_functions(_GPU, True)
        self.assertEqual(3, self.machine.calls['sriov-manage'])
        self.assertTrue(self.is_persistent())

    def test_without_nvidia_smi_the_daemon_stays(self):
        self.host(*_VGPU)
        self.machine.faults.fail('nvidia-smi', errno.ENOENT, times=None)
        self.refused('(nvidia-persiste): nvidia-smi could not ask it')
        self.machine.stop_persistenced()
        self.bind('vfio-pci')

    def test_virtual_functions(self):
        self.host(*_VGPU)
        privileged_gpu.set_virtual_functions(_GPU, True)
        self.assertTrue(self.is_persistent())
        self.assertNotEqual(0, self.state().vfs)
        self.machine.add_holder(_GPU, 815, 'nv-hostengine')
        self.assertRaises(exception.GpuInUse,
                          privileged_gpu.set_virtual_functions, _GPU, False)
        self.machine.remove_holder(815)
        privileged_gpu.set_virtual_functions(_GPU, False)
        self.assertEqual(0, self.state().vfs)


class RandomTest(ConsentCase):
    """Any use of a GPU and faults, in any order.

    Uses leak, begin late, are hidden, or are of a node that a container has
    under another name. proc is read as on a real host. A node there is a link
    to /dev/null, whose device number stands for that of the GPU.
    """

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.host.usage._MAJOR', 1))
        self.proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        information = self.proc / f'driver/nvidia/gpus/{_GPU}/information'
        information.parent.mkdir(parents=True)
        information.write_text('Device Minor: \t 3\n')

    def test_no_unbind_starts_that_the_driver_did_not_allow(self):
        chance = random.Random(_SEED)
        results = collections.Counter(
            self.round(number, chance) for number in range(_ROUNDS))
        self.assertEqual({'bound', 'in use', 'fault', 'unknown'}, {*results})
        print(f'{_ROUNDS} rounds: {dict(results)}', file=sys.stderr)

    def prepare(self, number, chance):
        """Bind the GPU of some machine to NVIDIA's driver."""
        if number % _ROUNDS_A_HOST == 0:
            self.kind_of_host = (_VGPU, _PLAIN, _NEW)[
                number // _ROUNDS_A_HOST % 3]
            self.host(*self.kind_of_host)
        if self.state().leaked and chance.random() < 0.5:
            self.machine.reboot()
        if self.state().driver != 'nvidia':
            self.bind('nvidia')

    def round(self, number, chance):
        """Bind a GPU while others use it; return how that ended."""
        self.prepare(number, chance)
        blind = chance.random() < 0.3
        kind = self.disturb(chance, blind)
        # Beside nvidia_drm with modeset=1, only proc answers.
        expected = ('unknown' if blind and self.kind_of_host == _NEW
                    else 'in use' if kind == 'late' or self.state().leaked
                    else 'fault' if kind == 'fault' else 'bound')
        found = self.try_to_bind()
        self.assertEqual(expected, found)
        if found == 'bound':
            self.assertEqual((), self.machine.blocked_unbinds)
        else:
            self.check_untouched()
        self.machine.faults.clear()
        for pid in (900, 901):
            self.machine.remove_holder(pid)
        return found

    def disturb(self, chance, blind):
        """Let something be in the way of a bind; return what it is.

        :param blind: hide the processes of the machine, as in a container
            with a PID namespace of its own.
        """
        machine = self.machine
        kinds = ['nobody', 'open', 'late', 'fault']
        # Beside nvidia_drm with modeset=1, proc alone shows other uses.
        can_hide = self.kind_of_host != _NEW
        if can_hide:
            kinds += ['hidden', 'leak']
        kind = chance.choice(kinds)
        if kind == 'leak':
            machine.leak_use(_GPU, chance.randrange(1, 3))
        elif kind == 'fault':
            machine.faults.fail_write('*/driver_override', errno.EIO)
        elif kind != 'nobody':
            machine.add_holder(_GPU, 900, 'user', hidden=kind == 'hidden')

        def between_two_questions(seconds):
            if kind == 'late':
                machine.add_holder(_GPU, 901, 'late', hidden=can_hide)
            machine.remove_holder(900)
        self.use(sleep=between_two_questions, gpu_holders=_unseen if blind
                 else lambda address: self.in_proc(chance))
        return kind

    def in_proc(self, chance):
        """Find who has the GPU open in the files of proc."""
        with fixtures.TempDir() as place:
            proc = pathlib.Path(place.path)
            (proc / 'driver').symlink_to(self.proc / 'driver')
            for pid, name in sorted(set(self.machine.holders(_GPU))):
                if pid <= 0:  # A kernel module, or a user whom proc hides.
                    continue
                node = proc / 'nodes' / str(pid) / chance.choice(
                    ('nvidia0', 'nvidia3', 'nvidia7'))
                node.parent.mkdir(parents=True)
                node.symlink_to('/dev/null')
                (proc / str(pid) / 'fd').mkdir(parents=True)
                (proc / str(pid) / 'comm').write_text(name)
                (proc / str(pid) / 'fd' / '5').symlink_to(node)
            return usage._openers(
                dataclasses.replace(self.platform, proc=pci.Sysfs(str(proc))),
                self.address)

    def try_to_bind(self):
        try:
            self.bind('vfio-pci')
        except exception.GpuInUse:
            return 'in use'
        except exception.SysfsError:
            return 'fault'
        except exception.UsageUnknown:
            return 'unknown'
        return 'bound'

    def test_the_lock_keeps_late_openers_out(self):
        self.host(*_VGPU)
        simulated = self.machine.proc
        write = simulated.write

        def then_open(descriptor, data):
            done = write(descriptor, data)
            with contextlib.suppress(OSError):
                self.machine.add_holder(_GPU, 901, 'late')
            return done
        simulated.write = then_open
        self.bind('vfio-pci')
        self.assertEqual((), self.machine.blocked_unbinds)
