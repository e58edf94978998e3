# SPDX-License-Identifier: Apache-2.0

"""GPUs of mode auto: offered in every role until a server decides on one."""

import json

import fixtures

from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from demo_lib import nova_part

IDLE = {'passthrough': (1, 0), '1g.10gb': (7, 0), '3g.40gb': (2, 0),
        'A100DX-20C': (4, 0), 'A100DX-40C': (2, 0)}


class ElasticCase(gpu_cloud.GpuTestCase):

    starts_reported = True
    roles = 'passthrough,mig,vgpu'
    overrides = {
        'gpu': {'policies': 'elastic,rest'},
        'gpu_policy:elastic': {
            'mode': 'auto', 'roles': 'passthrough,mig,vgpu',
            'match_address': '0000:07:00.0', 'profiles': '1g.10gb,3g.40gb',
            'vgpu_types': 'A100DX-20C,A100DX-40C'},
        'gpu_policy:rest': {'mode': 'off'}}

    def setUp(self):
        super().setUp()
        self.whole = self.profile('PGPU')
        self.slice = self.profile('CUSTOM_NVIDIA_3G_40GB')
        self.small = self.profile('CUSTOM_NVIDIA_1G_10GB')
        self.vgpu = self.profile('CUSTOM_NVIDIA_A100DX_20C')

    def is_now(self):
        """Return driver, MIG mode and whether virtual functions exist."""
        state = self.hardware()
        with self.world.operation():
            driver = self.world.drivers.of(self.gpu)
        return driver, state.mig, bool(state.vfs)

    def assert_closed(self, *labels):
        """Check that nothing of these labels is available."""
        found = self.reserved()
        for label in labels:
            total, reserved = found[label]
            self.assertEqual(total, reserved, label)


class ElasticTest(ElasticCase):

    def test_an_idle_gpu_is_offered_in_all_roles(self):
        self.assertEqual(IDLE, self.reserved())
        self.assertEqual(('vfio-pci', False, False), self.is_now())

    def test_a_slice_decides_and_gives_back(self):
        server = self.cloud.bind(self.slice)
        # The bind reserves the other roles before it returns.
        self.assert_closed('passthrough', 'A100DX-20C', 'A100DX-40C')
        self.assertEqual((2, 0), self.reserved()['3g.40gb'])
        self.assertEqual(('nvidia', True, True), self.is_now())
        for other in (self.whole, self.vgpu):
            self.assertRaises(nova_part.NoCandidates, self.cloud.bind, other)
        second = self.cloud.bind(self.slice)
        self.report()
        self.cloud.unbind(server)
        self.report()
        self.assert_closed('passthrough', 'A100DX-20C', 'A100DX-40C')
        self.cloud.unbind(second)
        self.report()
        self.assertEqual(IDLE, self.reserved())
        self.assertEqual(('vfio-pci', False, False), self.is_now())

    def test_a_vgpu_decides_and_gives_back(self):
        server = self.cloud.bind(self.vgpu)
        self.assert_closed('passthrough', '1g.10gb', '3g.40gb')
        self.assertEqual(('nvidia', False, True), self.is_now())
        self.report()
        self.assert_closed('passthrough', '1g.10gb', '3g.40gb')
        self.cloud.unbind(server)
        self.look_between()
        self.assertEqual(IDLE, self.reserved())

    def test_a_whole_gpu_decides_and_gives_back(self):
        server = self.cloud.bind(self.whole)
        self.world.attach_whole(self.gpu)
        self.report()
        self.assert_closed('1g.10gb', '3g.40gb', 'A100DX-20C', 'A100DX-40C')
        self.world.detach_whole(self.gpu)
        self.cloud.unbind(server)
        self.report()
        self.assertEqual(IDLE, self.reserved())
        self.cloud.unbind(self.cloud.bind(self.small))


