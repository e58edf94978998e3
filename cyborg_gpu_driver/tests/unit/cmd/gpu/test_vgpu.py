# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu vgpu list`` and ``vgpu clean`` as a person runs them."""

import io

import fixtures

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.program.privileged import vgpu as privileged_vgpu
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.tests.unit.cloud import keystone
from cyborg_gpu_driver.tests.unit.cmd import base

_UUIDS = [f'c5b0a1d2-34f6-4c7e-9b8a-00112233445{digit}' for digit in '123']
_COLUMNS = ['name', 'gpu', 'function', 'type', 'gpu_instance', 'owner',
            'guest', 'server', 'arq', 'orphan']


class VgpuCase(base.HostCase):

    host = 't4x4'
    gpus = 4

    def setUp(self):
        super().setUp()
        keystone.forget_clouds(self)
        self.addCleanup(setattr, privileged, '_platform', None)
        self.addCleanup(privileged.privsep.gpu_context.set_client_mode, True)
        self.hardware = self.machine()
        privileged.run_here(platform.open_platform(self.hardware))
        self.addCleanup(self.hardware.uninstall)

    def vgpu(self, *arguments, code=0):
        """The standard output and standard error of a command."""
        return self.run_on_host('vgpu', *arguments, code=code)

    def listed(self, *arguments):
        return self.rows_on_host('vgpu', 'list', *arguments)

    def answer(self, text):
        """Set the text that a person types when a command asks."""
        self.useFixture(fixtures.MonkeyPatch('sys.stdin', io.StringIO(text)))

    def names(self):
        with self.hardware.operation():
            return [vgpu.uuid or vgpu.function for gpu in self.hardware.gpus
                    for vgpu in gpu.state.vgpus]


class MdevTest(VgpuCase):

    gpu = '0000:3b:00.0'

    def setUp(self):
        super().setUp()
        for uuid in _UUIDS:
            privileged_vgpu.create_mdev(self.gpu, 'nvidia-232', uuid)
        address = model.PciAddress.parse(self.gpu)
        store.Store(self.state_path).put_claims(gpu_record.Claim(
            _UUIDS[0], address, address, 'nvidia-232', 'T4-4Q',
            gpu_record.Phase.BOUND))

    def test_what_is_listed(self):
        first, second, _ = self.listed()
        self.assertEqual(_COLUMNS, list(first))
        self.assertEqual(
            {'name': _UUIDS[0], 'gpu': self.gpu, 'function': self.gpu,
             'gpu_instance': None, 'owner': f'{_UUIDS[0]} (bound)',
             'guest': '-', 'server': '?', 'arq': '?', 'orphan': 'no'},
            {key: value for key, value in first.items() if key != 'type'})
        self.assertRegex(first['type'], 'T4-')
        self.assertEqual(('none', '?'), (second['owner'], second['orphan']))
        self.assertIn('| owner', self.vgpu('list', '--long')[0])

    def test_only_orphans_are_listed(self):
        self.hardware.start_guest(_UUIDS[1])
        self.assertEqual(
            ['no', 'no', '?'], [row['orphan'] for row in self.listed()])
        (row,) = self.listed('--orphans')
        self.assertEqual(_UUIDS[2], row['name'])

    def test_why_something_is_not_known_is_said(self):
        with self.hardware.operation(write=True):
            self.hardware.gpu(self.gpu).state.lost = True
        rows = self.listed()
        self.assertEqual(['?'] * 3, [row['guest'] for row in rows])
        self.assertEqual(['no', '?', '?'], [row['orphan'] for row in rows])
        self.assertIn(f'{_UUIDS[1]}: ', self.vgpu('list')[1])

    def test_all_orphans_need_a_cloud(self):
        _, errors = self.vgpu('clean', '--orphans', '--yes', code=1)
        self.assertIn('--without-cloud', errors)
        self.assertNotIn('no cloud:', errors)
        self.assertEqual(_UUIDS, self.names())
        _, errors = self.vgpu('clean', '--orphans', '--yes',
                              '--without-cloud')
        self.assertEqual(_UUIDS[:1], self.names())
        self.assertIn(f'1 of 2: removed {_UUIDS[1]}', errors)
        self.assertIn(f'2 of 2: removed {_UUIDS[2]}', errors)

    def test_a_cloud_that_does_not_answer_is_no_empty_one(self):
        url = 'http://127.0.0.1:1/v3'
        self.useFixture(fixtures.EnvironmentVariable('OS_AUTH_URL', url))
        for arguments in (('list',), ('clean', '--orphans', '--yes'),
                          ('clean', _UUIDS[2], '--yes'),
                          ('list', '--os-cloud', 'elsewhere')):
            _, errors = self.vgpu(*arguments, code=1)
            self.assertIn('cloud elsewhere' if '--os-cloud' in arguments
                          else f'cloud {url}', errors)
        self.assertEqual(_UUIDS, self.names())
        self.assertEqual(3, len(self.listed('--without-cloud')))
        self.vgpu('clean', _UUIDS[2], '--yes', '--without-cloud')
        self.assertEqual(_UUIDS[:2], self.names())

    def test_those_that_are_named(self):
        self.vgpu('clean', _UUIDS[1].upper(), '--yes')
        self.assertEqual([_UUIDS[0], _UUIDS[2]], self.names())

    def test_what_is_refused_does_not_keep_the_others(self):
        self.hardware.start_guest(_UUIDS[1])
        _, errors = self.vgpu('clean', *_UUIDS, 'other', '--yes', code=1)
        self.assertIn(f'vGPU {_UUIDS[0]} was not removed: its owner is',
                      errors)
        self.assertIn(f'vGPU {_UUIDS[1]} was not removed: a virtual machine',
                      errors)
        self.assertIn('There is no vGPU other', errors)
        self.assertEqual(_UUIDS[:2], self.names())

    def test_what_does_not_go(self):
        remove = privileged_vgpu.remove_mdev

        def fail(uuid):
            if uuid == _UUIDS[1]:
                raise exception.SysfsError(action='write', path='remove',
                                           errno=5, reason='Input/output')
            remove(uuid)

        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.privileged.vgpu.remove_mdev', fail))
        _, errors = self.vgpu('clean', '--orphans', '--without-cloud',
                              '--yes', code=1)
        self.assertIn('1 of 2: write', errors)
        self.assertIn('2 of 2: removed', errors)
        self.assertEqual(_UUIDS[:2], self.names())

    def test_it_asks(self):
        for text in ('', 'n\n', '\n', 'maybe\n'):
            self.answer(text)
            _, errors = self.vgpu('clean', _UUIDS[1], code=1)
            self.assertIn(_UUIDS[1], errors)
            self.assertIn('[y/N]', errors)
            self.assertEqual(_UUIDS, self.names())
        self.answer('y\n')
        self.vgpu('clean', _UUIDS[1])
        self.assertEqual([_UUIDS[0], _UUIDS[2]], self.names())

    def test_names_or_orphans(self):
        for arguments in ((), ('--orphans', _UUIDS[1])):
            self.assertRaises(SystemExit, self.vgpu, 'clean', *arguments)
        self.assertEqual(_UUIDS, self.names())


