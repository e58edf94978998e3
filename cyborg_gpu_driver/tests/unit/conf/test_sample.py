# SPDX-License-Identifier: Apache-2.0


"""The sample configuration files of the repository."""

import io
import pathlib

import testscenarios
from oslo_config import cfg
from oslo_config import generator
from oslotest import base

load_tests = testscenarios.load_tests_apply_scenarios

ROOT = pathlib.Path(__file__).resolve().parents[4]


class SampleTest(base.BaseTestCase):

    scenarios = [
        ('of the agent', {'name': 'cyborg-gpu', 'option': 'state_path'}),
        ('of the weigher', {'name': 'nova-gpu',
                            'option': 'gpu_weight_multiplier'}),
        ('of the inspection', {'name': 'ironic-gpu',
                               'option': 'layout_files'})]

    def test_sample_is_what_the_options_say(self):
        conf = cfg.ConfigOpts()
        generator.register_cli_opts(conf)
        conf(['--config-file',
              str(ROOT / f'etc/oslo-config-generator/{self.name}.conf')],
             default_config_files=[], default_config_dirs=[])
        written = io.StringIO()
        generator.generate(conf, written)
        sample = (ROOT / conf.output_file).read_text(encoding='utf-8')
        self.assertEqual(written.getvalue(), sample,
                         'run "tox -e genconfig" and commit the result')
        self.assertIn(f'#{self.option}', sample)
