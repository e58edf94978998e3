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


"""The scripts that check the project find the faults they look for."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib

import fixtures
from oslotest import base

ROOT = pathlib.Path(__file__).resolve().parents[4]
LICENCE = '# Licensed under the Apache License, Version 2.0\n'


def script(name):
    """Import a script of tools/, which has no suffix, as a module."""
    loader = importlib.machinery.SourceFileLoader(
        name.replace('-', '_'), str(ROOT / 'tools' / name))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class ScriptTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding='utf-8')

    def run_script(self, name):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = script(name).main([name, str(self.root)])
        return code, printed.getvalue()


class HouseTest(ScriptTest):

    def check(self, module, source, expected):
        """Check one module; ``expected`` is part of a message, '' for none."""
        self.write(f'cyborg_gpu_driver/{module}', LICENCE + source)
        code, printed = self.run_script('check-house')
        (self.root / 'cyborg_gpu_driver' / module).unlink()
        self.assertEqual(1 if expected else 0, code, printed)
        self.assertIn(expected, printed)
        if expected:
            self.assertIn(f'cyborg_gpu_driver/{module}:', printed)

    def test_packages_know_only_what_is_below_them(self):
        ours = 'from cyborg_gpu_driver'
        for module, source, expected in (
                ('partition/a.py', f'{ours}.host.snapshot import model\n', ''),
                ('partition/a.py', f'{ours}.host import reader\n',
                 'partition may not import host.reader'),
                ('host/a.py', f'{ours}.partition import geometry\n',
                 'host may not import partition.geometry'),
                ('host/a.py', f'{ours} import exception\n', ''),
                ('host/a.py', f'{ours} import conf\n',
                 'host may not import conf'),
                ('host/a.py', 'import cyborg_gpu_driver.conf.gpu\n',
                 'host may not import conf.gpu'),
                ('host/a.py', 'from . import model\n', 'relative import'),
                ('host/nvml/a.py', f'{ours}.host.snapshot import model\n',
                 ''),
                ('host/snapshot/a.py', f'{ours}.host.snapshot import b\n',
                 ''),
                ('host/snapshot/a.py', f'{ours}.host.nvml import gate\n',
                 'host.snapshot may not import host.nvml.gate'),
                ('cmd/a.py', f'{ours}.simulator import machine\n',
                 'cmd may not import simulator.machine'),
                ('simulator/a.py', f'{ours}.host import sysfs\n',
                 'simulator may not import host.sysfs'),
                ('simulator/platform.py', f'{ours}.host import sysfs\n', ''),
                ('tests/a.py', f'{ours}.simulator import machine\n', ''),
                ('novel/a.py', f'{ours} import exception\n',
                 'novel is not in the table')):
            self.check(module, source, expected)

    def test_each_string_is_used_or_a_docstring(self):
        for source, expected in (
                ('"""A module."""\nA = 1\n"""What A is."""\n', ''),
                ("A = ('one '\n     'two')\n", ''),
                ("A = 'one '\n'two'\n", ':3: a string that nothing uses'),
                ("def f():\n    return 'one '\n    'two'\n",
                 ':4: a string that nothing uses')):
            self.check('partition/a.py', source, expected)

    def test_third_parties_have_their_places(self):
        for module, source, expected in (
                ('host/nvml/session.py', 'import pynvml\n', ''),
                ('host/a.py', 'import pynvml\n', 'pynvml is imported'),
                ('cmd/a.py', 'import pynvml\n', 'pynvml is imported'),
                ('program/a.py', 'def f():\n    import pynvml\n',
                 'pynvml is imported'),
                ('report/objects.py', 'from cyborg.objects import a\n', ''),
                ('report/content/build.py', 'from cyborg.objects import a\n',
                 'cyborg is imported'),
                ('program/a.py', 'import subprocess\n', 'no shelling out')):
            self.check(module, source, expected)

    def test_the_pure_stay_pure(self):
        for source, expected in (
                ('import dataclasses\n', ''),
                ('import os.path\n', 'os is imported'),
                ('from pathlib import Path\n', 'pathlib is imported'),
                ('open("/sys")\n', 'open() in partition.a')):
            self.check('partition/a.py', source, expected)
        self.check('program/journal.py', 'import os\n', '')

    def test_the_licence_is_there(self):
        self.write('cyborg_gpu_driver/host/b.py', 'a = 1\n')
        code, printed = self.run_script('check-house')
        self.assertEqual(1, code)
        self.assertIn('b.py:1: does not start with the licence', printed)

    def test_an_empty_tree_is_no_success(self):
        code, printed = self.run_script('check-house')
        self.assertEqual(1, code, printed)


class BoundsTest(ScriptTest):

    def check(self, constraints):
        self.write('requirements.txt',
                   '# A comment\nPyYAML>=6.0.1 # MIT\ncliff>=4.3.0\n')
        self.write('lower-constraints.txt', constraints)
        return self.run_script('check-bounds')

    def test_equal(self):
        code, printed = self.check('cliff==4.3.0\npyyaml==6.0.1\nsix==1.0\n')
        self.assertEqual(0, code, printed)

    def test_other_version(self):
        code, printed = self.check('cliff==4.4.0\nPyYAML==6.0.1\n')
        self.assertEqual(1, code)
        self.assertIn('cliff==4.4.0, but requirements.txt says cliff>=4.3.0',
                      printed)

    def test_absent(self):
        code, printed = self.check('cliff==4.3.0\n')
        self.assertEqual(1, code)
        self.assertIn('pyyaml==(absent)', printed)

    def test_a_release_that_pins_an_older_version(self):
        self.write('releases/2026.1.txt', 'cliff==4.2.10\nPyYAML==6.0.2\n')
        code, printed = self.check('cliff==4.3.0\nPyYAML==6.0.1\n')
        self.assertEqual(1, code)
        self.assertIn('releases/2026.1.txt: cliff==4.2.10, but '
                      'requirements.txt says cliff>=4.3.0', printed)
        self.assertIn('2 requirements, 1 wrong', printed)
