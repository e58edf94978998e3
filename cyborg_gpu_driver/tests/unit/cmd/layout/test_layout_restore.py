# SPDX-License-Identifier: Apache-2.0

"""layout checkpoint and restore."""

import json
import os
import shutil

from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.unit.cmd import base
from cyborg_gpu_driver.tests.unit.cmd.layout import layouts


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

    def test_killed_apply(self):
        """Each GPU is as before or complete; a new apply then finishes."""
        self.apply('halves')
        before = [self.instances(index) for index in range(self.gpus)]
        self.assertEqual(9, self.killed('mixed', 12))
        _, errors = self.assert_layout('halves', code=1)
        self.assertIn('an earlier change was interrupted: step', errors)
        self.layout('restore')
        found = [self.instances(index) for index in range(self.gpus)]
        self.assertEqual({None}, {
            record.change for record
            in store.of(self.state_path).records().values()})
        self.apply('mixed')
        self.assert_layout('mixed')
        # The command changes several GPUs at once.
        for index in range(self.gpus):
            self.assertIn(found[index],
                          (before[index], self.instances(index)))

    def killed(self, name, calls):
        """Apply in a process that dies after ``calls`` mutating calls."""
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            load = simulator.Machine.load.__func__

            def loaded(cls, *arguments):
                machine = load(cls, *arguments)
                left = iter(range(calls))
                for symbol in ('nvmlGpuInstanceDestroy',
                               'nvmlDeviceCreateGpuInstanceWithPlacement'):
                    machine.faults.delay(
                        symbol, 0, lambda _: next(left, None) is None
                        and os._exit(9))
                return machine

            simulator.Machine.load = classmethod(loaded)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            main.main(['--config-file', self.conf, '--simulate', self.host,
                       '--state', self.state, 'layout', 'apply', '-f',
                       self.file, '-c', name])
        finally:
            os._exit(1)


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