class InstanceTest(VgpuCase):

    host = 'dgx-a100-40'

    def test_an_instance_that_nobody_knows_stays(self):
        gpu = '0000:07:00.0'
        with self.hardware.operation():
            function = self.hardware.gpu(gpu).vf_addresses[0]
        cut, *_ = privileged.create_gpu_instance(gpu, 19, 6, 1)
        privileged_vgpu.create_mdev(function, 'nvidia-463', _UUIDS[0])
        (row,) = self.listed()
        self.assertEqual(('A100X-1-5C', '?'),
                         (row['type'], row['gpu_instance']))
        self.hardware.start_guest(_UUIDS[0])
        (row,) = self.listed()
        self.assertEqual((cut, 'running'),
                         (row['gpu_instance'], row['guest']))
        self.hardware.stop_guest(_UUIDS[0])
        _, errors = self.vgpu('clean', _UUIDS[0], '--yes')
        self.assertIn('Not removed: the GPU instance', errors)
        with self.hardware.operation():
            self.assertEqual(
                [cut], [*self.hardware.gpu(gpu).state.instances])


class VendorVfioTest(VgpuCase):

    host = 'hgx-h100-vfio'
    gpu = '0000:18:00.0'

    def test_functions_go_by_their_address(self):
        with self.hardware.operation():
            functions = self.hardware.gpu(self.gpu).vf_addresses[:2]
        for function in functions:
            privileged_vgpu.set_vgpu_type(function, 1140)
        store.of(self.state_path).put(
            model.PciAddress.parse(self.gpu), fixed=gpu_record.FixedVgpus(
                {model.PciAddress.parse(functions[0]): 'nvidia-1140'}))
        self.assertEqual(
            [(functions[0], 'fixed', 'no'), (functions[1], 'none', '?')],
            [(row['name'], row['owner'], row['orphan'])
             for row in self.listed()])
        _, errors = self.vgpu('clean', functions[0], '--yes', code=1)
        self.assertIn('was not removed: its owner is fixed', errors)
        self.assertIn('There is nothing to remove', errors)
        self.vgpu('clean', '0000' + functions[1].upper(), '--yes')
        self.assertEqual(functions[:1], tuple(self.names()))
