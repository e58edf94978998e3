# SPDX-License-Identifier: Apache-2.0


"""The documentation shows what the library accepts and does."""

import contextlib
import ctypes
import doctest
import io
import os
import pathlib
import re
import shlex
import shutil
import textwrap

import fixtures
import pynvml
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.cmd.gpu import show
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.conf import weigher
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine
from cyborg_gpu_driver.tests.unit.cmd import base as cmd_base
from cyborg_gpu_driver.tests.unit.tools import documents

SOURCE = documents.SOURCE


def examples(group):
    """Generate every configuration in the documentation with such a group."""
    for path in documents.pages():
        for example in documents.blocks(documents.text(path), 'ini'):
            if re.search(fr'^\[{group}\]', example, re.MULTILINE):
                yield path.relative_to(documents.ROOT), example


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
        for path, text in examples('gpu(|_policy:.*)'):
            settings, conf = self.read(text)
            named = set(re.findall(r'^\[gpu_policy:(.*)\]', text, re.M))
            self.assertEqual(set(conf.gpu.policies), named, path)
            with_policies += bool(settings.policies)
            # An option that no code registers is never read.
            known = {option for group in ('gpu', *(
                f'gpu_policy:{name}' for name in named))
                for option in conf[group]}
            for option in re.findall(r'^(\w+) *=', text, re.MULTILINE):
                self.assertIn(option, known | {'enabled_drivers'}, path)
        self.assertGreater(with_policies, 5)

    def test_examples_for_nova_are_right(self):
        known = {option.dest for option in weigher.OPTS}
        found = 0
        for path, text in examples('gpu_weigher'):
            group = text.partition('[gpu_weigher]')[2].partition('[')[0]
            for option in re.findall(r'^(\w+) *=', group, re.MULTILINE):
                self.assertIn(option, known, path)
                found += 1
        self.assertGreater(found, 0)


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
        for path in documents.pages():
            found.update(re.findall(r'--simulate ([a-z][\w-]*)|'
                                    r'^ *simulate = (\S+)',
                                    path.read_text(encoding='utf-8'), re.M))
        found = {name for pair in found for name in pair if name}
        self.assertLessEqual(found, set(files.names()))
        self.assertIn('mixed', found)


class LayoutFilesTest(base.BaseTestCase):
    """The files that the page on layouts includes."""

    def setUp(self):
        super().setUp()
        simulated = machine.Machine.load('dgx-a100-80')
        with machine.kept():
            self.gpus = reader.HostReader(
                platform.open_platform(simulated)).snapshot().gpus

    def text(self, name):
        return (SOURCE / 'admin' / name).read_text(encoding='utf-8')

    def test_every_layout_suits_the_host(self):
        name = 'example-layouts.yaml'
        file = layout_file.LayoutFile.parse(self.text(name), name)
        for entry in file.entries:
            self.assertTrue(entry.for_host(self.gpus), entry.name)
        self.assertEqual(file.to_dict(), layout_file.LayoutFile.parse(
            file.dump(), name).to_dict())


_CONSOLE = re.compile(r'^\.\. code-block:: console\n\n((?: {3}.*\n|\n)+)',
                      re.MULTILINE)
_HEADING = re.compile(r'^(\S.*)\n(?:=+|-+)$', re.MULTILINE)
_PROCESS = re.compile(r'\((?:\?|[\w-]+)\)')


