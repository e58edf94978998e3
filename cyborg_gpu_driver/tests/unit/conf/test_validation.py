# SPDX-License-Identifier: Apache-2.0

"""Mistakes in a configuration file are errors."""

from __future__ import annotations

import os

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies

_POLICY = '[gpu]\npolicies = x\n[gpu_policy:x]\nmode = mig\n'


class ValidationTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(self.directory, 'cyborg.conf')

    def read(self, text, more=''):
        """Read a file, and after it a file of a configuration directory."""
        with open(self.path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        directory = os.path.join(self.directory, 'conf.d')
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, '10-gpu.conf'), 'w',
                  encoding='utf-8') as stream:
            stream.write(more)
        conf = cfg.ConfigOpts()
        conf(['--config-file', self.path, '--config-dir', directory],
             project='test')
        return policies.read(conf)

    def refused(self, text, *words, more=''):
        error = self.assertRaises(exception.InvalidConfiguration, self.read,
                                  text, more)
        for word in words:
            self.assertIn(word, str(error))
        self.assertNotIn('Location', str(error))

    def test_unknown_option_of_a_policy(self):
        self.refused(_POLICY + 'match_modell = *A100*\n',
                     '[gpu_policy:x] match_modell = *A100*', self.path,
                     'did you mean match_model?')
        self.refused(_POLICY + 'colour = green\n', '[gpu_policy:x] colour',
                     'the options are', 'match_uuid')

    def test_unknown_option_of_the_host(self):
        self.refused('[gpu]\npolicy = x\n', '[gpu] policy = x',
                     'did you mean policies?')
        self.refused('[GPU]\npolicie = x\n', '[gpu] policie')

    def test_unknown_option_in_a_configuration_directory(self):
        self.refused(_POLICY, '[gpu_policy:x] profile', '10-gpu.conf',
                     'did you mean profiles?',
                     more='[gpu_policy:x]\nprofile = 1g.10gb\n')

    def test_policy_that_is_not_listed(self):
        self.refused(_POLICY + '[gpu_policy:y]\nmode = off\n',
                     '[gpu] policies = x', '[gpu_policy:y]', 'add y')
        self.refused('[gpu_policy:y]\nmode = off\n',
                     '[gpu] policies = (unset)')

    def test_misspelt_policy_group(self):
        for group in ('gpu-policy:x', 'gpu_polcy:x', 'GPUpolicy:x'):
            self.refused(f'[{group}]\nmode = off\n', group,
                         'did you mean [gpu_policy:x]?')

    def test_values(self):
        for line, word in (
                ('orphan_grace = ten', 'ten'),
                ('nvml_timeout = 0', 'or equal to 1'),
                ('health_ignored_xids = abc', 'abc'),
                ('prepare = perhaps', 'boolean'),
                ('state_path = relative/dir', 'an absolute path'),
                ('sysfs_root = sys', 'an absolute path'),
                ('state_path = $nonsense', 'nonsense')):
            name, _, text = line.partition(' = ')
            self.refused(f'[gpu]\n{line}\n', f'[gpu] {name} = {text}', word)
        for line, word in (
                ('mode = migg', 'passthrough, vgpu, mig, nvlink, auto, off'),
                ('mode = mig\nmatch_numa_node = -1', 'or equal to 0'),
                ('mode = mig\nmax_instances = A40', 'pairs')):
            self.refused('[gpu]\npolicies = x\n[gpu_policy:x]\n' + line,
                         '[gpu_policy:x]', word)

    def test_state_path_that_is_a_file(self):
        """The operator may correct it later, so the agent starts."""
        self.read(f'[gpu]\nstate_path = {self.path}\n')

    def test_the_last_assignment_is_named(self):
        self.refused('[gpu]\norphan_grace = 5\n', '[gpu] orphan_grace = ten',
                     more='[gpu]\norphan_grace = ten\n')


class StatePathTest(base.BaseTestCase):

    def state_path(self, **options):
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], project='test', default_config_files=[])
        for name, value in options.items():
            conf.set_override(name, value, group='gpu')
        return gpu_conf.state_path(conf)

    def test_simulated_host_keeps_away_from_the_default(self):
        self.assertEqual('/var/lib/cyborg/gpu', self.state_path())
        self.assertEqual('/var/lib/cyborg/gpu/simulated',
                         self.state_path(simulate='t4x4'))
        self.assertEqual('/own', self.state_path(simulate='t4x4',
                                                 state_path='/own'))