class CommandsTest(ElasticCase):

    def rows(self, *arguments, code=0):
        found, output, errors = self.command(*arguments, '-f', 'json')
        self.assertEqual(code, found, output + errors)
        return json.loads(output)

    def test_role_mig(self):
        self.cloud.bind(self.slice)
        self.report()
        for row in (self.rows('gpu', 'show', self.gpu), *(
                row for name in ('list', 'map')
                for row in self.rows('gpu', name)
                if row['address'] == self.gpu)):
            self.assertEqual(('mig', 3), (row['mode'], len(row['roles'])))
        found = self.rows('doctor', code=2)
        # This test has no nova.conf, and nothing else is wrong.
        self.assertEqual(['unknown'], [row['severity'] for row in found])

    def test_offers(self):
        def creatable():
            return {row['profile']: row['creatable'] for row
                    in self.rows('offer', 'list')
                    if row['address'] == self.gpu}

        self.assertEqual({name: total for name, (total, _) in IDLE.items()},
                         creatable())
        self.cloud.bind(self.slice)
        found = creatable()
        self.assertEqual((0, 0, 0, 1), tuple(found[name] for name in (
            'passthrough', 'A100DX-20C', 'A100DX-40C', '3g.40gb')))


class BoardTest(gpu_cloud.GpuTestCase):
    """A board without MIG."""

    machine = 'mixed'
    gpu = '0000:3b:00.0'
    overrides = {
        'gpu': {'policies': 'elastic'},
        'gpu_policy:elastic': {
            'mode': 'auto', 'roles': 'passthrough,mig,vgpu',
            'match_model': '*T4*', 'vgpu_types': 'T4-4C'}}

    def test_a_role_that_it_does_not_have(self):
        self.assertEqual({'passthrough': (1, 0), 'T4-4C': (4, 0)},
                         self.reserved())
        code, output, errors = self.command('offer', 'list', '-f', 'json')
        self.assertEqual(0, code, errors)
        self.assertIn('does not support MIG', output)
        _code, output, errors = self.command('doctor', '-f', 'json')
        self.assertIn('roles: mig is not offered', output + errors)
        server = self.cloud.bind(self.profile('CUSTOM_NVIDIA_T4_4C'))
        self.assertEqual((1, 1), self.reserved()['passthrough'])
        self.cloud.unbind(server)
        self.report()
        self.assertEqual({'passthrough': (1, 0), 'T4-4C': (4, 0)},
                         self.reserved())


class WithoutMdevTest(gpu_cloud.GpuTestCase):
    """Hopper on a kernel without mdev, in two roles that are bound."""

    gpu = '0000:41:00.0'
    overrides = {
        'gpu': {'policies': 'elastic'},
        'gpu_policy:elastic': {
            'mode': 'auto', 'roles': 'vgpu,mig', 'profiles': '3g.40gb',
            'vgpu_types': 'H100XM-20C'}}

    def setUp(self):
        self.machine = host_files.write_host(
            self.useFixture(fixtures.TempDir()).path, [{
                'model': 'h100-80', 'address': self.gpu, 'numa_node': 0,
                'framework': 'vendor-vfio'}])
        super().setUp()

    def test_it_stays_as_its_last_role_has_left_it(self):
        idle = {'3g.40gb': (2, 0), 'H100XM-20C': (4, 0)}
        self.assertEqual(idle, self.reserved())
        for profile, other, is_sliced in (
                ('CUSTOM_NVIDIA_3G_40GB', 'H100XM-20C', True),
                ('CUSTOM_NVIDIA_H100XM_20C', '3g.40gb', False)):
            server = self.cloud.bind(self.profile(profile))
            total, reserved = self.reserved()[other]
            self.assertEqual(total, reserved)
            self.assertEqual((is_sliced, 1), (
                self.hardware().mig, len(self.hardware().vgpus)))
            self.report()
            self.cloud.unbind(server)
            self.report()
            self.assertEqual(idle, self.reserved())
            self.assertEqual(is_sliced, self.hardware().mig)
