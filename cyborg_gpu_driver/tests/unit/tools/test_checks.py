# SPDX-License-Identifier: Apache-2.0


"""The scripts that check the project find the faults they look for."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import shutil

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


class HouseTest(base.BaseTestCase):

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

    def check(self, module, source, expected):
        """Check one module; ``expected`` is part of a message, '' for none."""
        shutil.copy(ROOT / 'pyproject.toml', self.root)
        self.write(f'cyborg_gpu_driver/{module}', LICENCE + source)
        code, printed = self.run_script('check-house')
        (self.root / 'cyborg_gpu_driver' / module).unlink()
        self.assertEqual(1 if expected else 0, code, printed)
        self.assertIn(expected, printed)
        if expected:
            self.assertIn(f'cyborg_gpu_driver/{module}:', printed)

    def test_each_string_is_used_or_a_docstring(self):
        for source, expected in (
                ('"""A module."""\nA = 1\n"""What A is."""\n', ''),
                ("A = ('one '\n     'two')\n", ''),
                ("A = 'one '\n'two'\n", ':3: a string that nothing uses'),
                ("def f():\n    return 'one '\n    'two'\n",
                 ':4: a string that nothing uses')):
            self.check('partition/a.py', source, expected)

    def test_the_pure_stay_pure(self):
        source = 'def read():\n    return open("/sys")\n'
        self.check('partition/mig/a.py', source, 'a.py:3: open() in')
        self.check('schema.py', source, 'schema.py:3: open() in')
        self.check('schema_reader.py', source, '')
        self.check('program/journal.py', source, '')
