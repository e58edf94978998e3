# SPDX-License-Identifier: Apache-2.0

"""Differences are logged once, and repaired where a repair does no harm."""

import ctypes
import os

import fixtures
import pynvml
from cyborg import context
from cyborg import objects
from cyborg.api import app as cyborg_app

from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.cloud import keystone

_GPU = gpu_cloud.GpuTestCase.gpu
_UUID = 'c5b0a1d2-34f6-4c7e-9b8a-001122334455'
_CLASS = 'CUSTOM_NVIDIA_3G_40GB'


class ReconcileCase(gpu_cloud.GpuTestCase):
    """One GPU's slices, in a cloud whose requests the agent may see."""

    starts_reported = True
    grace = 0
    overrides = {
        'gpu': {'policies': 'one'},
        'gpu_policy:one': {'mode': 'mig', 'match_address': _GPU,
                           'profiles': '1g.10gb, 3g.40gb'}}

    def start(self, **overrides):
        super().start(gpu={**self.overrides['gpu'],
                           'orphan_grace': self.grace})
        self.keystone = self.useFixture(keystone.KeystoneFixture(
            cyborg_app.load_app()))
        self.keystone.write_clouds(here=self.keystone.auth_url)
        self.keystone.log_in(self.driver._conf)
        self.log = self.useFixture(fixtures.FakeLogger(
            level='INFO', format='%(name)s %(message)s'))

    def reports(self):
        """Return what three reports log about differences."""
        before = len(self.log.output)
        for _ in range(3):
            self.cloud.report()
        return [line.partition(' ')[2] for line
                in self.log.output[before:].splitlines()
                if line.startswith('cyborg_gpu_driver.program.reconcile.')]

    def doctor(self, *arguments, code=0):
        """Run doctor; return its rows by code, and standard error."""
        result, output, errors = self.command(
            'doctor', '-f', 'json', '--os-cloud', 'here', *arguments)
        result, rows = command.differences(result, output)
        self.assertEqual(code, result, errors)
        return {row['code']: row for row in rows}, errors

    def assert_named_once(self, lines, *words):
        """Check that exactly one line has all of the words."""
        self.assertEqual(1, len([line for line in lines if all(
            word in line for word in words)]), (words, lines))

    def sysfs(self):
        """Return the sysfs of the compute node's kernel."""
        self.addCleanup(self.world.uninstall)
        return platform.open_platform(self.world).sysfs

    def remove_mdev(self, handle):
        self.sysfs().write('1', 'bus', 'mdev', 'devices', handle, 'remove')

    def create(self, profile_id, size, *starts):
        """Create GPU instances as another tool does."""
        with self.world:
            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByPciBusId(self.gpu)
            for start in starts:
                pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                    device, profile_id, ctypes.byref(
                        pynvml.c_nvmlGpuInstancePlacement_t(start, size)))
            pynvml.nvmlShutdown()

    def destroy(self, instance_id):
        """Destroy a GPU instance behind the driver's back."""
        with self.world.operation(write=True):
            del self.world.gpu(self.gpu).state.instances[instance_id]

    def lose_request(self, server):
        """Delete a server's requests and allocation without an unbind."""
        admin = context.get_admin_context()
        for arq in server.arqs:
            request = objects.ExtARQ.get(admin, arq['uuid'])
            handle = objects.AttachHandle.get_by_id(
                admin, request.attach_handle_id)
            request.destroy(admin)
            handle.deallocate(admin)
        self.cloud.placement.delete(f'/allocations/{server.uuid}')

    def clean(self):
        """Check that everything is released and nothing disagrees.

        If a provider was closed and its generation has changed since, an
        operator may have closed it: the second report opens it.
        """
        self.report()
        self.report()
        self.assertEqual(self.untouched, self.everything())
        self.doctor()


