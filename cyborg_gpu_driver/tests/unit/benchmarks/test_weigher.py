# SPDX-License-Identifier: Apache-2.0


"""The benchmark of how much the weigher reads."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

weigher = test_packing.program('weigher')


class WeigherTest(base.BaseTestCase):

    def test_a_request_reads_what_has_changed(self):
        found = {figure.name: figure
                 for figure in weigher.measure((20, 80), 40, 30)}
        self.assertEqual([], [name for name, figure in found.items()
                              if figure.is_exceeded])
        for hosts in (20, 80):
            self.assertEqual(hosts, found[f'{hosts} hosts: hosts kept'].value)
            # Hosts that changed and hosts whose next read is due.
            mean = found[f'{hosts} hosts: requests to Placement for a request'
                         ].value
            self.assertLess(weigher.CHANGED - 1, mean)
            self.assertLess(mean, min(hosts, 40))
            self.assertLess(0, found[f'{hosts} hosts: memory'].value)

    def test_its_placement_has_what_the_weigher_wants(self):
        cloud = weigher.Cloud(1, 1)
        # Its figures, and the names of its providers.
        self.assertEqual(2, cloud.request()[1])
        fleet = cloud.reader.fleet(weigher.CLASS, {'host00000': 0})
        label = next(iter(weigher.PROFILES))
        full, used = (fleet.cost({
            f'host00000-{number}-{label}-{"0" * 20}': {
                'resources': {weigher.CLASS: 1}}}) for number in range(2))
        # The weigher packs: a GPU with a server costs less.
        self.assertLess(used, full)
