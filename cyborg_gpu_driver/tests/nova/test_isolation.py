# SPDX-License-Identifier: Apache-2.0
"""GPUs that serve one project at a time, with the released Nova."""

from __future__ import annotations

import fixtures
from keystoneauth1 import exceptions as keystone_exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests.nova import weigher_case

FIRST, SECOND = weigher_case.GPUS
SMALL = '1g.10gb'


class IsolationTest(weigher_case.WeigherCase):

    def setUp(self):
        super().setUp()
        self.agent = self.useFixture(weigher_case.Agent(
            self.client, 'one', (FIRST, SECOND), set(), profiles=(SMALL,),
            isolated=True))
        self.hosts[self.agent.root] = 'one'
        self.server = self.boot('a')

    def boot(self, project, gpu=FIRST):
        return self.agent.boot(SMALL, gpu, project=project)

    def refused(self, project, gpu=FIRST):
        error = self.assertRaises(exception.BindRefused, self.boot, project,
                                  gpu)
        self.assertIn('isolation = project', str(error))
        return str(error)

    def test_filter(self):
        for project, expected in (('a', {FIRST, SECOND}), ('b', {SECOND})):
            spec = self.spec(SMALL)
            spec.project_id = project
            (host,) = self.filtered(spec)
            self.assertEqual(expected, set(self.gpus(host)))

    def test_another_project_is_refused(self):
        # The same project is not, and other GPUs are free.
        self.boot('a')
        self.boot('b', SECOND)
        self.assertIn('projects a and b', self.refused('b'))

    def test_a_gpu_is_free_again_when_all_have_left(self):
        self.agent.delete(self.server)
        self.boot('b')

    def test_what_has_no_allocation_is_of_an_unknown_project(self):
        server, _handle = self.server
        self.client.delete(f'/allocations/{server}', version='1.36')
        self.assertIn('not known', self.refused('b'))

    def test_refused_if_placement_does_not_answer(self):
        def fail(client, url, **kwargs):
            raise keystone_exceptions.ConnectFailure('no route')

        self.useFixture(fixtures.MonkeyPatch(
            'nova.scheduler.client.report.SchedulerReportClient.get', fail))
        self.assertIn('no route', self.refused('a'))

    def test_providers_have_the_trait(self):
        provider, = (item for item in self.client.get(
            f'/resource_providers?required={names.ISOLATED}'
            f'&in_tree={self.agent.root}', version='1.36').json()
            ['resource_providers'] if FIRST in item['name'])
        self.assertIn(SMALL, provider['name'])