class HandleTest(ReconcileCase):

    def setUp(self):
        super().setUp()
        self.server = self.cloud.bind(self.profile(_CLASS))
        (self.handle,) = self.mdevs()
        self.bound, self.bound_mdevs = self.everything(), self.mdevs()

    def test_a_vgpu_that_vanished_is_made_again(self):
        self.remove_mdev(self.handle)
        rows, _ = self.doctor(code=1)
        self.assertEqual({'vgpu-gone'}, set(rows))
        self.assertTrue(rows['vgpu-gone']['safe'])
        mdevs, placements = self.bound_mdevs, self.placements()
        self.assert_named_once(self.reports(), self.handle,
                               'no longer has a vGPU')
        self.assertEqual((mdevs, placements),
                         (self.mdevs(), self.placements()))
        self.assertEqual(self.bound['journal'], self.journal())
        self.assertEqual(self.bound['placement'],
                         self.cloud.placement.snapshot())
        self.cloud.unbind(self.server)
        self.clean()

    def test_a_slice_whose_place_is_taken_is_left_alone(self):
        (instance,) = self.hardware().instances
        self.remove_mdev(self.handle)
        self.destroy(instance)
        self.create(14, 2, 4)
        rows, said = self.doctor('--repair', code=1)
        self.assertEqual({'vgpu-gone', 'foreign-instance'}, set(rows))
        self.assertFalse(rows['vgpu-gone']['safe'])
        self.assertEqual([(14, 4)], self.placements())
        lines = self.reports()
        self.assert_named_once(lines, 'another is in its place')
        self.assert_named_once(lines, 'unknown GPU instance')
        self.assertEqual([(14, 4)], self.placements())

    def test_what_cyborg_forgot_is_returned(self):
        self.lose_request(self.server)
        rows, _ = self.doctor(code=1)
        self.assertEqual({'no-request'}, set(rows))
        self.assert_named_once(self.reports(), self.handle,
                               'no accelerator request')
        self.clean()

    def test_what_cyborg_forgot_stays_while_a_guest_runs(self):
        self.lose_request(self.server)
        self.world.start_guest(self.handle)
        self.assert_named_once(self.reports(), self.handle,
                               'a virtual machine runs')
        rows, _ = self.doctor('--repair', code=1)
        self.assertFalse(rows['no-request']['safe'])
        self.assertEqual([self.handle], [*self.mdevs()])
        self.world.stop_guest(self.handle)
        _, said = self.doctor('--repair')
        self.assertIn('returned 3g.40gb', said)
        self.clean()

    def test_what_cyborg_forgot_stays_while_cyborg_does_not_answer(self):
        self.lose_request(self.server)
        self.keystone.log_in(self.driver._conf, 'http://127.0.0.1:9/v3')
        self.end_agent()
        (line,) = self.reports()
        self.assertIn('0 allocated in Placement, 1 bound', line)
        self.assertEqual([self.handle], [*self.mdevs()])
        self.assertEqual(1, self.log.output.count(
            'Cannot read the accelerator requests'))

    def test_what_cyborg_forgot_stays_while_a_bind_is_under_way(self):
        self.lose_request(self.server)
        (arq,) = self.cloud.cyborg.create_arqs(
            _CLASS.lower().replace('_', '-'))
        admin = context.get_admin_context()
        request = objects.ExtARQ.get(admin, arq['uuid'])
        request.arq.hostname = gpu_cloud.HOST
        request.update_check_state(admin, 'BindStarted')
        self.assert_named_once(self.reports(), self.handle, arq['uuid'])
        self.assertEqual([self.handle], [*self.mdevs()])
        self.cloud.cyborg.delete_arqs(uuids=[arq['uuid']])
        self.reports()
        self.assertEqual({}, self.mdevs())

    def test_a_lost_entry_is_written_again(self):
        os.unlink(os.path.join(self.state_path, f'gpus/{self.gpu}.json'))
        rows, _ = self.doctor(code=1)
        self.assertEqual({'not-recorded'}, set(rows))
        self.assert_named_once(self.reports(), self.handle,
                               'of which no record has a claim')
        self.assertEqual(self.bound['placement'],
                         self.cloud.placement.snapshot())
        self.cloud.unbind(self.server)
        self.clean()

    def test_an_allocation_without_a_bind_is_left_alone(self):
        provider = self.cloud.provider(self.name('1g.10gb'))
        self.cloud.placement.put(f'/allocations/{_UUID}', {
            'allocations': {provider['uuid']: {
                'resources': {'CUSTOM_NVIDIA_1G_10GB': 1}}},
            'project_id': _UUID, 'user_id': _UUID,
            'consumer_generation': None, 'consumer_type': 'INSTANCE'})
        self.assert_named_once(self.reports(), '1 allocated in Placement, '
                               '0 bound')
        rows, _ = self.doctor('--repair', code=1)
        self.assertEqual({'allocated'}, set(rows))
        # As Nova deletes them: no generation changes.
        self.cloud.placement.delete(f'/allocations/{_UUID}')
        self.assertEqual([], self.reports())
        self.doctor()

    def test_what_is_made_by_hand_is_left_alone(self):
        with self.world.operation():
            function = self.world.gpu(self.gpu).vf_addresses[-1]
        self.create(19, 1, 0, 1)
        (kind,) = [deployable for device in self.driver._agent.report()
                   for deployable in device.deployables
                   if deployable.offer.profile == '1g.10gb']
        self.sysfs().write(
            _UUID, 'class', 'mdev_bus', function, 'mdev_supported_types',
            kind.handles[0].asked_type, 'create')
        self.assert_named_once(self.reports(), f'unknown vGPU {_UUID}')
        self.doctor('--repair', code=1)
        self.assertIn(_UUID, self.mdevs())
        self.assertEqual(3, len(self.placements()))


