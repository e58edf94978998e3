# SPDX-License-Identifier: Apache-2.0

"""An agent without privileges, with the daemon of oslo.privsep."""

import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import unprivileged


class UnprivilegedTest(base.BaseTestCase):
    """Functional tests, with all of the cloud running as another user."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest('only root can fork off a privileged daemon')
        self.begin()

    def begin(self):
        """Make a directory for a new machine, which nothing has changed."""
        self.directory = self.useFixture(fixtures.TempDir()).path
        unprivileged.begin(self.directory)

    def run_tests(self, machine, *names):
        done = unprivileged.run(self.directory, machine, *names)
        self.assertEqual(0, done.returncode, done.stderr)

    def test_nothing_goes_past_the_daemon(self):
        self.run_tests(gpu_cloud.TWO_GPUS, 'unprivileged.ClosedTest')

    def test_slices(self):
        self.run_tests(
            gpu_cloud.TWO_GPUS, *scope.some((
            'test_mig.BindTest.test_two_in_one_server',
            'test_mig.BindTest.test_every_profile_is_cut_where_planned_and_'
            'given_back',
            'test_mig.BindTest.test_an_agent_started_again_knows_what_is_'
            'bound',
            'test_refusals.RefusalTest.test_a_repeated_unbind_changes_'
            'nothing')))

    def test_beside_root(self):
        self.run_tests(gpu_cloud.TWO_GPUS, 'root_beside.BesideTest')

    def test_a_whole_gpu_is_reset(self):
        self.run_tests(
            'mixed', 'test_cleaning.WholeTest.test_it_is_not_to_be_had_'
            'before_it_was_reset')
