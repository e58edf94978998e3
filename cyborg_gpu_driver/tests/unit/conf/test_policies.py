# SPDX-License-Identifier: Apache-2.0

"""Policies from a configuration file, and the error of each mistake."""

import os
import textwrap

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy


def _gpu(address='0000:07:00.0', **facts):
    return model.Gpu(address=model.PciAddress.parse(address),
                     vendor_id='10de', device_id='20b2', class_code='0302',
                     **facts)


class PoliciesTest(base.BaseTestCase):

    def read(self, text):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'conf')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(textwrap.dedent(text))
        conf = cfg.ConfigOpts()
        conf(['--config-file', path], project='test')
        return policies.read(conf)

    def one(self, *lines):
        """Return the policy of these lines."""
        (found,) = self.read('\n'.join(
            ('[gpu]', 'policies = a', '[gpu_policy:a]', *lines))).policies
        return found

    def test_without_policies_the_machine_decides(self):
        settings = self.read('')
        self.assertIsNone(settings.policies)
        self.assertIs(policy.Mode.PASSTHROUGH,
                      settings.policy_for(_gpu()).mode)
        vf = model.VirtualFunction(
            model.PciAddress.parse('0000:07:00.4'), 0, 'nvidia', 4)
        for enabled, vfs, mode in ((True, (vf,), policy.Mode.MIG),
                                   (True, (), policy.Mode.PASSTHROUGH),
                                   (False, (vf,), policy.Mode.PASSTHROUGH)):
            gpu = _gpu(mig=model.Mig(enabled, enabled), vfs=vfs)
            self.assertIs(mode, settings.policy_for(gpu).mode)

    def test_sizes_of_groups(self):
        for lines, sizes in (((), ()), (('nvlink_sizes = 8, 2,2',), (2, 8))):
            found = self.one('mode = nvlink', *lines)
            self.assertIs(policy.Mode.NVLINK, found.mode)
            self.assertEqual(sizes, found.nvlink_sizes)
        for lines, word in (
                (('mode = mig', 'nvlink_sizes = 2'), 'mode nvlink'),
                (('mode = nvlink', 'nvlink_sizes = 0'), '0'),
                (('mode = nvlink', 'profiles = 1g.10gb'), 'mode mig')):
            self.refused(lines, word)

    def test_the_first_that_matches_governs(self):
        settings = self.read('''
            [gpu]
            policies = one,two,rest
            [gpu_policy:one]
            match_address = 0000:07:00.0
            mode = mig
            profiles = 1g.10gb, 3g.40gb
            [gpu_policy:two]
            match_numa_node = 1
            match_model = *A100*
            mode = vgpu
            vgpu_types = A100DX-8C
            [gpu_policy:rest]
            mode = off
            ''')
        one, two, rest = settings.policies
        self.assertEqual(('1g.10gb', '3g.40gb'), one.profiles)
        self.assertEqual(one, settings.policy_for(
            _gpu(numa_node=1, model='NVIDIA A100-SXM4-80GB')))
        self.assertEqual(two, settings.policy_for(
            _gpu('0000:0f:00.0', numa_node=1, model='nvidia a100-sxm4')))
        # Each kind of match that is set must hold.
        for gpu in (_gpu('0000:0f:00.0', numa_node=0, model='A100'),
                    _gpu('0000:0f:00.0', numa_node=1, model='H100'),
                    _gpu('0000:0f:00.0', numa_node=1)):
            self.assertEqual(rest, settings.policy_for(gpu))

    def test_a_gpu_that_no_policy_matches_is_not_offered(self):
        settings = policies.Settings(policies=(
            self.one('mode = passthrough', 'match_uuid = GPU-ABC'),))
        self.assertIsNone(settings.policy_for(_gpu(uuid='GPU-abd')))
        self.assertIsNotNone(settings.policy_for(_gpu(uuid='GPU-abc')))

    def test_ignored_devices_by_address_and_by_uuid(self):
        settings = self.read('''
            [gpu]
            ignored_devices = 0000:0F:00.0, gpu-ABC
            ''')
        self.assertIsNone(settings.policy_for(_gpu('0000:0f:00.0')))
        self.assertIsNone(settings.policy_for(_gpu(uuid='GPU-abc')))
        self.assertIsNotNone(settings.policy_for(_gpu(uuid='GPU-abd')))

    def test_a_model_may_be_matched_by_pci_device_id(self):
        self.assertTrue(self.one('mode = passthrough', 'match_model = 20B?'
                                 ).matches(_gpu()))

    def test_every_mistake_names_group_and_option(self):
        for text, words in (
                ('[gpu]\nignored_devices = nonsense',
                 ('[gpu] ignored_devices', 'nonsense')),
                ('[gpu]\npolicies = a/b', ('[gpu] policies', 'a/b')),
                ('[gpu]\npolicies = a,a\n[gpu_policy:a]\nmode = off',
                 ('[gpu] policies', 'twice'))):
            error = self.assertRaises(exception.InvalidConfiguration,
                                      self.read, text)
            for word in words:
                self.assertIn(word, str(error))
        for lines, words in (
                ((), ('] mode', 'passthrough')),
                (('mode = vgpu',), ('] vgpu_types',)),
                (('mode = vgpu', 'vgpu_types = T4-2B', 'profiles = 1g.10gb'),
                 ('] profiles', 'mig')),
                (('mode = off', 'match_address = 3b:00.0'),
                 ('] match_address', '3b:00.0')),
                (('mode = off', 'match_numa_node = zero'),
                 ('] match_numa_node', 'zero'))):
            self.refused(lines, *words)

    def refused(self, lines, *words):
        error = self.assertRaises(
            exception.InvalidConfiguration, self.read, '\n'.join(
                ('[gpu]', 'policies = a', '[gpu_policy:a]', *lines)))
        for word in ('[gpu_policy:a]', *words):
            self.assertIn(word, str(error))

    def test_vgpu_options(self):
        one = self.one(
            'mode = vgpu', 'vgpu_types = A40-4Q, A40-8Q',
            'max_instances = A40-4Q:6, nvidia-560 : 2', 'mixed_sizes = true',
            'vgpu_scheduler = equal-share', 'vgpu_time_slice_us = 2000')
        self.assertEqual((('A40-4Q', 6), ('nvidia-560', 2)),
                         one.max_instances)
        self.assertTrue(one.mixed_sizes)
        self.assertIs(model.SchedulerPolicy.EQUAL_SHARE, one.scheduler)
        self.assertEqual(2_000_000, one.time_slice)

    def test_options_of_vgpus_in_mode_mig(self):
        one = self.one(
            'mode = mig', 'vgpu_types = DC-1-8Q', 'fixed_vgpus = DC-1-8Q:2',
            'vgpu_scheduler = fixed-share', 'vgpu_time_slice_us = 3000')
        self.assertEqual(
            (model.SchedulerPolicy.FIXED_SHARE, 3_000_000, (('DC-1-8Q', 2),)),
            (one.scheduler, one.time_slice, one.fixed_vgpus))

    def test_fixed_vgpus_need_no_types(self):
        self.assertEqual(
            (('L40S-12Q', 2), ('L40S-24Q', 1)),
            self.one('mode = vgpu',
                     'fixed_vgpus = L40S-12Q:2,L40S-24Q:1').fixed_vgpus)

    def test_counts_that_are_none(self):
        for option in ('max_instances', 'fixed_vgpus'):
            for value in ('A40-4Q:0', 'A40-4Q:-1', 'A40-4Q:many',
                          'A40-4Q:1.5', 'A40-4Q:10000', 'A40-4Q:'):
                self.refused(('mode = vgpu', 'vgpu_types = A40-4Q',
                              f'{option} = {value}'), option, value)
            self.refused(('mode = vgpu', 'vgpu_types = A40-4Q',
                          f'{option} = A40-4Q'), option)
        self.refused(('mode = vgpu', 'fixed_vgpus = A40-4Q'), 'fixed_vgpus')

    def test_options_of_another_mode(self):
        for mode in ('mig', 'passthrough', 'off'):
            self.refused((f'mode = {mode}', 'mixed_sizes = true'),
                         'mixed_sizes', 'only supported by mode vgpu')
        for mode in ('passthrough', 'off'):
            self.refused((f'mode = {mode}', 'fixed_vgpus = A40-4Q:1'),
                         'fixed_vgpus',
                         'only supported by mode vgpu and mode mig')
            self.refused((f'mode = {mode}', 'profiles = 1g.10gb'),
                         '] profiles = 1g.10gb: only supported by mode mig')
            for line in ('vgpu_types = A40-4Q', 'max_instances = A40-4Q:1',
                         'vgpu_scheduler = best-effort',
                         'vgpu_time_slice_us = 5', 'isolation = project'):
                self.refused((f'mode = {mode}', line), line.split()[0],
                             'only supported by mode vgpu and mode mig')

    def test_roles(self):
        one = self.one('mode = auto', 'roles = passthrough, vgpu',
                       'vgpu_types = A40-4Q')
        self.assertEqual((policy.Mode.PASSTHROUGH, policy.Mode.VGPU),
                         one.roles)
        self.assertEqual(one.roles, one.modes)

    def test_roles_that_are_none(self):
        whole = 'roles = passthrough, mig'
        for lines, words in (
                (('mode = mig', whole), ('roles', 'only supported by mode '
                                         'auto')),
                (('mode = auto',), ('roles = (unset)', 'at least two')),
                (('mode = auto', 'roles = mig'), ('at least two', 'set mode')),
                (('mode = auto', 'roles = mig, mig'), ('named twice',)),
                (('mode = auto', 'roles = mig, off'), (
                    "'off'", 'passthrough, mig, vgpu')),
                (('mode = auto', 'roles = mig, vgpu'), (
                    'vgpu_types', 'role vgpu needs')),
                (('mode = auto', whole, 'mixed_sizes = true'), (
                    'mixed_sizes', 'only supported by mode vgpu')),
                (('mode = auto', whole, 'fixed_vgpus = A40-4Q:1'), (
                    'fixed_vgpus', 'mode auto excludes it'))):
            self.refused(lines, *words)
        for option in ('prepare', 'clean_whole_gpus'):
            error = self.assertRaises(
                exception.InvalidConfiguration, self.read,
                f'[gpu]\npolicies = x\n{option} = false\n'
                f'[gpu_policy:x]\nmode = auto\n{whole}\n')
            self.assertIn(f'[gpu] {option}', str(error))
            self.assertIn('[gpu_policy:x] needs true', str(error))

    def test_options_that_exclude_each_other(self):
        lines = ('mode = vgpu', 'vgpu_types = A40-4Q')
        self.refused((*lines, 'mixed_sizes = true',
                      'vgpu_scheduler = fixed-share'), 'vgpu_scheduler',
                     'best-effort or equal-share')
        self.refused((*lines, 'vgpu_time_slice_us = 5'), 'vgpu_time_slice_us',
                     'needs vgpu_scheduler')
        self.refused((*lines, 'isolation = project',
                      'fixed_vgpus = A40-4Q:1'), 'isolation', 'fixed_vgpus')
