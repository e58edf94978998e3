# SPDX-License-Identifier: Apache-2.0

"""The connection to a simulated fabric manager."""

import threading

import fixtures
import pynvml
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import reader as host_reader
from cyborg_gpu_driver.host.fabric import reader
from cyborg_gpu_driver.host.fabric import session
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.simulator import platform as simulated
from cyborg_gpu_driver.simulator.machine import machine as machine_module
from cyborg_gpu_driver.tests import scope

_LOST = -9


class FabricCase(base.BaseTestCase):

    host = 'hgx-h100-vfio'

    def setUp(self):
        super().setUp()
        self.machine = machine_module.Machine.load(self.host)
        self.addCleanup(self.machine.uninstall)
        self.platform = simulated.open_platform(self.machine)
        self.session = self.platform.fabric

    def look(self):
        return reader.read(self.platform, host_reader.HostReader(
            self.platform).snapshot())

    def function(self, partition):
        """The first virtual function of each GPU of a partition."""
        host = self.machine.host
        carriers = {host.module(gpu.address): gpu for gpu
                    in self.machine.gpus}
        return [model.PciAddress.parse(carriers[number].vfs()[0])
                for number in sorted(partition.physical_ids)]

    def refused(self, symbol, function, *args):
        error = self.assertRaises(exception.FabricError, function, *args)
        self.assertEqual(symbol, error.symbol)
        return error


class VgpuModeTest(FabricCase):

    def test_a_gpu_that_fails_does_not_hide_switches_beyond_pci(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.host.sysfs.pci.PciBus.nvswitches',
            lambda bus: frozenset()))
        self.assertEqual(8, len(self.look().modules))
        self.machine.faults.fail(
            'nvmlDeviceGetNvLinkRemoteDeviceType', pynvml.NVML_ERROR_UNKNOWN,
            times=None, address=self.machine.gpus[0].address)
        self.assertEqual(8, len(self.look().modules))

    def test_the_partitions_of_the_board(self):
        found = self.session.partitions()
        self.assertEqual([8, 4, 4, 2, 2, 2, 2] + 8 * [1],
                         [len(item.members) for item in found])
        self.assertEqual({1, 3}, found[3].physical_ids)
        self.assertEqual({18}, {member.links for item in found[:7]
                                for member in item.members})
        self.assertEqual((), self.session.unsupported())
        self.assertEqual((), self.session.failed_devices())

    def test_the_module_id_names_the_gpu(self):
        found = self.look()
        self.assertIsNone(found.partitions[7].members[0].address)
        for address, module in found.modules.items():
            (member,) = found.single(address).members
            self.assertEqual(module, member.physical_id)
        self.assertEqual(8, len(found.modules))

    def test_a_life_of_a_partition(self):
        one = self.session.partitions()[7]
        functions = self.function(one)
        self.session.activate_with_functions(7, functions)
        self.assertEqual((7,), self.machine.active_partitions)
        self.assertTrue(self.session.partitions()[7].active)
        self.refused('IN_USE', self.session.activate_with_functions, 7,
                     functions)
        self.session.deactivate(7)
        self.assertEqual((), self.machine.active_partitions)
        self.refused('UNINITIALIZED', self.session.deactivate, 7)

    def test_a_restart_is_noticed(self):
        self.session.partitions()
        self.machine.start_fabric_manager()
        self.assertEqual(15, len(self.session.partitions()))
        self.machine.stop_fabric_manager()
        self.refused('CONNECTION_NOT_VALID', self.session.partitions)
        self.machine.start_fabric_manager()
        self.assertEqual(15, len(self.session.partitions()))

    def test_a_resilient_restart_waits_for_the_list(self):
        one, other = self.session.partitions()[7:9]
        self.session.activate_with_functions(7, self.function(one))
        self.session.activate_with_functions(8, self.function(other))
        self.machine.stop_fabric_manager()
        self.assertEqual((7, 8), self.machine.active_partitions)
        self.machine.start_fabric_manager(restart=True)
        self.refused('NOT_CONFIGURED', self.session.partitions)
        self.refused('NOT_CONFIGURED', self.session.deactivate, 7)
        self.session.restore([8])
        self.assertEqual([8], [
            item.partition_id for item in self.session.partitions()
            if item.active])
        self.refused('NOT_SUPPORTED', self.session.restore, [8])

    def test_a_change_whose_connection_was_lost(self):
        one = self.session.partitions()[7]
        functions = self.function(one)
        for after in (True, False):
            self.machine.faults.fail('fmActivateFabricPartitionWithVFs',
                                     _LOST, after=after)
            self.session.activate_with_functions(7, functions)
            self.assertEqual((7,), self.machine.active_partitions)
            self.machine.faults.fail('fmDeactivateFabricPartition', _LOST,
                                     after=after)
            self.session.deactivate(7)
            self.assertEqual((), self.machine.active_partitions)

    def test_a_call_that_does_not_return(self):
        self.session.partitions()
        self.session.timeout = 0.2
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        self.machine.faults.delay('fmGetSupportedFabricPartitions', 0,
                                  lambda seconds: go_on.wait())
        self.refused('NOT_ANSWERING', self.session.partitions)
        self.refused('NOT_ANSWERING', self.session.unsupported)
        go_on.set()
        self.wait_until_idle()
        self.session.timeout = 30
        self.machine.faults.clear()
        self.assertEqual(15, len(self.session.partitions()))

    def wait_until_idle(self):
        """Wait for one more call: the thread makes them in order."""
        ended = threading.Event()
        call = deadline._Call('last', ended.set, ())
        deadline._worker(session._OWNER)._calls.put(call)
        self.assertTrue(ended.wait(scope.HANG))

    def test_not_installed(self):
        self.machine.remove_fabric_manager()
        error = self.refused('NOT_READABLE', self.session.partitions)
        self.assertIn('fabricmanager.cfg', str(error))
        found = self.look()
        self.assertEqual((False, False, None),
                         (found.installed, found.running, found.mode))

    def test_a_unix_socket(self):
        self.machine.configure_fabric_manager(socket='/run/fm.socket')
        self.machine.start_fabric_manager()
        self.assertEqual(15, len(self.session.partitions()))


