# SPDX-License-Identifier: Apache-2.0

import dataclasses
import os

import fixtures
from oslotest import base as oslo_base

from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.tests.unit.host import base

_TIME = 1_800_000_000.0
_HOST = """
driver_version: '550.144.02'
fabric_mode: 1
nvswitches:
  - address: '0000:c5:00.0'
    vendor: 10de
    device: 1af1
    class: '068000'
    driver: nvidia-nvswitch
gpus:
  - {model: a100-80, address: '0000:07:00.0', nvlink: switches}
  - {model: a100-80, address: '0000:0f:00.0', nvlink: switches}
  - {model: a100-80, address: '0000:47:00.0', nvlink: switches}
"""


class RecordTestCase(base.SimulatedTestCase):

    def use(self, name):
        self.state_path = self.useFixture(fixtures.TempDir()).path
        host = os.path.join(self.state_path, 'host.yaml')
        with open(host, 'w') as stream:
            stream.write(_HOST)
        super().use(host)

    def setUp(self):
        super().setUp()
        self.records = store.of(self.state_path)
        self.reader = self.new_reader()

    def new_reader(self):
        """Return the reader of another process, which remembers nothing."""
        return reader.HostReader(dataclasses.replace(
            self.platform, records=store.of(self.state_path)))

    def keep(self, gpu, **done):
        self.records.keep_board(gpu.address, gpu_record.of(
            gpu, self.platform.boot_id(), _TIME, '580.0', **done))

    def seen(self, address=None):
        return self.new_reader().snapshot().gpu(address or self.first)


class CompletionTest(RecordTestCase):

    def hand_over(self, gpu):
        self.keep(gpu, bound_from='nvidia')
        self.nvml.reset()
        self.machine.bind_driver(str(gpu.address), 'vfio-pci')

    def test_a_gpu_on_vfio_pci_keeps_what_nvml_reported(self):
        before = self.reader.snapshot().gpus
        for gpu in before:
            self.hand_over(gpu)
        after = self.new_reader().snapshot().gpus
        for was, now in zip(before, after, strict=True):
            self.assertEqual('vfio-pci', now.driver)
            self.assertFalse(now.visible_to_nvml)
            self.assertEqual((_TIME, 'nvidia'),
                             (now.recorded_at, now.bound_from))
            for name in ('model', 'architecture', 'uuid', 'serial',
                         'memory_mib', 'numa_node', 'nvlink_peers',
                         'compute_capability'):
                self.assertEqual(getattr(was, name), getattr(now, name))
            self.assertEqual(2, len(now.nvlink_peers))

    def test_a_peer_that_is_still_on_nvidia_keeps_its_peers(self):
        before = self.reader.snapshot().gpu(self.first)
        self.hand_over(before)
        other = self.seen(self.addresses[1])
        self.assertIn(self.first, other.nvlink_peers)
        self.assertEqual(2, len(other.nvlink_peers))

    def test_another_board_in_the_slot(self):
        gpu = self.reader.snapshot().gpu(self.first)
        self.hand_over(dataclasses.replace(gpu, subsystem_device_id='ffff'))
        now = self.seen()
        self.assertEqual((None, None, None), (now.recorded_at, now.uuid,
                                              now.bound_from))

    def test_after_a_reboot_only_the_model_is_sure(self):
        gpu = self.reader.snapshot().gpu(self.first)
        self.hand_over(gpu)
        self.machine.reboot()
        self.machine.bind_driver(str(self.first), 'vfio-pci')
        now = self.seen()
        self.assertEqual((gpu.model, gpu.memory_mib, gpu.architecture),
                         (now.model, now.memory_mib, now.architecture))
        self.assertEqual((None, None, None, ()), (
            now.uuid, now.serial, now.bound_from, now.nvlink_peers))


_ADDRESS = model.PciAddress.parse('0000:07:00.0')


def _gpu(device, subsystem, **more):
    return model.Gpu(_ADDRESS, '10de', device, '0302', '10de', subsystem,
                     **more)


class BoardsTest(oslo_base.BaseTestCase):

    def test_every_model_of_the_simulator(self):
        for name in files.model_names():
            board = files.load_model(name)
            found = gpu_record.complete_board(
                _gpu(board.device, board.subsystem_device))
            self.assertEqual(
                (board.product, board.memory_mib,
                 '.'.join(map(str, board.compute_capability))),
                (found.model, found.memory_mib, found.compute_capability),
                name)
            self.assertIn(found.architecture, (
                'volta', 'turing', 'ampere', 'ada', 'hopper', 'blackwell'))

    def test_what_is_known_stays(self):
        known = _gpu('2330', '16c1', memory_mib=1, architecture='other')
        found = gpu_record.complete_board(known)
        self.assertEqual((1, 'other', 'NVIDIA H100 80GB HBM3'),
                         (found.memory_mib, found.architecture, found.model))
        other = _gpu('2330', '16c1', model='NVIDIA H100 of tomorrow')
        self.assertIs(other, gpu_record.complete_board(other))
