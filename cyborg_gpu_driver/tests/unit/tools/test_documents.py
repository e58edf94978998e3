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


"""What the documentation shows is what the library takes."""

import pathlib
import re
import textwrap

import fixtures
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator import machine

ROOT = pathlib.Path(__file__).resolve().parents[4]
SOURCE = ROOT / 'doc' / 'source'

_INI = re.compile(r'^( *)\.\. code-block:: ini\n\n((?:\1 {3}.*\n|\n)+)',
                  re.MULTILINE)


def examples():
    """Every configuration of the documentation that has policies."""
    for path in (ROOT / 'README.rst', *sorted(SOURCE.rglob('*.rst'))):
        # The README's blocks are indented by four.
        text = path.read_text(encoding='utf-8')
        for match in _INI.finditer(text):
            example = textwrap.dedent(match[2])
            if '[gpu' in example:
                yield path.relative_to(ROOT), example


class ConfigurationTest(base.BaseTestCase):

    def read(self, text):
        path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path) / 'cyborg.conf'
        path.write_text(text, encoding='utf-8')
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[str(path)], default_config_dirs=[])
        return policies.read(conf), conf

    def test_examples_are_right(self):
        with_policies = 0
        for path, text in examples():
            settings, conf = self.read(text)
            named = set(re.findall(r'^\[gpu_policy:(.*)\]', text, re.M))
            self.assertEqual(set(conf.gpu.policies), named, path)
            with_policies += bool(settings.policies)
            # An option that nobody registers is read by nobody.
            known = {option for group in ('gpu', *(
                f'gpu_policy:{name}' for name in named))
                for option in conf[group]}
            for option in re.findall(r'^(\w+) *=', text, re.MULTILINE):
                self.assertIn(option, known | {'enabled_drivers'}, path)
        self.assertGreater(with_policies, 5)


class SimulatorTest(base.BaseTestCase):

    def test_the_example_host_can_be_loaded(self):
        simulated = machine.Machine.load(
            str(SOURCE / 'simulator' / 'example-host.yaml'))
        self.assertEqual('0000:07:00.0',
                         str(simulated.gpu('0000:07:00.0').spec.address))

    def test_every_host_and_model_is_described(self):
        text = (SOURCE / 'simulator' / 'index.rst').read_text(
            encoding='utf-8')
        for name in (*files.names(), *files.model_names()):
            self.assertIn(f'``{name}``', text)

    def test_every_command_line_names_a_host_that_exists(self):
        found = set()
        for path in (ROOT / 'README.rst', *SOURCE.rglob('*.rst')):
            found.update(re.findall(r'--simulate ([a-z][\w-]*)|'
                                    r'^ *simulate = (\S+)',
                                    path.read_text(encoding='utf-8'), re.M))
        found = {name for pair in found for name in pair if name}
        self.assertLessEqual(found, set(files.names()))
        self.assertIn('mixed', found)
