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


"""The weigher's options, which Nova reads."""

from __future__ import annotations

import io
import pathlib
import subprocess
import sys

from oslo_config import cfg
from oslo_config import generator
from oslotest import base

ROOT = pathlib.Path(__file__).resolve().parents[4]


class OptionsTest(base.BaseTestCase):

    def test_sample_is_what_the_options_say(self):
        conf = cfg.ConfigOpts()
        generator.register_cli_opts(conf)
        conf(['--config-file',
              str(ROOT / 'etc/oslo-config-generator/nova-gpu.conf')],
             default_config_files=[], default_config_dirs=[])
        written = io.StringIO()
        generator.generate(conf, written)
        sample = (ROOT / conf.output_file).read_text(encoding='utf-8')
        self.assertEqual(written.getvalue(), sample,
                         'run "tox -e genconfig" and commit the result')
        self.assertIn('#gpu_weight_multiplier', sample)

    def test_only_the_weigher_needs_nova(self):
        names = ('conf.weigher', 'nova.weigher_reader')
        program = ('import sys; sys.modules["nova"] = None; '
                   + '; '.join(f'import cyborg_gpu_driver.{name}'
                               for name in names))
        done = subprocess.run([sys.executable, '-c', program],
                              capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
