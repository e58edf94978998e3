# SPDX-License-Identifier: Apache-2.0

"""Small runs of the benchmarks that need the released services.

Without ``tools/test all`` one of them runs. ``tox -e bench`` runs the
programs.
"""

import contextlib
import dataclasses
import io

import fixtures
from oslotest import base

from cyborg_gpu_driver.simulator.machine import machine
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import base as functional
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.unit.benchmarks import test_packing

boots = test_packing.program('boots')
cloud = test_packing.program('cloud')
discover = test_packing.program('discover')
footprint = test_packing.program('footprint')
operations = test_packing.program('operations')
reports = test_packing.program('reports')


class BenchmarkTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        # A program leaves its simulation in place until its process ends,
        # and sends each report in full.
        stack.enter_context(machine.kept())
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.report.drift.INTERVAL', 0.0))
        self.directory = self.useFixture(fixtures.TempDir()).path

    def by_name(self, figures):
        """Return figures by name; all are within limits."""
        with contextlib.redirect_stderr(io.StringIO()):
            found = {figure.name: figure for figure in figures}
        self.assertEqual([], [name for name, figure in found.items()
                              if figure.is_exceeded])
        return found

    @scope.only_in_all
    def test_discover(self):
        bench = discover.full_host.FullHost(self.directory,
                                            gpu_cloud.TWO_GPUS)
        self.addCleanup(bench.close)
        found = self.by_name(discover.measure(
            bench, self.directory, 1))
        self.assertEqual((2, 14, 2), tuple(found[name].value for name in (
            'GPUs', 'instances',
            'in-tree discover(), GPUs only: devices reported')))
        for name in ('discover()', 'bind', 'unbind'):
            self.assertGreater(found[f'{name}: NVML calls'].value, 0)

    @scope.only_in_all
    def test_operations(self):
        self.useFixture(fixtures.MonkeyPatch('operations.LATENCIES', {}))
        found = self.by_name(operations.measure(
            self.directory, 1, gpu_cloud.TWO_GPUS))
        restored = found['reboot to 14 GPU instances: NVML calls']
        # Each instance takes three calls, no matter what makes it.
        self.assertGreater(restored.floor, 3 * 14)
        self.assertGreater(restored.value, restored.floor)
        self.assertLess(0, found['XID to reserved'].value)
        self.assertLess(0, found['MIG mode off to 14 GPU instances, with '
                                 'latencies: time'].baseline)

    @scope.only_in_all
    def test_boots(self):
        found = self.by_name(boots.measure(1, 2))
        self.assertEqual((14, 14), (found['servers'].value,
                                    found['servers'].baseline))
        for name in ('SQL statements of Cyborg', 'requests to Placement'):
            figure = found[f'a boot alone: {name}']
            self.assertGreater(figure.baseline, 1, name)
            self.assertGreater(figure.value, 1, name)

    def test_boots_of_two_sides(self):
        whole = boots.Costs(servers=3, statements=1, requests=1)
        error = self.assertRaises(RuntimeError, list, boots.show(
            whole, boots.Costs(servers=2)))
        self.assertEqual(
            '3 servers with cyborg_gpu_driver, 2 with fake_driver',
            str(error))
        for count in ('statements', 'requests'):
            (exceeded,) = (figure for figure in boots.show(
                dataclasses.replace(whole, **{count: 1000}), whole)
                if figure.is_exceeded)
            self.assertIn(count[1:], exceeded.name)

    @scope.only_in_all
    def test_footprint(self):
        found = self.by_name(footprint.measure(
            self.directory, 10, gpu_cloud.TWO_GPUS))
        self.assertEqual((2, 2), (found['devices reported'].value,
                                  found['devices reported'].baseline))
        memory = found['resident memory of the agent']
        self.assertLess(20, memory.floor)
        self.assertLess(memory.floor / 2, memory.value)
        # The in-tree driver asks Placement nothing; this driver does ask.
        asked = found['an unchanged report: HTTP requests']
        self.assertEqual((True, 0), (asked.value >= 1, asked.baseline))

    @scope.only_in_all
    def test_reports(self):
        found = self.by_name(reports.measure((1, 2), 1))
        for count in (1, 2):
            full, unchanged = (
                found[f'{count} hosts: {name}, SELECTs']
                for name in ('full', 'unchanged'))
            self.assertGreater(unchanged.value, 0)
            self.assertGreater(full.value, unchanged.value)
            self.assertGreater(unchanged.baseline, 0)
            self.assertGreater(
                found[f'{count} hosts: first report, requests to Placement']
                .value, found['providers of a host'].value)

    @scope.only_in_all
    def test_cloud(self):
        # Fewer than a dozen servers would take one request each.
        found = self.by_name(cloud.measure(
            (6, 12), 1, functional.make_templates()))
        for name in cloud.WHOLE:
            figure = found[f'{name}: requests for a host']
            self.assertEqual(1, figure.value, name)
            # Three requests for each provider.
            self.assertEqual(3 * len(cloud.PROFILES), figure.baseline)
        for name in ('explain', 'explain, refused'):
            self.assertGreater(
                found[f'{name}: requests for a host that is examined'].value,
                1)
        self.assertLess(
            found['explain: requests at 10000 hosts'].value, 250)