class LayoutPageTest(cmd_base.CommandCase):
    """The page on layouts, followed from top to bottom on one host."""

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        shutil.copy(SOURCE / 'admin' / 'example-layouts.yaml',
                    os.path.join(self.directory, 'layouts.yaml'))
        # The page names its file without a directory.
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.directory)
        self.configure('', '.')
        self.code = 0

    def machine(self):
        return machine.Machine.load('dgx-a100-80', 'machine.json')

    def happens(self, heading):
        """Cause what the page tells of and none of its commands does."""
        address = '0000:07:00.0'
        if heading == 'What is in use':
            host = self.machine()
            with host.operation():
                number, = (number for number, item
                           in host.gpu(address).state.instances.items()
                           if item.start == 4)
            host.add_process(address, 4711, number)
        elif heading == 'Apply':
            self.machine().remove_process(4711)
        elif heading == 'After a reboot':
            self.machine().reboot()

    def play(self, line):
        """Return what a command prints on a terminal."""
        if line == 'echo $?':
            return f'{self.code}\n'
        words = shlex.split(line)
        self.assertEqual('cyborg-gpu', words[0])
        screen = io.TextIOWrapper(io.BytesIO(), encoding='utf-8',
                                  write_through=True)
        with contextlib.redirect_stdout(screen), \
                contextlib.redirect_stderr(screen):
            self.code = main.main([
                '--config-file', 'cyborg.conf', '--simulate', 'dgx-a100-80',
                '--state', 'machine.json', *words[1:]])
        return screen.buffer.getvalue().decode()

    def test_commands_print_what_the_page_shows(self):
        page = (SOURCE / 'admin' / 'layouts.rst').read_text(encoding='utf-8')
        checker, played, heading = doctest.OutputChecker(), 0, None
        for part in re.split(r'(?=^\S.*\n(?:=+|-+)$)', page,
                             flags=re.MULTILINE):
            heading = _HEADING.match(part)
            self.happens(heading and heading[1])
            for match in _CONSOLE.finditer(part):
                block = textwrap.dedent(match[1]).strip('\n')
                for command in re.split(r'^# ', block, flags=re.M)[1:]:
                    line, _, expected = command.partition('\n')
                    if not line.startswith(('cyborg-gpu', 'echo')):
                        continue
                    shown = _PROCESS.sub('(it)', expected.rstrip('\n'))
                    found = _PROCESS.sub('(it)', self.play(line))
                    self.assertTrue(checker.check_output(
                        shown + '\n', found, doctest.ELLIPSIS),
                        f'{line}\n{found}')
                    played += 1
        self.assertGreater(played, 10)


class ReadmeTest(base.BaseTestCase):
    """The end of tools/demo, as the README shows it."""

    def setUp(self):
        super().setUp()
        self.text = (documents.ROOT / 'README.rst').read_text(
            encoding='utf-8')

    def gpu(self, *instances):
        """Return the A100 of the demo's host, with instances."""
        with machine.Machine.load('mixed') as simulated:
            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByPciBusId('0000:41:00.0')
            for profile_id, start, size in instances:
                pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                    device, profile_id, ctypes.byref(
                        pynvml.c_nvmlGpuInstancePlacement_t(start, size)))
            snapshot = reader.HostReader(
                platform.open_platform(simulated)).snapshot()
            self.addCleanup(simulated.uninstall)
        return next(gpu for gpu in snapshot.gpus
                    if str(gpu.address) == '0000:41:00.0')

    def test_no_other_option_is_needed(self):
        """test_first_hour shows what it offers."""
        block, = documents.blocks(documents.text(
            documents.ROOT / 'README.rst'), 'ini')
        self.assertEqual(
            ['[agent]', 'enabled_drivers = cyborg_gpu_driver', '[gpu]',
             'policies = slices', '[gpu_policy:slices]', 'mode = mig'],
            [line for line in block.splitlines() if line])

    def test_the_parts_are_what_gpu_map_shows(self):
        shown = re.findall(r'^ +\|.*\| (\S+ \S+gb) \*[0-9a-f]{8} +\|$',
                           self.text, re.MULTILINE)
        self.assertEqual(shown, [
            show._part_line(part) for part in show.parts(self.gpu(
                (19, 0, 1), (19, 1, 1), (14, 2, 2), (9, 4, 4)), ())])

    def test_placement_has_no_candidate(self):
        grid = geometry.Geometry(self.gpu().mig.profiles)
        found = re.findall(r'^   gpu_\S+_(\S+)  (\S+) +(\d+) +(\d+) '
                           r'+(\d+)$', self.text, re.MULTILINE)
        self.assertEqual(3, len(found))
        totals = {item.name: grid.creatable(geometry.EMPTY, item)
                  for item in grid.profiles}
        for name, _class, total, reserved, used in found:
            self.assertEqual(totals[name], int(total))
            self.assertEqual(int(total), int(reserved) + int(used))
