# SPDX-License-Identifier: Apache-2.0
"""GPUs that serve one project at a time, with the released Nova."""

from __future__ import annotations

import collections

import fixtures
from keystoneauth1 import exceptions as keystone_exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.nova import weigher_case

FIRST, SECOND = weigher_case.GPUS
SMALL = '1g.10gb'
BOARD = tuple(f'0000:{bus}:00.0' for bus in (
    '18', '2a', '3a', '5d', '9a', 'ab', 'ba', 'db'))
"""The GPUs of an HGX H100."""


class IsolationCase(weigher_case.WeigherCase):

    def start(self, *gpus, isolated=True):
        """Start an agent with isolated GPUs for the duration of the test."""
        agent = self.useFixture(weigher_case.Agent(
            self.client, 'one', gpus, set(), profiles=(SMALL,),
            isolated=isolated))
        self.hosts[agent.root] = 'one'
        return agent


class BindTest(IsolationCase):
    """The agent enforces the isolation when it binds, without the filter."""

    def setUp(self):
        super().setUp()
        self.agent = self.start(FIRST, SECOND)
        self.server = self.boot('a')

    def boot(self, project, gpu=FIRST):
        return self.agent.boot(SMALL, gpu, project=project)

    def refused(self, project, gpu=FIRST):
        error = self.assertRaises(exception.BindRefused, self.boot, project,
                                  gpu)
        self.assertIn('isolation = project', str(error))
        return str(error)

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


class FilterTest(IsolationCase):
    """Three projects ask in turn for slices.

    ``SIZE`` has the GPUs, how many servers the projects request, and how many
    Nova refuses with and without isolation. Eight GPUs have 56 slices; with
    isolation, each project wants 20 of them, on whole GPUs of 7. With two
    isolated GPUs, none is left for the third project.
    """

    SIZE = (BOARD, 60, 6, 4) if scope.ALL else (BOARD[:2], 6, 2, 0)

    def create(self, agent, filters, project, number):
        """Create a server and return the GPU that it gets, or None."""
        spec = self.spec(SMALL)
        spec.project_id = project
        states = self.candidates(spec)
        for state in states:
            # Nova counts the servers that it has claimed.
            state.num_instances = number
        handler, loaded = filters
        for host in handler.get_filtered_objects(loaded, states, spec):
            gpu = self.gpus(host)[0]
            agent.boot(SMALL, gpu, project=project)
            return gpu
        return None

    def creates(self, isolated):
        """Request servers for three projects.

        :returns: how many Nova refused, and for each GPU the number of
            servers of each project.
        """
        gpus, servers, *_ = self.SIZE
        agent = self.start(*gpus, isolated=isolated)
        filters = self.filters()
        found = collections.defaultdict(collections.Counter)
        for number in range(servers):
            project = 'abc'[number % 3]
            gpu = self.create(agent, filters, project, number)
            found[gpu][project] += 1
        return sum(found.pop(None, {}).values()), found

    def test_with_isolation(self):
        gpus, _servers, expected, _without = self.SIZE
        refused, found = self.creates(isolated=True)
        self.assertEqual([1] * len(gpus),
                         [len(there) for there in found.values()])
        self.assertEqual(expected, refused)

    def test_without_isolation(self):
        refused, found = self.creates(isolated=False)
        self.assertEqual(self.SIZE[-1], refused)
        self.assertIn(3, [len(there) for there in found.values()])
