# SPDX-License-Identifier: Apache-2.0

"""The commands that plan and change layouts: list, plan, apply, assert ..."""

import io
import json
import os
import shutil
import sys

import fixtures
import yaml

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd import base
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

    def test_only_entry_needs_no_name(self):
        output, _ = self.layout('export')
        self.layout('plan', '--layout-file', self.write('now.yaml', output))
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
        path = self.write('bad.yaml', 'version: v2\nmig-configs: {}')
        self.refused(('--layout-file', path, '-c', 'x'), 'bad.yaml', 'v1')
        self.refused(('-f', '/nonexistent', '-c', 'x'),
                     "'/nonexistent' is not valid: No such file")

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
        text, _ = self.layout('export', '-c', 'now')
        self.assertEqual(yaml.safe_load(text), json.loads(self.layout(
            'export', '-c', 'now', '-o', 'json')[0]))
        now = self.write('now.yaml', text)
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
        self.assertIn('without compute instances', ' '.join(errors.split()))


class RestoreTest(layouts.LayoutCase):

    def test_applied_layout_is_back_after_a_reboot(self):
        self.apply('mixed')
        self.machine().reboot()
        self.assert_layout('mixed', code=1)
        self.layout('restore')
        self.assert_layout('mixed')
        output, _ = self.layout('restore', '-o', 'json')
        self.assertEqual({'unchanged'}, {
            row['status'] for row in json.loads(output)})

    def test_checkpoint_of_what_another_tool_has_made(self):
        self.apply('halves')
        shutil.rmtree(self.state_path)
        self.layout('checkpoint')
        self.machine().reboot()
        self.layout('restore')
        self.assert_layout('halves')

    def test_nothing_to_restore(self):
        output, _ = self.layout('restore', '-o', 'json')
        self.assertEqual({'unchanged'}, {
            row['status'] for row in json.loads(output)})

    def test_checkpoint_of_a_gpu_that_is_gone(self):
        self.apply('halves')
        self.machine().bind_driver(layouts.GPU, 'vfio-pci')
        _, errors = self.layout('restore', code=1)
        self.assertIn(layouts.GPU, errors)

    def test_a_change_that_was_interrupted(self):
        self.apply('halves')
        address = model.PciAddress.parse(layouts.GPU)
        store.of(self.state_path).put(address, change=gpu_record.Change(
            address, spec.MigLayout(True, True), ('a', 'b')))
        _, errors = self.assert_layout('halves', code=1)
        self.assertIn('an earlier change was interrupted: step', errors)
        self.layout('restore')
        self.assertIsNone(store.of(self.state_path).read(address).change)


class SeveralGpusTest(base.HostCase):
    """While one GPU gets its virtual functions, NVML is closed for all."""

    host = 'hgx-h200-vfio'
    config = '[gpu]\npolicies = sliced\n[gpu_policy:sliced]\nmode = mig\n'

    def test_all_are_made_ready(self):
        machine = self.machine()
        machine.reboot()
        output, _ = self.run_on_host('layout', 'restore', '-o', 'json')
        self.assertEqual(['changed'] * 2, [
            row['status'] for row in json.loads(output)])
        with machine.operation():
            self.assertTrue(all(gpu.state.mig and gpu.state.vfs
                                for gpu in machine.gpus))
