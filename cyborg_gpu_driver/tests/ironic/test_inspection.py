# SPDX-License-Identifier: Apache-2.0

"""What an inspection finds on nodes of several kinds."""

import pynvml
from ironic.common import exception

from cyborg_gpu_driver.tests.ironic import inspection_case
from cyborg_gpu_driver.tests.unit.host.nvml import test_clique

LAYOUT = 'CUSTOM_GPU_LAYOUT_'
UNHEALTHY = 'CUSTOM_GPU_UNHEALTHY_'
A30 = {'CUSTOM_NVIDIA_20B7', 'CUSTOM_GPU_MODEL_A30', 'CUSTOM_GPU_ARCH_AMPERE',
       'CUSTOM_GPU_MEMORY_24GB', 'CUSTOM_GPU_COUNT_4',
       'CUSTOM_GPU_HEALTHY'}


class InspectionTest(inspection_case.InspectionCase):

    def test_hopper(self):
        self.machine('hgx-h100')
        self.inspect()
        self.assertEqual(inspection_case.H100, self.traits)
        self.assertEqual('x86_64', self.node.properties['cpu_arch'])
        found = self.node.properties['nvidia_gpus']
        self.assertEqual(
            (8, 'baremetal-gpu-h100-80gb-hbm3-x8', {}),
            (found['count'], found['resource_class'], found['unhealthy']))
        self.assertEqual('NVIDIA H100 80GB HBM3',
                         found['boards'][0]['model'])
        self.assertIsNone(self.node.resource_class)

    def test_modes(self):
        machine = self.machine('hgx-h100')
        machine.set_confidential_computing('devtools')
        first, second = (gpu.address for gpu in machine.gpus[:2])
        machine.change_gpu(second, ecc_modes=[False] * 2)
        self.inspect()
        modes = self.node.properties['nvidia_gpus']['modes']
        self.assertEqual('devtools', modes['confidential_computing'])
        self.assertEqual([{'ecc': True, 'mig': True},
                          {'ecc': False, 'mig': True}],
                         [modes['gpus'][name] for name in (first, second)])

    def test_a_rack(self):
        self.machine(test_clique.write_rack(self.directory))
        self.inspect()
        self.assertIn(
            'CUSTOM_NVLINK_CLIQUE_51D4BA7B_6D2A_4B39_9E4B_1C4A4BD0F1A2_32766',
            self.traits)
        self.assertEqual(test_clique.CLIQUE, self.node.properties[
            'nvidia_gpus']['nvlink_clique'])

    def test_gpus_are_let_go(self):
        self.machine('t4x4')
        self.sent()
        self.assertEqual(0, pynvml._nvmlLib_refcount)

    def test_no_gpu(self):
        self.without_simulation()
        self.assertEqual([], self.sent()['nvidia_gpus']['gpus'])
        self.add_traits('CUSTOM_RACK_7')
        self.inspect()
        self.assertEqual({'CUSTOM_RACK_7'}, self.traits)
        self.assertEqual({'cpu_arch': 'x86_64'}, self.node.properties)

    def test_gpus_that_are_gone(self):
        machine = self.machine('t4x4')
        self.inspect()
        machine.unload_library()
        self.without_simulation()
        self.inspect()
        self.assertEqual(set(), self.traits)
        self.assertEqual({'cpu_arch': 'x86_64'}, self.node.properties)

    def test_bus_that_cannot_be_read(self):
        self.without_simulation()
        functions = self.directory / 'sys' / 'bus' / 'pci' / 'devices'
        functions.rmdir()
        functions.symlink_to(functions)
        sent = self.sent()
        self.assertNotIn('nvidia_gpus', sent)
        self.assertIn('NVIDIA GPUs: PCI functions', sent['error'])
        error = self.assertRaises(exception.HardwareInspectionFailure,
                                  self.process, sent)
        self.assertIn('NVIDIA GPUs: PCI functions', str(error))

    def test_no_such_simulation(self):
        self.config(simulate='dgx-z1', group='gpu')
        self.assertIn("simulated machine 'dgx-z1'", self.sent()['error'])


class NoDriverTest(inspection_case.InspectionCase):

    def test_sysfs_alone(self):
        self.without_simulation('2330', '2330')
        self.inspect()
        # NVIDIA's table of names knows the board without its driver.
        self.assertEqual(
            {'CUSTOM_NVIDIA_2330', 'CUSTOM_GPU_COUNT_2',
             'CUSTOM_GPU_ARCH_HOPPER', 'CUSTOM_GPU_MEMORY_80GB',
             'CUSTOM_GPU_MODEL_H100_80GB_HBM3'}, self.traits)
        found = self.node.properties['nvidia_gpus']
        self.assertEqual('baremetal-gpu-h100-80gb-hbm3-x2',
                         found['resource_class'])
        self.assertIn('libnvidia-ml', found['nvml_problem'])

    def test_layout_of_the_board(self):
        items = [{'devices': 'all', 'mig-enabled': True,
                  'device-filter': '0x233010DE',
                  'mig-devices': {'3g.40gb': 2}}]
        self.add_template(LAYOUT + 'HALVES', items)
        self.add_template(LAYOUT + 'ANY', [
            {key: items[0][key] for key in items[0]
             if key != 'device-filter'}])
        self.without_simulation('2330', '2330')
        self.inspect()
        self.assertEqual({LAYOUT + 'HALVES'}, self.layouts)


class UnhealthyTest(inspection_case.InspectionCase):

    def test_unhealthy_and_well_again(self):
        machine = self.machine('a30x4')
        self.add_template(LAYOUT + 'OFF', 'all-disabled')
        self.add_traits('CUSTOM_RACK_7')
        unhealthy = machine.gpus[2].address
        machine.set_remapped_rows(unhealthy, uncorrected=1, failed=True)
        self.inspect()
        self.assertEqual(set(), self.layouts)
        self.assertEqual(
            A30 - {'CUSTOM_GPU_HEALTHY'}
            | {'CUSTOM_RACK_7', UNHEALTHY + 'REMAP_FAILED'}, self.others)
        (address, (reason,)), = self.node.properties[
            'nvidia_gpus']['unhealthy'].items()
        self.assertEqual(unhealthy, address)
        self.assertIn('replace the board', reason)
        self.assertIn(f'GPU {unhealthy} is unhealthy: a row of its memory',
                      self.log.output)
        machine.set_remapped_rows(unhealthy)
        self.inspect()
        self.assertEqual({*A30, 'CUSTOM_RACK_7'},
                         self.others)
        self.assertEqual({LAYOUT + 'OFF'}, self.layouts)

    def test_lost(self):
        machine = self.machine('a30x4')
        machine.lose_gpu(machine.gpus[0].address)
        self.inspect()
        self.assertIn(UNHEALTHY + 'LOST', self.others)
        self.assertIn('CUSTOM_GPU_COUNT_4', self.others)

    def test_stays_unhealthy_while_nobody_can_ask(self):
        machine = self.machine('a30x4')
        machine.set_health(machine.gpus[0].address, uncorrected=1)
        self.inspect()
        self.assertIn(UNHEALTHY + 'ECC', self.others)
        machine.unload_library()
        self.inspect()
        self.assertIn(UNHEALTHY + 'ECC', self.others)
        machine.load_library()
        machine.set_health(machine.gpus[0].address, uncorrected=0)
        self.inspect()
        self.assertEqual(A30, self.others)
