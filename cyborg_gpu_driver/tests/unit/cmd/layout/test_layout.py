# SPDX-License-Identifier: Apache-2.0

"""The commands that plan and change layouts: list, plan, apply, assert ..."""

import io
import json
import os
import select
import stat
import sys
import textwrap

import fixtures
import yaml

from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd.layout import layouts


class ApplyTest(layouts.LayoutCase):

    def test_apply_assert_and_apply_again(self):
        self.assert_layout('mixed', code=1)
        output, _ = self.apply('mixed', '-o', 'json')
        self.assertEqual(['changed'] * 3,
                         [row['status'] for row in json.loads(output)])
        self.assert_layout('mixed')
        self.assertEqual([0, 7, 7, 0], [
            len([item for item in self.instances(index) if item[0] == 19])
            for index in range(4)])
        self.assertEqual([1, 3], sorted(
            count for _, _, count in self.instances(0)))
        output, _ = self.apply('mixed', '-o', 'json')
        self.assertEqual(['unchanged'] * 3,
                         [row['status'] for row in json.loads(output)])

    def test_layout_from_standard_input(self):
        self.addCleanup(setattr, sys, 'stdin', sys.stdin)
        sys.stdin = io.StringIO(layouts.LAYOUTS)
        self.layout('apply', '--layout-file', '-', '-c', 'halves')
        self.assert_layout('halves')

    def test_options_from_mig_parteds_environment(self):
        self.useFixture(fixtures.EnvironmentVariable(
            'MIG_PARTED_CONFIG_FILE', self.file))
        self.useFixture(fixtures.EnvironmentVariable(
            'MIG_PARTED_SELECTED_CONFIG', 'halves'))
        self.layout('apply')
        self.layout('plan')

    def test_only_entry_needs_no_name(self):
        output, _ = self.layout('export')
        self.layout('plan', '--layout-file', self.write('now.yaml', output))
        self.assert_one_is_chosen()

    def assert_one_is_chosen(self):
        _, errors = self.layout('plan', '--layout-file', self.file, code=1)
        self.assertIn('mixed', errors)

    def test_mig_mode_off_and_mode_only(self):
        self.apply('halves')
        self.assert_layout('off', '--mode-only', code=1)
        self.assert_layout('mixed', '-m')
        self.apply('off')
        self.assert_layout('off', '-m')
        self.assertEqual([], self.instances(0))
        self.apply('halves', '--mode-only')
        self.assert_layout('halves', '--mode-only')
        self.assertEqual([], self.instances(0))

    def test_skip_reset(self):
        self.host = self.part('dgx-a100-80', self.gpus)
        self.state += '.a100'
        machine = self.machine()
        with machine.operation(write=True):
            for gpu in machine.gpus:
                gpu.state.vfs = gpu.state.mig = gpu.state.pending = 0
        for gpu in machine.gpus:
            machine.add_holder(gpu.address, 815, 'nv-hostengine')
        output, _ = self.apply('mixed', '-o', 'json', '--skip-reset', code=1)
        self.assertEqual(['pending'] * 3,
                         [row['status'] for row in json.loads(output)])
        self.apply('mixed', '--skip-reset', '--mode-only')
        machine.remove_holder(815)
        self.apply('mixed')
        self.assert_layout('mixed')


