# SPDX-License-Identifier: Apache-2.0

"""The GPU inventory of a ramdisk: creating, sending and parsing it."""

import copy
import dataclasses

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.unit.baremetal import inspected
from cyborg_gpu_driver.tests.unit.partition import boards

ADDRESS = model.PciAddress.parse('0000:1b:00.0')


def board(gpu):
    """A GPU with the facts that a ramdisk sends."""
    return dataclasses.replace(
        gpu, compute_capability=None, driver_branch=None, pcie_root=None,
        iommu_group=None, sriov_numvfs=0, vfs=(), mdev_types=(),
        mdevs=(), vgpu_types=(), mixed_sizes=None, scheduler=None,
        framework=model.Framework.NONE, processes=0,
        mig=gpu.mig and dataclasses.replace(gpu.mig, instances=()))


class RoundTripTest(base.BaseTestCase):

    def test_each_simulated_machine(self):
        for name in scope.some(simulator.names()):
            host = inspected.snapshot(name)
            found = inventory.parse(inspected.sent(host, {}))
            self.assertEqual(tuple(map(board, host.gpus)), found.gpus, name)
            self.assertEqual(host.driver_version, found.driver_version)
            self.assertIsNone(found.nvml_problem)
            self.assertEqual({}, found.unhealthy)
            self.assertEqual(all(gpu.visible_to_nvml for gpu in host.gpus),
                             found.asked)

    def test_whatever_text_the_hardware_has(self):
        gpu = model.Gpu(
            ADDRESS, '10de', '2330', '0302', model='NVIDIA\n H100\udc80' * 90,
            serial='\x00', driver='', problems=('a\tb', '', 'c' * 999) * 50)
        found = inventory.parse(inspected.sent(model.Host(
            gpus=(gpu,), nvml_problem='no\nlibrary', problems=('\n', 'd'))))
        self.assertEqual('no library', found.nvml_problem)
        self.assertEqual(('d',), found.problems)
        gpu, = found.gpus
        self.assertTrue(gpu.model.startswith('NVIDIA H100?NVIDIA H100?'))
        self.assertEqual(255, len(gpu.model))
        self.assertEqual('?', gpu.serial)
        self.assertIsNone(gpu.driver)
        self.assertEqual(('a b', 'c' * 255, 'a b'), gpu.problems[:3])
        self.assertEqual(64, len(gpu.problems))


class ParseTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.sent = inspected.sent(inspected.snapshot('mixed'), {})

    def refused(self, sent, word):
        error = self.assertRaises(exception.DocumentError, inventory.parse,
                                  sent)
        self.assertIn(word, str(error))

    def test_each_place_is_checked(self):
        for path, value, word in (
                (['gpus'], {}, 'gpus: found an empty mapping; expected a '
                               'list of at most 64'),
                (['gpus', 1, 'address'], 7,
                 'gpus[1].address: found 7; expected a PCI address'),
                (['gpus', 1, 'device_id'], '20BX',
                 "gpus[1].device_id: found '20BX'; expected four lower-case "
                 'hexadecimal'),
                (['gpus', 1, 'device_id'], '20b0\n', 'hexadecimal'),
                (['gpus', 1, 'model'], '\ud800', '255 printable'),
                (['gpus', 1, 'model'], 'a' * 256, '255 printable'),
                (['gpus', 1, 'memory_mib'], 1 << 40, 'whole number from 0 to '
                                                     '67108864'),
                (['gpus', 1, 'ecc'], 'on', "ecc: found 'on'; expected true "
                                           'or false'),
                (['gpus', 1, 'nvlink_clique'], 'x.1', 'nvlink_clique: found'),
                (['confidential_computing'], 'maybe', "found 'maybe'; "
                 'expected off, on, devtools or null'),
                (['gpus', 1, 'health'], ['XID_'],
                 "gpus[1].health[0]: found 'XID_'; expected the code of a "
                 'health condition, such as XID_79 or REMAP_FAILED'),
                (['gpus', 1, 'mig', 'profiles', 0, 'placements', 0, 'size'],
                 0, 'gpus[1].mig.profiles[0].placements[0].size: found 0; '
                    'expected a whole number from 1 to 64')):
            place = bad = copy.deepcopy(self.sent)
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            self.refused(bad, word)

    def test_more_ways_to_cut_than_can_be_listed(self):
        everywhere = [{'start': start, 'size': 1} for start in range(16)]
        mig = next(gpu['mig'] for gpu in self.sent['gpus'] if gpu['mig'])
        mig['profiles'] = [{**mig['profiles'][0],
                            'placements': everywhere[:12]}]
        inventory.parse(self.sent)
        mig['profiles'][0]['placements'] = everywhere
        self.refused(self.sent, 'gpus: too many ways to partition them')

    def test_ways_bound_the_occupancies(self):
        profiles = inventory.parse(self.sent).gpus[1].mig.profiles
        count = len(list(boards.states(geometry.Geometry(profiles))))
        ways = inventory.ways(profiles)
        self.assertEqual((True, 5536), (723 <= count <= ways, ways))