class OtherModesTest(FabricCase):

    def start(self, mode):
        self.machine.configure_fabric_manager(mode)
        self.machine.start_fabric_manager()

    def test_whole_gpus(self):
        self.start(1)
        self.session.activate(3)
        self.assertEqual((3,), self.machine.active_partitions)
        self.refused('IN_USE', self.session.activate, 0)
        self.refused('NOT_SUPPORTED', self.session.activate_with_functions,
                     7, self.function(self.session.partitions()[7]))

    def test_more_partitions_than_the_library_takes(self):
        self.start(1)
        self.assertRaises(exception.InvalidValue, self.session.restore,
                          range(65))


class AmpereTest(FabricCase):

    host = 'dgx-a100-40'

    def test_the_addresses_name_the_gpus(self):
        found = self.look()
        self.assertEqual(
            [1, 7, 8, 11, 12, 13, 14, *range(19, 27)],
            [item.partition_id for item in found.partitions])
        members = found.partitions[0].members
        self.assertEqual({str(gpu.address) for gpu in self.machine.gpus},
                         {str(member.address) for member in members})

    def test_a_lost_gpu_takes_its_partitions(self):
        for gpu in self.machine.gpus:
            with self.machine.operation(write=True):
                gpu.state.mig = False
        address = str(self.session.partitions()[-1].members[0].address)
        self.machine.lose_gpu(address)
        self.machine.start_fabric_manager()
        found = self.look()
        self.assertEqual([1, 8, 14, 26], [
            item.partition_id for item in found.partitions
            if not item.supported])
        self.refused('BADPARAM', self.session.deactivate, 26)
