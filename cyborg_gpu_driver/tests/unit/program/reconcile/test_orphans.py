# SPDX-License-Identifier: Apache-2.0

"""Who owns live vGPUs, which are removed, and which never are."""

import dataclasses
import errno

import fixtures
import pynvml
from oslotest import base

from cyborg_gpu_driver import durable
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.program.reconcile import orphans
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.program import machines
from cyborg_gpu_driver.tests.unit.program import nodes

_UUIDS = [f'c5b0a1d2-34f6-4c7e-9b8a-00112233445{digit}' for digit in '123']


class OrphanCase(base.BaseTestCase):

    host = 't4x4'
    gpu = '0000:3b:00.0'
    kind = 'T4-4C'

    def setUp(self):
        super().setUp()
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        self.machine = machines.load(self.host)
        self.platform = platform.open_platform(self.machine)
        self.addCleanup(self.machine.uninstall)
        privileged.run_here(self.platform)
        self.address = model.PciAddress.parse(self.gpu)
        self.records = store.of(self.state_path)
        self.vgpus = self.keep()

    def keep(self, **settings):
        return nodes.Node(self.platform, self.state_path,
                          policies.Settings(**settings)).vgpus

    def snapshot(self):
        return reader.HostReader(self.platform).snapshot().gpu(self.address)

    def type_id(self, name=None):
        return next(item.mdev_type_id for item in self.snapshot().vgpu_types
                    if item.name == (name or self.kind))

    def make(self, number=0):
        """Create a vGPU by hand. Return its name."""
        privileged_vgpu.create_mdev(self.gpu, self.type_id(), _UUIDS[number])
        return _UUIDS[number]

    def entry(self, phase=gpu_record.Phase.BOUND, **changes):
        """A bind of the first vGPU."""
        return dataclasses.replace(gpu_record.Claim(
            handle=_UUIDS[0], gpu=self.address, function=self.address,
            mdev_type=self.type_id(), profile=self.kind, phase=phase),
            **changes)

    def names(self):
        """Names of the vGPUs that the hardware has."""
        with self.machine.operation():
            return [vgpu.uuid or vgpu.function for vgpu
                    in self.machine.gpu(self.gpu).state.vgpus]

    def one(self, name=None):
        """What the vgpus finds on the vGPU of a name, or the only one."""
        (found,) = [item for item in self.vgpus.found()
                    if name in (None, item.vgpu.name)]
        return found

    def assert_kept(self, found, reason, claimed=()):
        names = self.names()
        error = self.assertRaises(exception.GpuDriverError,
                                  self.vgpus.remove, found, claimed)
        self.assertIn(reason, str(error))
        self.assertEqual(names, self.names())

    def assert_orphan(self, expected, found, claimed=()):
        self.assertIs({'yes': True, 'no': False, '?': None}[expected],
                      found.orphan(claimed))


class MdevTest(OrphanCase):

    def test_made_by_hand(self):
        name = self.make()
        found = self.one()
        self.assertEqual(
            (name, self.address, None, orphans.Guest.NONE),
            (found.vgpu.name, found.gpu.address, found.owner, found.guest))
        self.assert_orphan('yes', found)
        self.assert_orphan('?', found, None)
        self.assert_orphan('no', found, {name})
        self.assert_kept(found, 'accelerator request', {name})
        other = self.make(1)
        self.assertEqual((), self.vgpus.remove(found, ()))
        self.assertEqual([other], self.names())

    def test_in_the_journal_of_binds(self):
        self.make()
        for phase in gpu_record.Phase:
            self.records.put_claims(self.entry(phase))
            found = self.one()
            self.assertEqual(f'{_UUIDS[0]} ({phase.value})', found.owner)
            self.assert_orphan('no', found)
            self.assert_orphan('no', found, None)
            self.assert_kept(found, found.owner)
        other = self.one(self.make(1))
        self.assertIsNone(other.owner)

    def test_a_guest_whose_mdev_nvml_does_not_name(self):
        names = [self.make(number) for number in range(2)]
        self.machine.start_guest(names[0])
        self.machine.faults.fail('nvmlVgpuInstanceGetMdevUUID',
                                 pynvml.NVML_ERROR_NOT_SUPPORTED, times=None)
        self.assertEqual([orphans.Guest.RUNNING] * 2,
                         [found.guest for found in self.vgpus.found()])

    def test_a_guest_that_cannot_be_asked_for(self):
        name = self.make()
        self.machine.faults.fail('nvmlDeviceGetActiveVgpus',
                                 pynvml.NVML_ERROR_UNKNOWN, times=None)
        found = self.one()
        self.assertEqual(orphans.Guest.UNKNOWN, found.guest)
        for claimed in ((), None):
            self.assert_orphan('?', found, claimed)
            self.assert_kept(found, 'nvmlDeviceGetActiveVgpus', claimed)
        self.assert_orphan('no', found, {name})
        self.records.put_claims(self.entry())
        self.assert_orphan('no', self.one(), None)

    def test_what_a_process_has_open(self):
        name = self.make()
        found = self.one()
        self.machine.open_vfio(name, 4711)
        self.assert_kept(found, 'its VFIO device is open')
        self.assertEqual(orphans.Guest.OPEN, self.one().guest)
        self.assertEqual((), self.machine.damage)

    def test_what_the_kernel_only_says_is_gone(self):
        self.make()
        self.machine.faults.fail_write('*/remove', errno.ENODEV)
        self.assert_kept(self.one(), 'has not removed it')

    def test_a_gpu_that_is_to_be_left_alone(self):
        self.make()
        self.vgpus = self.keep(ignored_addresses=frozenset({self.address}))
        self.assert_orphan('no', self.one())
        self.assert_kept(self.one(), 'ignored')

    def test_another_vgpu_of_the_name(self):
        self.make()
        found = self.one()
        self.vgpus.remove(found, ())
        self.kind = 'T4-8C'
        self.make()
        self.assert_kept(found, 'now a')

    def test_an_unreadable_journal(self):
        self.make()
        found = self.one()
        durable.write(store.of(self.state_path).path(self.address),
                      store.KIND, store.VERSION, [])
        self.assertRaises(exception.JournalError, self.vgpus.found)
        self.assert_kept(found, 'record')

    def test_its_definition_goes_with_it(self):
        name = self.make()
        self.machine.define_mdev(name)
        self.machine.define_mdev(_UUIDS[1])
        self.assertEqual((), self.vgpus.remove(self.one(), ()))
        self.assertEqual((_UUIDS[1],), self.machine.defined_mdevs)

    def test_a_definition_that_stays_is_said(self):
        self.machine.define_mdev(self.make())
        self.machine.faults.fail('mdevctl', errno.EIO)
        (left,) = self.vgpus.remove(self.one(), ())
        self.assertIn('mdevctl', left)
        self.assertEqual([], self.names())