class RefusalTest(layouts.LayoutCase):
    """A refusal has a clear error and exit code 1, and changes nothing."""

    def refused(self, arguments, *words):
        before = [self.instances(index) for index in range(self.gpus)]
        _, errors = self.layout('apply', *arguments, code=1)
        for word in words:
            self.assertIn(word, errors)
        self.assertNotIn('Traceback', errors)
        self.assertEqual(before, [self.instances(index)
                                  for index in range(self.gpus)])

    def test_bad_files(self):
        for text, word in (
                ('{', 'YAML'), ('version: v2\nmig-configs: {}', 'v1'),
                ('version: v1\nmig-configs: {x: [{devices: all}]}',
                 'mig-enabled'),
                ('version: v1\nvgpu-configs: {x: []}',
                 "unknown key 'vgpu-configs'"),
                ('version: v1\nmig-configs: {x: [{devices: [0, -1], '
                 'mig-enabled: false}]}', 'mig-configs.x[0].devices[1]: found '
                 '-1; expected the index of a GPU, from 0')):
            path = self.write('bad.yaml', text)
            self.refused(('--layout-file', path, '-c', 'x'), 'bad.yaml', word)
        self.refused(('-f', '/nonexistent', '-c', 'x'),
                     "'/nonexistent' is not valid: No such file")
        self.refused(('-c', 'x'), '--layout-file')

    def test_busy_gpu_fails_alone(self):
        self.apply('halves')
        machine = self.machine()
        for busy in machine.gpus[0].state.instances:
            machine.add_process(layouts.GPU, os.getpid(), busy, 0)
        before = self.instances(0)
        output, errors = self.apply('mixed', '-o', 'json', code=1)
        self.assertEqual(
            ['failed', 'changed', 'changed'],
            [row['status'] for row in json.loads(output)])
        self.assertIn(f'process {os.getpid()}', errors)
        self.assertEqual(before, self.instances(0))
        _, errors = self.assert_layout('mixed', code=1)
        self.assertIn('GPU 0', errors)

    def test_no_nvml(self):
        self.host, self.state = 't4x4', self.state + '.t4'
        self.machine().unload_library()
        self.refused(('--layout-file', self.file, '-c', 'off'), 'NVML')

    def instances(self, index):
        return (super().instances(index)
                if index < len(self.machine().gpus) else None)


class PlanTest(layouts.LayoutCase):

    def test_steps(self):
        self.apply('halves')
        output, _ = self.assert_layout('mixed', code=1)
        self.assertIn('destroy', output)
        self.assert_layout('halves')

    def test_for_programs(self):
        output, _ = self.layout('plan', '-f', self.file, '-c', 'mixed',
                                '-o', 'json', code=1)
        rows = json.loads(output)
        self.assertEqual([0, 1, 2], [row['index'] for row in rows])
        self.assertEqual(
            ['1g.10gb'] * 7, [item['profile'] for item in rows[1]['create']])
        self.assertEqual('create-instance', rows[1]['steps'][0]['action'])
        text, _ = self.layout('plan', '-f', self.file, '-c', 'mixed',
                              '-o', 'yaml', code=1)
        self.assertEqual(rows, yaml.safe_load(text))

class FileTest(layouts.LayoutCase):

    def test_export_and_generate_are_layout_files(self):
        self.apply('mixed')
        now = self.write('now.yaml', self.layout('export', '-c', 'now')[0])
        self.layout('plan', '--layout-file', now, '-c', 'now')
        every = self.write('all.yaml', self.layout('generate')[0])
        self.layout('apply', '--layout-file', every, '-c', 'all-balanced')
        self.layout('plan', '--layout-file', every, '-c', 'all-balanced')
        self.layout('plan', '--layout-file', now, code=1)

    def test_what_nvml_shows_only_to_root(self):
        self.apply('off')
        self.useFixture(fixtures.MockPatchObject(
            simulator.Machine, 'privileged', False))
        for command in (('generate',), ('plan', '--layout-file', self.file,
                                        '-c', 'halves')):
            output, errors = self.layout(*command, code=1)
            self.assertEqual('', output)
            self.assertIn('GPU 0: NVML does not show the placements',
                          ' '.join(errors.split()))

    def test_export_is_what_plan_accepts(self):
        """An instance without compute instance: nvidia-smi mig -cgi."""
        self.apply('mixed')
        machine = self.machine()
        with machine.operation(write=True):
            next(iter(machine.gpus[0].state.instances.values())
                 ).compute.clear()
        output, errors = self.layout('export', code=1)
        self.assertEqual('', output)
        self.assertIn('has no compute instance', ' '.join(errors.split()))

    def test_export_in_json(self):
        content = json.loads(self.layout('export', '-o', 'json')[0])
        self.assertEqual('v1', content['version'])



