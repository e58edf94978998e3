# SPDX-License-Identifier: Apache-2.0
"""The NVSwitch partitions in ``gpu show``, and ``doctor`` beside it."""

from __future__ import annotations

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.cmd import base

_GROUPS = ('[gpu]\npolicies = g\nstate_path = {0}\n'
           'simulate = {0}/host.yaml\nsimulate_state = {0}/other\n'
           '[gpu_policy:g]\nmode = nvlink\nnvlink_sizes = 2, 8\n')


class FabricTest(base.HostCase):

    host = 'hgx-h200-vfio'
    gpus = 0

    def setUp(self):
        super().setUp()
        self.hardware = self.machine()
        self.options = '--simulate', self.host, '--state', self.state

    def partitions(self, host, gpu):
        """The partitions with a GPU, by number."""
        shown = self.rows(*host, 'gpu', 'show', gpu)
        return {item['partition']: item
                for item in shown['fabric_partitions']}

    def test_the_partitions(self):
        with self.hardware.operation(write=True):
            self.hardware.state.fabric.active['3'] = []
        found = self.partitions(self.options, '0000:3a:00.0')
        self.assertEqual([0, 1, 3, 7], [*found])
        self.assertEqual(
            {'partition': 3, 'state': 'active',
             'gpus': ['0000:3a:00.0', '0000:5d:00.0'], 'module_ids': [1, 3],
             'nvlinks': 18, 'line_rate_mbps': found[0]['line_rate_mbps'],
             'overlaps': [0, 1, 7, 9], 'owner': None}, found[3])
        self.assertEqual(0, found.pop(7)['nvlinks'])
        del found[3]
        self.assertEqual({'inactive'},
                         {item['state'] for item in found.values()})

    def test_the_owner(self):
        host_files.write_unprepared(self.directory, 'hgx-h100')
        conf = self.configure(_GROUPS.format(self.directory),
                              self.directory)
        host = ('--config-file', conf)
        offered = self.rows(*host, 'offer', 'list')
        self.assertEqual({'nvlink-2', 'nvlink-8'},
                         {row['profile'] for row in offered})
        self.assertEqual(5, len(offered))
        self.assertEqual({2, 8}, {len(row['gpus']) for row in offered})
        address = model.PciAddress.parse('0000:18:00.0')
        other = model.PciAddress.parse('0000:2a:00.0')
        handle = '5f0ad1a3-7a3f-4b66-8f0e-0d1f3a0c2b11'
        store.Store(self.directory).put_claims(*gpu_record.Claim(
            handle, address, address, 'nvlink-2', 'nvlink-2',
            gpu_record.Phase.BOUND, fabric_partition=4,
            members=(address, other)).on_each())
        self.assertEqual({4: handle}, {
            number: item['owner'] for number, item
            in self.partitions(host, str(other)).items() if item['owner']})
        output, _ = self.run_program(*host, 'gpu', 'show', str(other),
                                     '--max-width', '120')
        self.assertIn(f'4 inactive: modules 2, 4 for {handle}', output)

    def test_a_fabric_manager_that_was_restarted(self):
        self.hardware.start_fabric_manager(restart=True)
        with self.hardware.operation(write=True):
            self.hardware.state.fabric.waiting = False
        self.assertEqual([0, 1, 4, 8], [*self.partitions(self.options, '0')])

    def test_why_there_are_none(self):
        self.hardware.configure_fabric_manager(mode=0)
        self.hardware.start_fabric_manager()
        output, errors = self.run_on_host('gpu', 'show', '0')
        self.assertRegex(output, r'\| fabric_partitions +\| - +\|')
        self.assertIn('NVSwitches: ', errors)
        self.assertIn('NOT_SUPPORTED', errors)
        output, errors = self.run_program('--simulate', 'l40sx4', 'gpu',
                                          'show', '0')
        self.assertRegex(output, r'\| fabric_partitions +\| - +\|')
        self.assertNotIn('NVSwitches', errors)
