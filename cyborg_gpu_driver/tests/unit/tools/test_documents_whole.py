# SPDX-License-Identifier: Apache-2.0

"""The documentation is complete. Sphinx checks its references."""

import configparser
import importlib
import os
import pkgutil
import re
import shlex
import types
from xml.etree import ElementTree

import fixtures
import yaml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import definition
from cyborg_gpu_driver.cloud import orphans
from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.cmd.doctor import command as doctor
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.cmd import base as cmd_base
from cyborg_gpu_driver.tests.unit.osc import running
from cyborg_gpu_driver.tests.unit.osc import test_explain
from cyborg_gpu_driver.tests.unit.tools import documents

_SHOWN = re.compile(
    r'[#$] cyborg-gpu (--simulate (?:.*\\\n)*.*[^\\\n])\n([^#$](?:.*\n)+)')
"""A block with one command on a simulated host, and what it prints."""


_FOLLOWED = 'layouts.rst'


def _entry_points(group):
    """Return the entry points of a group of ``setup.cfg``: name to object."""
    parser = configparser.ConfigParser()
    parser.read(documents.ROOT / 'setup.cfg')
    return dict(line.split(' = ')
                for line in parser['entry_points'][group].splitlines()
                if line)


def _sources():
    """Return the pages of the documentation without the README."""
    return documents.pages()[1:]


class PartsTest(base.BaseTestCase):

    def test_every_fragment_is_part_of_a_page(self):
        whole = ''.join(page.read_text(encoding='utf-8')
                        for page in _sources())
        for fragment in documents.SOURCE.rglob('*.inc'):
            self.assertIn(f'.. include:: {fragment.name}\n', whole)

    def test_every_picture_is_shown_and_is_valid(self):
        text = ''.join(map(documents.text, documents.pages()))
        found = [*documents.SOURCE.glob('pictures/*')]
        self.assertNotEqual([], found)
        for path in found:
            self.assertIn(f'/{path.name}\n', text)
            # Browsers do not show invalid XML.
            ElementTree.parse(path)


class ContributorTest(base.BaseTestCase):
    """The pages for contributors are complete and true."""

    def test_the_architecture_has_every_package_and_module(self):
        page = documents.text(
            documents.SOURCE / 'contributor' / 'architecture.rst')
        package = documents.ROOT / 'cyborg_gpu_driver'
        names = [path.parent.name for path in package.glob('*/__init__.py')]
        names += [path.name for path in package.glob('*.py')]
        self.assertEqual(
            {'tests', '__init__.py'},
            {name for name in names if f'``{name}``' not in page})

    def test_the_path_of_a_bind_has_functions_that_exist(self):
        text = documents.text(
            documents.SOURCE / 'contributor' / 'first-change.rst')
        (path,) = re.findall(r'^The path of a bind\n=+\n(.*)', text,
                             re.MULTILINE | re.DOTALL)
        names = re.findall(r'^ {3}\* - ``(\S+)``$', path, re.MULTILINE)
        self.assertGreater(len(names), 8)
        for name in names:
            self.assertTrue(pkgutil.resolve_name(
                f'cyborg_gpu_driver.{name}'))

    def test_tox_has_the_programs_that_the_pages_run_with_it(self):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(documents.ROOT / 'tox.ini')
        pages = (*documents.pages(), documents.ROOT / 'CONTRIBUTING.rst')
        run = {program for page in pages
               for program in re.findall(r'tox -e venv -- (\w+)',
                                         documents.text(page))}
        self.assertEqual({'reno'}, run)
        self.assertIn('\nreno>=', parser['testenv:venv']['deps'])


class CompleteTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        # Only the pages written for operators; generated pages do not count.
        self.text = '\n'.join(
            documents.text(page) for page in _sources()
            if page.parent.name not in ('cli', 'configuration'))

    def missing(self, patterns):
        return [pattern for pattern in patterns
                if not re.search(pattern, self.text)]

    def test_every_command_is_generated_and_is_on_an_operators_page(self):
        for page, group, program in (
                ('index', main.NAMESPACE, 'cyborg-gpu'),
                ('openstack', 'openstack.gpu.v1', 'openstack')):
            reference = documents.text(
                documents.SOURCE / 'cli' / f'{page}.rst')
            self.assertIn(f'.. autoprogram-cliff:: {group}\n', reference)
            # Options may precede the command, and a line may end within it.
            self.assertEqual([], self.missing(
                rf'{program}(?: --\S+ \S+)*\s+'
                + re.sub('[_ ]', r'\\s+', name)
                for name in _entry_points(group)))

    def test_every_program_is_named(self):
        self.assertEqual([], self.missing(
            _entry_points('console_scripts')))

    def test_every_option_is_generated(self):
        page = documents.text(
            documents.SOURCE / 'configuration' / 'index.rst')
        for name in _entry_points('oslo.config.opts'):
            self.assertIn(f'.. show-options::\n\n   {name}\n', page)

    def test_every_check_is_explained(self):
        page = documents.text(documents.SOURCE / 'admin' / 'doctor.rst')
        rows = [line.partition('  ')[0] for line in page.splitlines()
                if '  ' in line]
        self.assertEqual([], [name for name in doctor.CHECKS
                              if rows.count(f'``{name}``') != 1])

    def test_every_word_of_an_answer_is_explained(self):
        for page, words in (('orphans', [kind.value for kind
                                         in orphans.Kind]),
                            ('doctor', [kind.value for kind
                                        in reconcile.Kind])):
            text = documents.text(
                documents.SOURCE / 'admin' / f'{page}.rst')
            self.assertEqual([], [word for word in words
                                  if f'``{word}``' not in text])