class HooksTest(layouts.LayoutCase):

    def hooks(self, text):
        return self.write('hooks.yaml', 'version: v1\nhooks:\n'
                          + textwrap.indent(textwrap.dedent(text), '  '))

    def script(self, code=0):
        """Write a hook that records its arguments and its environment."""
        path = self.write('hook', '#!/bin/sh\necho "$1 $OWN '
                          '$MIG_PARTED_SELECTED_CONFIG $PWD" >> '
                          f'{self.directory}/told\nexit {code}\n')
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def told(self):
        try:
            with open(f'{self.directory}/told', encoding='utf-8') as stream:
                return [line.split() for line in stream]
        except FileNotFoundError:
            return []

    def around(self, script):
        return self.hooks('\n'.join(
            f'{name}: [{{command: {script}, args: ["{name}"], workdir: /, '
            'envs: {OWN: $HOME}}]' for name in (
                'apply-start', 'pre-apply-mode', 'pre-apply-config',
                'apply-exit')))

    def test_hooks_of_what_is_changed(self):
        path = self.around(self.script())
        self.apply('off', '-k', path)
        self.assertEqual(
            [[name, '$HOME', 'off', '/'] for name in (
                'apply-start', 'pre-apply-mode', 'pre-apply-config',
                'apply-exit')][:2], self.told()[:2])
        self.assertEqual('apply-exit', self.told()[-1][0])
        count = len(self.told())
        self.apply('off', '-k', path)
        self.assertEqual(['apply-start', 'apply-exit'],
                         [line[0] for line in self.told()[count:]])

    def test_failing_hook_prevents_the_change(self):
        path = self.hooks(f"""
            pre-apply-config: [{{command: {self.script(3)}, args: [x]}}]
            apply-exit: [{{command: {self.script(3)}, args: [end]}}]
            """)
        _, errors = self.apply('halves', '-k', path, code=1)
        self.assertIn('exit code 3', errors)
        self.assertEqual([], self.instances(0))
        self.assertEqual(['x', 'end'], [line[0] for line in self.told()])

    def test_what_became_of_the_gpus_is_told_whatever_the_last_hook(self):
        path = self.hooks(f"""
            apply-exit: [{{command: {self.script(3)}, args: [end]}}]
            """)
        output, errors = self.apply('halves', '-k', path, code=1)
        self.assertIn('changed', output)
        self.assertIn('exit code 3', errors)
        self.assertEqual(2, len(self.instances(0)))

    def test_a_hook_that_does_not_end_is_killed(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.cmd.layout.hooks.SECONDS', 1))
        fifo = f'{self.directory}/fifo'
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        path = self.hooks(f"""
            apply-start:
              - command: sh
                args: [-c, "exec > {fifo}; sleep 3600 & wait"]
            """)
        _, errors = self.apply('halves', '-k', path, code=1)
        self.assertIn('apply-start[0]: sh: did not end within 1 s', errors)
        self.assertEqual([], self.instances(0))
        # Both processes have the other end open as long as they live.
        poll = select.poll()
        poll.register(reader, 0)
        self.assertEqual([(reader, select.POLLHUP)], poll.poll(60000))

    def test_no_shell_reads_the_arguments(self):
        path = self.hooks("""
            apply-start: [{command: echo, args: ["$(touch X)", "*"]}]
            """)
        _, errors = self.apply('off', '-k', path)
        self.assertIn('$(touch X) *', errors)

    def test_bad_hooks_file(self):
        for text, word in (
                ('pre-apply: []', "hooks: unknown key 'pre-apply'; known "
                 'keys: '),
                ('apply-start: {command: x}', 'hooks.apply-start: found a '
                 'mapping; expected a list, each a mapping with keys '
                 'command, workdir, args, envs'),
                ('apply-start: [{command: x, args: [1]}]',
                 'hooks.apply-start[0].args[0]: found 1; expected text, in '
                 'quotes'),
                ('apply-start: [{args: [x]}]', "hooks.apply-start[0]: key "
                 "'command' is missing; expected a program, such as"),
                ('apply-start: [{command: x, envs: {A: 1}}]',
                 'hooks.apply-start[0].envs.A: found 1; expected text')):
            path = self.hooks(text)
            _, errors = self.apply('halves', '-k', path, code=1)
            self.assertIn(f'{path}: {word}', errors)
            self.assertEqual([], self.instances(0))