class InstanceTest(OrphanCase):

    host = 'dgx-a100-40'
    gpu = '0000:07:00.0'
    kind = 'A100X-1-5C'

    def setUp(self):
        super().setUp()
        (self.profile,) = [item for item in self.snapshot().mig.profiles
                           if item.name == '1g.5gb']
        self.cut = privileged.create_gpu_instance(
            self.gpu, self.profile.profile_id, 6, 1)[0]

    def make(self, number=0):
        function = str(self.snapshot().vfs[3].address)
        privileged_vgpu.create_mdev(function, self.type_id(), _UUIDS[number])
        return _UUIDS[number]

    def test_the_instance_below_is_not_ours_to_destroy(self):
        name = self.make()
        self.assertEqual((True, None),
                         (self.one().on_instance, self.one().instance_id))
        self.machine.start_guest(name)
        self.assertEqual(self.cut, self.one().instance_id)
        self.machine.stop_guest(name)
        (left,) = self.vgpus.remove(self.one(), ())
        self.assertIn('instance', left)
        self.assertEqual([], self.names())
        self.assertEqual([self.cut], [item.instance_id for item
                                      in self.snapshot().mig.instances])


class VendorVfioTest(OrphanCase):

    host = 'hgx-h100-vfio'
    gpu = '0000:18:00.0'
    kind = 'H100XM-10C'

    def setUp(self):
        super().setUp()
        self.functions = [vf.address for vf in self.snapshot().vfs]

    def make(self, number=0):
        number_of_type = int(self.type_id().rpartition('-')[2])
        privileged_vgpu.set_vgpu_type(str(self.functions[number]),
                                      number_of_type)
        return str(self.functions[number])

    def entry(self, phase=gpu_record.Phase.BOUND, **changes):
        return super().entry(phase, **{
            'vfio': True, 'function': self.functions[0], **changes})

    def test_in_the_journal_of_binds(self):
        name = self.make()
        found = self.one()
        self.records.put_claims(self.entry(gpu_record.Phase.UNBINDING))
        self.assertEqual(f'{_UUIDS[0]} (unbinding)', self.one().owner)
        self.assert_kept(found, '(unbinding)')
        # The entry of an mdev on that function does not own the vGPU.
        self.records.put_claims(self.entry(vfio=False))
        self.assert_orphan('yes', self.one(name))

    def test_a_fixed_one(self):
        self.make()
        found, type_id = self.one(), self.type_id()
        record = gpu_record.FixedVgpus({self.functions[0]: type_id})
        store.of(self.state_path).put(self.address, fixed=record)
        self.assertEqual('fixed', self.one().owner)
        self.assert_kept(found, 'fixed')
        self.assert_orphan('yes', self.one(self.make(1)))

    def test_a_guest_and_its_neighbour(self):
        names = [self.make(number) for number in range(3)]
        before = {found.vgpu.name: found for found in self.vgpus.found()}
        self.machine.start_guest(names[0])
        self.assertEqual(
            [orphans.Guest.RUNNING, *[orphans.Guest.NONE] * 2],
            [found.guest for found in self.vgpus.found()])
        self.assert_kept(before[names[0]], 'a virtual machine runs on it')
        # NVML does not tell which of the two vGPUs runs.
        self.machine.open_vfio(names[1], 4711)
        self.assertEqual(
            [*[orphans.Guest.OPEN] * 2, orphans.Guest.NONE],
            [found.guest for found in self.vgpus.found()])
        for name in names[:2]:
            self.assert_kept(before[name], 'VFIO device is open')
        self.vgpus.remove(before[names[2]], ())
        self.assertEqual(names[:2], self.names())

    def test_a_function_that_cannot_be_read_is_not_an_empty_one(self):
        name = self.make()
        found = self.one()
        self.machine.faults.fail_read(f'*/{name}/nvidia/current_vgpu_type',
                                      errno.EIO)
        self.assert_kept(found, 'was not removed')
