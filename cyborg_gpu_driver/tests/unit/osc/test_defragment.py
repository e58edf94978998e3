# SPDX-License-Identifier: Apache-2.0

import contextlib
import io

from openstack import connection as sdk
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.osc import defragment
from cyborg_gpu_driver.tests.unit.osc import running


class ArgumentsTest(base.BaseTestCase):

    def run_with(self, *arguments):
        cloud = connection.Cloud(sdk.Connection(
            auth={'auth_url': 'http://nowhere'}), 'here')
        return running.Openstack(cloud).run(defragment.Defragment, *arguments)

    def test_a_plan_is_applied_for_one_profile(self):
        error = self.assertRaises(
            exception.InvalidValue, self.run_with, '--apply')
        self.assertIn('--profile', str(error))

    def test_more_moves_than_a_search_can_bear(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertRaises(SystemExit, self.run_with, '--plan', '--moves',
                              '4')
        self.assertIn('expected 0 to 3', said.getvalue())
