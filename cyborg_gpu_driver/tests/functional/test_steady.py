# SPDX-License-Identifier: Apache-2.0

"""What reports cost Cyborg when nothing changes, and what they restore."""

import contextlib

import sqlalchemy
from cyborg import context
from cyborg import objects

from cyborg_gpu_driver.report import drift
from cyborg_gpu_driver.tests.functional import gpu_cloud

_LIST = 16
"""SELECTs with which the conductor lists one GPU that is offered with seven
profiles (DriverDevice.list)."""


class SteadyTest(gpu_cloud.GpuTestCase):

    starts_reported = True
    overrides = {'gpu': {'policies': 'slices'},
                 'gpu_policy:slices': {
                     'mode': 'mig',
                     'match_address': gpu_cloud.GpuTestCase.gpu}}

    @contextlib.contextmanager
    def statements(self):
        """Record the first word of each SQL statement until the end.

        Yield two lists: of Cyborg's and of Placement's statements.
        """
        cyborg, placement = [], []

        def note(connection, cursor, statement, *_):
            (placement if 'placement' in str(connection.engine.url)
             else cyborg).append(statement.split()[0].upper())

        engine = sqlalchemy.engine.Engine
        sqlalchemy.event.listen(engine, 'before_cursor_execute', note)
        try:
            yield cyborg, placement
        finally:
            sqlalchemy.event.remove(engine, 'before_cursor_execute', note)

    def handles(self):
        """Return the UUIDs of all attach handles."""
        return {handle.uuid for handle in objects.AttachHandle.list(
            context.get_admin_context())}

    def test_an_unchanged_host_costs_one_list(self):
        self.cloud.report()
        with self.statements() as (cyborg, placement):
            self.cloud.report()
        # One more for the provider of the compute node.
        self.assertLessEqual(cyborg.count('SELECT'), _LIST + 1)
        self.assertLessEqual({*cyborg, *placement}, {'BEGIN', 'SELECT'})
        self.assertIn('SELECT', placement)

    def test_a_full_report_restores_what_was_deleted(self):
        self.cloud.report()
        before = len(self.handles())
        for handle in objects.AttachHandle.list(context.get_admin_context()):
            handle.destroy(context.get_admin_context())
        steady = self.driver._running()._steady
        now = steady._clock()
        steady._clock = lambda: now  # However long a report takes.
        self.cloud.report()
        self.assertEqual(set(), self.handles())
        steady._clock = lambda: now + drift.INTERVAL
        self.cloud.report()
        self.assertEqual(before, len(self.handles()))
