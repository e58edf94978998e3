# SPDX-License-Identifier: Apache-2.0

"""layout checkpoint and restore."""

import json
import shutil

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
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
