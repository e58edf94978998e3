# SPDX-License-Identifier: Apache-2.0

"""What the installed release of Cyborg has and lacks."""


from oslo_config import cfg
from testtools import matchers

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.doctor import facts
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import base as functional
from cyborg_gpu_driver.tests.functional import gpu_cloud
from demo_lib import client


def installed():
    """Return the installed Cyborg, as ``cyborg-gpu doctor`` sees it."""
    return facts.read_machine('/nowhere', ()).release


class WhatThereIsTest(functional.TestCase):

    def setUp(self):
        super().setUp()
        self.release = installed()

    def test_it_can_be_joined_at_the_seam(self):
        self.assertThat(self.release.major, matchers.MatchesAny(
            matchers.Equals(16), matchers.Equals(17)))
        self.assertEqual('', self.release.mismatch)

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