class InstallTest(base.BaseTestCase):

    def test_no_page_takes_the_library_from_an_index(self):
        """No package index has it: anybody could publish the name."""
        for page in documents.pages():
            self.assertNotRegex(
                documents.text(page),
                r'pip3? install[^\n]*cyborg[-_]gpu[-_]driver'
                r'(?!\S*\.(whl|tar\.gz))')


class YamlTest(base.BaseTestCase):

    def test_blocks_are_read(self):
        definitions = 0
        for page in documents.pages():
            for block in documents.blocks(documents.text(page), 'yaml'):
                if 'profiles' in yaml.safe_load(block):
                    definition.parse(block, str(page))
                    definitions += 1
        self.assertGreater(definitions, 2)


class CyborgGpuTest(cmd_base.CommandCase):

    def test_every_command_line_is_understood(self):
        found = 0
        for page in documents.pages():
            for words in documents.commands(documents.text(page),
                                            'cyborg-gpu'):
                app = main.CyborgGpu()
                _options, rest = app.parser.parse_known_args(words[1:])
                factory, name, rest = app.command_manager.find_command(rest)
                parser = factory(app, None).get_parser(name)
                parser.error = lambda message, words=words: self.fail(
                    f'{" ".join(words)}: {message}')
                parser.parse_args(rest)
                found += 1
        self.assertGreater(found, 80)

    def test_command_lines_run(self):
        """Those that no test of a page follows; without a cloud, some fail."""
        directory = self.useFixture(fixtures.TempDir()).path
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(directory)
        os.symlink(documents.ROOT / 'doc', 'doc')
        host = ('--config-file', self.configure(
            f'[gpu]\nstate_path = {directory}\n', directory),
            '--simulate', 'mixed', '--state', 'machine.json')
        # The README's block of commands has no prompt.
        readme = re.findall(r'^ {4}cyborg-gpu (--simulate (?:.*\\\n)*.*)$',
                            documents.pages()[0].read_text(encoding='utf-8'),
                            re.MULTILINE)
        lines = [line.replace('\\\n', ' ').split() for line in readme]
        lines += [words[1:] for page in _sources() if page.name != _FOLLOWED
                  and page.parent.name != 'first-server'
                  for words in documents.commands(
                      documents.text(page), 'cyborg-gpu')
                  if 'exporter' not in words]
        succeeded = 0
        for words in lines:
            simulated = '--simulate' in words
            code, _output, errors = command.run(
                *(() if simulated else host), *words)
            self.assertIn(code, (0, 1, 2), words)
            self.assertNotIn('Traceback', errors, words)
            # A layout that is planned is not in effect.
            if simulated and 'layout' not in words:
                self.assertEqual(0, code, errors)
            succeeded += not code
        self.assertGreater(succeeded, 20)
        self.assertGreater(len(lines), 40)

    def test_what_the_pages_show_of_simulated_hosts_is_printed(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(documents.ROOT)
        played = 0
        for page in _sources():
            for block in documents.blocks(documents.text(page), 'console'):
                found = _SHOWN.fullmatch(block)
                if found:
                    code, output, errors = command.run(
                        *shlex.split(found[1].replace('\\\n', ' ')),
                        encoding='utf-8')
                    wanted = int('layout plan' in found[1])
                    self.assertEqual((wanted, found[2]), (code, output),
                                     errors)
                    played += 1
        self.assertGreater(played, 1)


class OpenstackGpuTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.commands = {
            tuple(name.split('_')): where for name, where
            in _entry_points('openstack.gpu.v1').items()}

    def lines(self):
        """Generate the words of each ``openstack gpu ...``, and its page."""
        for page in documents.pages():
            text = documents.text(page)
            for words in documents.commands(text, 'openstack'):
                if 'gpu' in words[1:4:2]:
                    yield tuple(words[words.index('gpu'):]), text

    def command(self, words):
        """Return a command, and the words after its name."""
        size = next((size for size in (4, 3, 2)
                     if words[:size] in self.commands), 0)
        self.assertTrue(size, f'no such command: {" ".join(words)}')
        module, _, name = self.commands[words[:size]].partition(':')
        return getattr(importlib.import_module(module), name), words[size:]

    def test_every_command_line_is_understood(self):
        found = 0
        for words, _text in self.lines():
            command, arguments = self.command(words)
            parser = command(types.SimpleNamespace(), None).get_parser('')
            parser.error = lambda message, words=words: self.fail(
                f'{" ".join(words)}: {message}')
            parser.parse_args(arguments)
            found += 1
        self.assertGreater(found, 20)

    def test_command_lines_run(self):
        """On a cloud with one GPU, where most names of the pages are not."""
        world = test_explain.World()
        world.flavor['name'], world.server = 'gpu.first', 'first'
        openstack = running.Openstack(self.useFixture(services.Services(
            world.applications())).cloud)
        self.useFixture(fixtures.EnvironmentVariable(
            'CYBORG_GPU_PROMETHEUS_URL'))
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.useFixture(fixtures.TempDir()).path)
        lines, succeeded = dict(self.lines()), 0
        for words, text in lines.items():
            with open('gpus.yaml', 'w', encoding='utf-8') as stream:
                stream.write(next(documents.blocks(text, 'yaml'), ''))
            command, arguments = self.command(words)
            try:
                openstack.run(command, *arguments, code=None)
                succeeded += 1
            except exception.GpuDriverError as error:
                self.assertNotIn('\n', str(error), words)
        self.assertGreater(succeeded, 10)
        self.assertGreater(len(lines), 25)