class DriftTest(ReconcileCase):
    """The metrics of one agent, in which a difference counts at once."""

    def drift(self):
        """Return the kinds that the next report finds or repairs."""
        before = state.read(self.state_path).repaired
        self.cloud.report()
        known = state.read(self.state_path)
        return {*known.drift, *(
            kind for kind, count in known.repaired.items()
            if count > before.get(kind, 0))}

    def test_only_differences_count(self):
        small = self.profile('CUSTOM_NVIDIA_1G_10GB')
        for _ in range(30 if scope.ALL else 5):
            server = self.cloud.bind(small)
            self.assertEqual(set(), self.drift())
            self.cloud.unbind(server)
            self.assertEqual(set(), self.drift())
        servers = [self.cloud.bind(small) for _ in range(3)]
        self.assertEqual(set(), self.drift())
        placement = self.cloud.placement
        provider = self.cloud.provider(self.name('1g.10gb'))['uuid']
        handle = servers[1].arqs[0]['attach_handle_uuid']
        consumer = {
            'allocations': {provider: {
                'resources': {'CUSTOM_NVIDIA_1G_10GB': 1}}},
            'project_id': _UUID, 'user_id': _UUID,
            'consumer_generation': None, 'consumer_type': 'INSTANCE'}
        for kind, act, arguments in (
                ('no-request', self.lose_request, (servers[0],)),
                ('vgpu-gone', self.remove_mdev, (handle,)),
                ('not-allocated', placement.delete,
                 (f'/allocations/{servers[2].uuid}',)),
                ('allocated', placement.put,
                 (f'/allocations/{_UUID}', consumer))):
            act(*arguments)
            self.assertEqual({kind}, self.drift())
            if kind == 'not-allocated':
                self.cloud.cyborg.delete_arqs(instance=servers[2].uuid)
            self.drift()
        placement.delete(f'/allocations/{_UUID}')
        self.cloud.unbind(servers[1])
        self.assertEqual(set(), self.drift())
        before = {*self.hardware().instances}
        self.create(19, 1, 0)
        self.assertEqual({'foreign-instance'}, self.drift())
        (instance,) = {*self.hardware().instances} - before
        self.destroy(instance)
        self.clean()
        self.assertEqual(set(), self.drift())


class PatientTest(ReconcileCase):

    grace = 3600

    def test_what_may_be_under_way_is_not_named_yet(self):
        server = self.cloud.bind(self.profile(_CLASS))
        self.lose_request(server)
        self.assertEqual([], self.reports())
        self.assertEqual(1, len(self.mdevs()))
        self.doctor('--repair')
        self.clean()


class LostJournalTest(ReconcileCase):

    def setUp(self):
        super().setUp()
        small = self.profile('CUSTOM_NVIDIA_1G_10GB')
        self.servers = [self.cloud.bind(name) for name in (
            self.profile(_CLASS), small, small)]
        self.bound = self.everything()

    def test_a_corrupt_one_is_made_again(self):
        host_files.damage(self.state_path, self.gpu, '{')
        self.end_agent()
        self.assert_named_once(self.reports(), 'lost claims', *self.mdevs())
        # An operator has to look at the GPU before it gets more servers.
        self.assertEqual({'1g.10gb': (7, 7), '3g.40gb': (2, 2)},
                         self.reserved())
        rows, _ = self.doctor(code=1)
        self.assertEqual({'bad-record'}, set(rows))
        self.uncordon()
        self.report()
        self.assertEqual(self.bound['placement'],
                         self.cloud.placement.snapshot())
        self.doctor()
        for server in self.servers:
            self.cloud.unbind(server)
        self.clean()


class LostVfioJournalTest(ReconcileCase):

    machine = 'a100x4-vfio'
    gpu = '0000:31:00.0'
    overrides = {
        'gpu': {'policies': 'one'},
        'gpu_policy:one': {'mode': 'mig', 'match_address': '0000:31:00.0',
                           'profiles': '3g.40gb'}}

    @scope.only_in_all
    def test_it_is_made_again_through_the_requests(self):
        server = self.cloud.bind(self.profile(_CLASS))
        (bound,) = self.journal()
        host_files.damage(self.state_path, '0000:31:00.0')
        self.end_agent()
        self.assert_named_once(self.reports(), 'lost claims',
                               bound['handle'])
        # The agent cannot know the time of the bind.
        self.assertEqual([dict(bound, since=None)], self.journal())
        self.cloud.unbind(server)
        self.uncordon()
        self.clean()
