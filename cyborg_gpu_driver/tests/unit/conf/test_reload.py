# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Configuration files that change while the agent runs."""

import os
import pathlib
import re

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.conf import reload

_DOCUMENT = (pathlib.Path(__file__).resolve().parents[4]
             / 'doc/source/admin/policies.rst')
_SLICES = '''
[gpu]
policies = slices
[gpu_policy:slices]
mode = mig
profiles = 1g.10gb
'''
_TWO = '''
[gpu]
policies = desktops, slices
[gpu_policy:desktops]
match_model = *T4*
mode = vgpu
vgpu_types = T4-2B
[gpu_policy:slices]
mode = mig
profiles = 3g.40gb
'''


class ReloadCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level='INFO'))
        self.path = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'cyborg.conf')
        self.write(_SLICES)
        self.conf = cfg.ConfigOpts()
        self.conf.register_opt(cfg.StrOpt('host', default='compute1'))
        self.conf.register_opt(cfg.IntOpt('patience', default=7),
                               group='agent')
        self.conf(['--config-file', self.path], project='test')
        self.settings = policies.read(self.conf)
        self.watch = reload.Watch(self.conf)

    def write(self, text):
        with open(self.path, 'w', encoding='utf-8') as stream:
            stream.write(text)

    def changed(self):
        """Return what the second look finds; only then a change counts."""
        self.assertIsNone(self.watch.changed())
        return self.watch.changed()


class WatchTest(ReloadCase):

    def test_files_that_stay_change_nothing(self):
        for _ in range(3):
            self.assertIsNone(self.watch.changed())
        self.write(_SLICES)
        self.assertIsNone(self.changed())

    def test_new_policies_with_their_groups(self):
        self.write(_TWO)
        settings = self.changed()
        self.assertEqual(['desktops', 'slices'],
                         [item.name for item in settings.policies])
        self.assertEqual(('3g.40gb',), settings.policies[1].profiles)
        self.assertIsNone(self.changed())
        # The watch does not change Cyborg's own options.
        self.assertEqual(['slices'], self.conf.gpu.policies)

    def test_a_file_that_is_being_written_is_waited_for(self):
        for end in range(0, len(_TWO), 40):
            self.write(_TWO[:end])
            self.assertIsNone(self.watch.changed())
        self.write(_TWO)
        self.assertIsNotNone(self.changed())

    def test_the_age_of_a_file_does_not_matter(self):
        self.write(_TWO)
        os.utime(self.path, (1, 1))
        self.assertIsNotNone(self.changed())

    def test_another_process_takes_the_files_at_once(self):
        self.write(_TWO)
        self.useFixture(fixtures.MonkeyPatch('os.getpid', lambda: -1))
        self.assertIsNotNone(self.watch.changed())

    def test_a_mistake_is_named_once_and_changes_nothing(self):
        for text, named in (
                (_SLICES.replace('1g.10gb', '1g.10gb\nmodel = *T4*'),
                 ('gpu_policy:slices', 'model')),
                (_SLICES.replace('mig', 'pie'), ('gpu_policy:slices', 'mode')),
                (_SLICES + '[gpu_policy:more]\nmode = off\n',
                 ('[gpu] policies', 'more')),
                ('[gpu]\npolicies = slices\n', ('gpu_policy:slices', 'mode')),
                ('[gpu]\norphan_grace = soon\n', ('orphan_grace', 'soon')),
                ('[gpu]\npolicies = $no_such\n', ('[gpu] policies', )),
                ('[gpu\n', ())):
            self.write(text)
            for _ in range(4):
                self.assertIsNone(self.watch.changed())
            for expected in (self.path, *named):
                self.assertIn(expected, self.log.output)
            self.assertEqual(1, self.log.output.count('is invalid'))
            self.log.reset_output()
        self.write(_TWO)
        self.assertIsNotNone(self.changed())
        self.assertEqual('', self.log.output)

    def test_a_file_that_is_gone_changes_nothing(self):
        os.remove(self.path)
        self.assertIsNone(self.changed())
        self.assertIn(self.path, self.log.output)
        self.write(_SLICES)
        self.assertEqual(self.settings, self.changed())

    def test_values_that_refer_to_options_of_cyborg(self):
        self.write('''
            [DEFAULT]
            host = elsewhere
            [gpu]
            policies = $host
            orphan_grace = ${agent.patience}
            bind_timeout = $orphan_grace
            [gpu_policy:compute1]
            mode = off
            '''.replace('            ', ''))
        settings = self.changed()
        self.assertEqual('', self.log.output)
        # A change of Cyborg's own option needs a restart.
        self.assertEqual('compute1', settings.policies[0].name)
        self.assertEqual(7, settings.orphan_grace)
        self.assertEqual(7, settings.bind_timeout)

    def test_what_needs_a_restart_is_named(self):
        self.write(_TWO.replace('[gpu]', '[gpu]\nnvml_timeout = 7'))
        self.assertIsNotNone(self.changed())
        self.assertEqual(1, self.log.output.count('needs a restart'))
        for expected in (self.path, '[gpu] nvml_timeout'):
            self.assertIn(expected, self.log.output)


class MutableTest(base.BaseTestCase):

    def test_the_document_lists_what_needs_a_restart(self):
        text = _DOCUMENT.read_text(encoding='utf-8')
        listed = text.partition('.. needs-restart\n')[2].partition(
            '.. end-needs-restart')[0]
        self.assertEqual(reload.RESTART,
                         set(re.findall('``([a-z_]+)``', listed)))

    def test_all_of_a_policy_can_change(self):
        self.assertEqual([], [option.name for option
                              in gpu_conf.POLICY_OPTS if not option.mutable])

    def test_settings_hold_what_can_change_and_no_more(self):
        others = {
            'policies': 'one', 'ignored_devices': '0000:3b:00.0',
            'prepare': 'false', 'nova_vfio_handles': 'true',
            'clean_whole_gpus': 'false',
            'health_events': 'false', 'health_clean_checks': '9',
            'health_cordon_errors': '9', 'health_ignored_xids': '7',
            'bind_timeout': '9',
            'orphan_grace': '9'}
        for option in gpu_conf.GPU_OPTS:
            value = others.get(option.name, '/9' if option.name in (
                'sysfs_root', 'state_path') else '9')
            self.assertEqual(
                option.mutable,
                self.read('') != self.read(f'{option.name} = {value}\n'),
                option.name)

    def read(self, text):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'conf')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(f'[gpu]\n{text}')
            if 'policies' in text:
                stream.write('[gpu_policy:one]\nmode = off\n')
        conf = cfg.ConfigOpts()
        conf(['--config-file', path], project='test')
        return policies.read(conf)
