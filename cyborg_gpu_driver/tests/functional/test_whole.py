# SPDX-License-Identifier: Apache-2.0

"""Whole GPUs are closed and on vfio-pci before a server can ask for one.

The simulated kernel counts opens of each device node for each process. It
tells which GPUs are held, and what an unbind had to wait for.
"""

import logging
import os

import fixtures

from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.functional import gpu_cloud

T4 = '0000:3b:00.0'
A40 = '0000:41:00.0'
AUDIO = '0000:41:00.1'
A100 = '0000:c1:00.0'
FILE = 'whole.yaml'
_HOST = """
driver_version: '550.144.02'
gpus:
  - {{model: t4, address: '{T4}', driver: {driver}}}
  - {{model: a40, address: '{A40}', driver: {driver}, framework: mdev}}
  - {{model: a100-80, address: '{A100}', driver: {driver}, framework: mdev}}
functions:
  - address: '{AUDIO}'
    vendor: 10de
    device: 1aef
    class: '040300'
    driver: {audio}
"""
"""How often something happens to whole GPUs in the random test."""


class WholeCase(gpu_cloud.GpuTestCase):
    """Three GPUs, one of which has an audio function."""

    driver_at_boot = 'nvidia'
    audio_at_boot = 'snd_hda_intel'
    gpu = A40

    def setUp(self):
        self.log = self.useFixture(fixtures.FakeLogger(
            'cyborg_gpu_driver', level=logging.INFO, nuke_handlers=False))
        place = self.hardware_directory or self.useFixture(
            fixtures.TempDir()).path
        self.machine = os.path.join(place, FILE)
        if not os.path.exists(self.machine):
            write_host(self.machine, self.driver_at_boot,
                       self.audio_at_boot)
        super().setUp()
        self.whole = self.profile('PGPU')

    def driver_of(self, address):
        with self.world.operation():
            return self.world.drivers.of(address)

    def inventory(self, address):
        """Return total and reserved; None if the GPU is not offered."""
        return self.reserved(address).get('passthrough')

    def offered(self):
        """Return the GPUs that a server could get now."""
        return {address for address in (T4, A40, A100)
                if self.inventory(address) == (1, 0)}

    def traits(self, address):
        provider = self.cloud.provider(self.name('passthrough', address))
        return set(self.cloud.placement.traits(provider['uuid']))

    def boot(self):
        """Create a server and start its guest.

        :returns: the server and the address of its GPU.
        """
        server = self.cloud.bind(self.whole)
        (arq,) = server.arqs
        info = arq['attach_handle_info']
        address = (f"{info['domain']}:{info['bus']}:{info['device']}"
                   f".{info['function']}")
        self.happen('attach_whole', address)
        return server, address

    def delete(self, server, address):
        self.happen('detach_whole', address)
        self.cloud.unbind(server)

    def assert_unharmed(self):
        """Check that no unbind waited for a holder and nothing broke."""
        world = self.world
        self.assertEqual(((), ()), (world.blocked_unbinds, world.damage))

    def assert_nobody_holds(self, *addresses):
        for address in addresses:
            self.assertEqual([], list(self.world.holders(address)), address)


def write_host(path, driver, audio):
    """Write a machine's file: the drivers of its GPUs and its audio."""
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(_HOST.format(
            T4=T4, A40=A40, A100=A100, AUDIO=AUDIO, driver=driver,
            audio=audio))
    os.chmod(path, 0o644)


class HandOverTest(WholeCase):

    def test_offered_on_vfio_pci_and_held_by_nobody(self):
        self.assertEqual({T4, A40, A100}, self.offered())
        for address in (T4, A40, A100, AUDIO):
            self.assertEqual('vfio-pci', self.driver_of(address))
        self.assert_nobody_holds(T4, A40, A100)
        self.assert_unharmed()

    def test_a_server_and_the_next(self):
        for _ in range(2):
            server, address = self.boot()
            self.report()
            self.assertEqual(gpu_cloud.USED, self.inventory(address))
            self.delete(server, address)
            self.assertNotIn(address, self.offered())
            self.report()
            self.assertEqual({T4, A40, A100}, self.offered())
            self.assertEqual('vfio-pci', self.driver_of(address))
            self.assert_nobody_holds(T4, A40, A100)
        self.assert_unharmed()

    def test_what_fell_off_the_bus_is_not_promised(self):
        self.world.lose_gpu(T4)
        self.report()
        self.assertEqual(gpu_cloud.USED, self.inventory(T4))
        self.assertIn('CUSTOM_GPU_UNHEALTHY_PCI_UNREACHABLE', self.traits(T4))
        self.assertEqual({A40, A100}, self.offered())


class HeldTest(WholeCase):

    def start(self, **overrides):
        self.hardware_directory = self.useFixture(fixtures.TempDir()).path
        simulator.Machine.load(self.machine, os.path.join(
            self.hardware_directory, 'hardware.json')).add_holder(
                T4, 4711, 'nv-hostengine')
        super().start(**overrides)

    def test_it_stays_as_it_is_and_is_not_offered(self):
        self.assertEqual({A40, A100}, self.offered())
        self.assertIsNone(self.inventory(T4))
        self.assertEqual('nvidia', self.driver_of(T4))
        self.assertIn('process 4711 (nv-hostengine)', self.log.output)
        self.assert_unharmed()
        self.world.remove_holder(4711)
        self.end_agent()
        self.report()
        self.assertEqual({T4, A40, A100}, self.offered())
        self.assert_unharmed()


class PolicyTest(WholeCase):

    overrides = {'gpu': {'policies': 'one'},
                 'gpu_policy:one': {'mode': 'passthrough',
                                    'match_model': '*A100*'}}
    gpu = A100

    def test_not_under_a_server(self):
        server, address = self.boot()
        self.change_policy('one', mode='mig', profiles=['3g.40gb'])
        self.report()
        self.assertEqual('vfio-pci', self.driver_of(A100))
        self.delete(server, address)
        self.report()
        self.assertEqual('nvidia', self.driver_of(A100))
        self.assert_unharmed()


class OperatorsTest(WholeCase):
    """GPUs that were bound to vfio-pci at boot."""

    driver_at_boot = audio_at_boot = 'vfio-pci'

    def test_they_never_have_another_driver(self):
        self.assertEqual({T4, A40, A100}, self.offered())
        server, address = self.boot()
        self.report()
        self.delete(server, address)
        self.report()
        self.assertEqual({T4, A40, A100}, self.offered())
        self.assertIn(f'GPU {address} was reset', self.log.output)
        self.assertNotIn('driver nvidia', self.log.output)
        self.assertEqual('vfio-pci', self.driver_of(address))
        self.assert_unharmed()


class OperatorsAloneTest(WholeCase):

    overrides = {'gpu': {'prepare': False}}

    def test_nothing_is_bound(self):
        self.assertEqual(set(), self.offered())
        for address in (T4, A40, A100):
            self.assertEqual('nvidia', self.driver_of(address))
        self.assertIn('bound to nvidia; it will be offered '
                      'when', self.log.output)
