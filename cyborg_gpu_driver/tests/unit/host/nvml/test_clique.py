# SPDX-License-Identifier: Apache-2.0

"""The NVLink clique of a GPU."""

import pathlib

import fixtures
import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.nvml import modes
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.tests.unit.host import base

CLIQUE = '51d4ba7b-6d2a-4b39-9e4b-1c4a4bd0f1a2.32766'


def write_rack(directory, clique=CLIQUE):
    """Write the file of a host whose NVLinks leave it; return its path."""
    text = (files.HERE / 'hosts' / 'hgx-h200.yaml').read_text('utf-8')
    path = pathlib.Path(directory) / 'rack.yaml'
    path.write_text(f'{text}clique: {clique}\n', encoding='utf-8')
    return str(path)


class KeptTest(base.SimulatedTestCase):
    """Modes that outlive a guest."""

    MACHINE = 'mixed'

    def confidential(self, address):
        return [found.confidential_computing for found in modes.kept(
            self.nvml, model.PciAddress.parse(address))]

    def test_only_boards_that_have_it_keep_confidential_computing(self):
        # NVML answers for the machine, as long as a Hopper board is there.
        self.assertEqual(['off'] * 2, self.confidential('0000:81:00.0'))
        self.assertEqual([None] * 2, self.confidential('0000:3b:00.0'))
        self.machine.bind_driver('0000:81:00.0', 'vfio-pci')
        self.nvml.reset()
        self.assertEqual([None] * 2, self.confidential('0000:3b:00.0'))


class CliqueTest(base.SimulatedTestCase):

    MACHINE = 'hgx-h100'

    def clique(self):
        return modes.clique(self.nvml, self.first)

    def use_rack(self):
        self.use(write_rack(self.useFixture(fixtures.TempDir()).path))

    def test_boards_without_a_fabric(self):
        for name in ('rtxpro6000x8', 'dgx-a100-80', 't4x4'):
            self.use(name)
            self.assertIsNone(self.clique())

    def test_a_rack(self):
        self.use_rack()
        self.assertEqual(CLIQUE, self.clique())

    def test_registered_without_success(self):
        self.use_rack()
        failed = type('Failed', (pynvml.c_nvmlGpuFabricInfo_v3_t,), {
            'status': property(lambda _: pynvml.NVML_ERROR_UNKNOWN,
                               lambda _, ignored: None)})
        self.useFixture(fixtures.MockPatchObject(
            modes, 'fabric_info', lambda _: failed()))
        self.assertIsNone(self.clique())

    def test_a_cluster_that_counts_only_when_registered(self):
        asked = modes.fabric_info

        def with_cluster(version):
            info = asked(version)
            info.clusterUuid[0] = 1
            return info

        self.useFixture(fixtures.MockPatchObject(
            modes, 'fabric_info', with_cluster))
        self.assertIsNotNone(self.clique())
        self.machine.stop_fabric_manager()
        self.assertIsNone(self.clique())

    def test_an_older_driver(self):
        self.use_rack()
        asked = modes.fabric_info

        def of_the_future(version):
            info = asked(version)
            if version == 3:
                info.version += 1
            return info

        self.useFixture(fixtures.MockPatchObject(
            modes, 'fabric_info', of_the_future))
        self.assertEqual(CLIQUE, self.clique())

    def test_a_gpu_that_does_not_say(self):
        self.use_rack()
        self.machine.lose_gpu(str(self.first))
        self.assertRaises(exception.NvmlError, self.clique)
