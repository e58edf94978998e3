# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What the installed release of Cyborg has and lacks."""

import json
import os
import subprocess
import sys

from oslo_config import cfg
from testtools import matchers

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.check import machine
from cyborg_gpu_driver.demo import client
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import base as functional
from cyborg_gpu_driver.tests.functional import gpu_cloud

_START = ('import runpy, sys, cyborg.cmd; '
          'runpy.run_path(sys.argv[1], run_name="__main__")')
# Not imported here: eventlet's threads do not work in this process.
_GREEN = os.path.join(os.path.dirname(__file__), 'green.py')


def installed():
    """Return the installed Cyborg, as ``cyborg-gpu check`` sees it."""
    return machine.look('/nowhere', ()).release


class WhatThereIsTest(functional.TestCase):

    def setUp(self):
        super().setUp()
        self.release = installed()

    def test_it_can_be_joined_at_the_seam(self):
        self.assertThat(self.release.major, matchers.MatchesAny(
            *map(matchers.Equals, (14, 15, 16, 17))))
        self.assertTrue(self.release.has_placement_client)
        self.assertEqual('', self.release.mismatch)

    def test_the_agent_asks_placement_from_16_on(self):
        cloud = self.use_cloud(simulate=gpu_cloud.TWO_GPUS)
        self.assertEqual(self.release.major >= 16,
                         self.release.asks_placement)
        self.assertEqual(self.release.asks_placement,
                         hasattr(cloud.agent, 'placement_client'))

    def test_a_service_token_is_asked_for(self):
        cloud = self.use_cloud(simulate=gpu_cloud.TWO_GPUS)
        cloud.cyborg._headers.pop('X-Service-Roles')
        delete = (client.Cyborg.delete_arqs, cloud.cyborg)
        if self.release.wants_service_token:
            error = self.assertRaises(client.ApiError, *delete,
                                      instance=client.PROJECT)
            self.assertEqual(403, error.status)
        else:
            self.assertThat(delete[0](delete[1], instance=client.PROJECT),
                            matchers.Is(None))


class CredentialsTest(gpu_cloud.GpuTestCase):

    overrides = {'gpu': {'policies': 'none'},
                 'gpu_policy:none': {'mode': 'off'}}

    def test_without_them_the_driver_does_not_start(self):
        conf = cfg.CONF
        conf.set_override('auth_type', None, group='placement')
        self.addCleanup(conf.clear_override, 'auth_type', group='placement')
        error = self.assertRaises(exception.InvalidConfiguration,
                                  type(self.driver))
        self.assertIn('[placement] auth_type = None', str(error))

    @scope.only_in_all
    def test_a_section_of_their_own_will_do(self):
        conf = cfg.CONF
        for name, value in (('auth_type', None), ('auth_section', 'other')):
            conf.set_override(name, value, group='placement')
            self.addCleanup(conf.clear_override, name, group='placement')
        type(self.driver)()


class AgentProcessTest(gpu_cloud.GpuTestCase):
    """A process like cyborg-agent's, with eventlet's threads before 2026.1."""

    overrides = {
        'gpu': {'policies': 'slices'},
        'gpu_policy:slices': {'mode': 'mig', 'profiles': '1g.10gb',
                              'match_address': gpu_cloud.GpuTestCase.gpu}}

    @scope.only_in_all
    def test_threads_of_the_agents_kind(self):
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', _START, _GREEN,
             self.cloud.cloud.config_path],
            capture_output=True, text=True, check=False,
            timeout=scope.HANG)
        self.assertEqual(0, done.returncode, done.stderr)
        said = json.loads(done.stdout.splitlines()[-1])
        self.assertGreater(said.pop('turns'), 0)
        self.assertEqual(
            {'green': installed().major < 16, 'errors': [], 'bound': 7,
             'unbound': 0}, said)
        self.assertEqual({}, self.mdevs())
        self.assertEqual([], self.placements())
