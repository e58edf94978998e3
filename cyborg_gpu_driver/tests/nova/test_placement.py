# SPDX-License-Identifier: Apache-2.0

"""Placement policies and isolation in the released Nova."""

from __future__ import annotations

import json
import pathlib
import types

import fixtures
from keystoneauth1 import exceptions as keystone_exceptions
from nova import exception as nova_exception
from nova import objects
from nova.api.validation.extra_specs import validators

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova import extra_specs
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.tests.nova import weigher_case

FIRST, SECOND = weigher_case.GPUS
SMALL = '1g.10gb'


class PlacementCase(weigher_case.WeigherCase):

    PROFILES = (SMALL, '3g.40gb')

    def best(self, spec, states=None):
        """The host and the GPU that Nova claims with the weigher."""
        states = states or self.candidates(spec)
        name = next(iter(self.order(spec, states)))
        state, = (state for state in states if state.host == name)
        return name, self.gpus(state)[0]


class PolicyTest(PlacementCase):

    def setUp(self):
        super().setUp()
        self.host('mine', f'3g.40gb@{FIRST}', gpus=(FIRST, SECOND))
        self.host('theirs', f'{SMALL}@{FIRST}~other', f'{SMALL}@{FIRST}',
                  gpus=(FIRST,))

    def test_flavor_decides(self):
        for policy, expected in (
                ('pack', ('theirs', FIRST)), ('spread', ('mine', SECOND)),
                ('standalone', ('mine', FIRST)), ('quiet', ('mine', SECOND))):
            self.assertEqual(expected, self.best(
                self.spec(SMALL, strategy=policy)), policy)

    def test_option_decides_for_the_others(self):
        self.flags(strategy='quiet', group='gpu_weigher')
        self.assertEqual(('mine', SECOND), self.best(self.spec(SMALL)))
        self.assertEqual(('theirs', FIRST), self.best(
            self.spec(SMALL, strategy='pack')))

    def test_filter_refuses_gpus_of_other_projects(self):
        spec = self.spec(SMALL, strategy='standalone')
        self.assertEqual([('mine', FIRST), ('mine', SECOND)],
                         self.passed(spec))
        self.assertEqual({'mine', 'theirs'}, {
            host.host for host in self.filtered(self.spec(SMALL))})

    def test_filter_knows_a_project_by_its_servers(self):
        spec = self.spec(SMALL, strategy='standalone')
        spec.project_id = 'other'
        self.assertEqual([('mine', SECOND)], self.passed(spec))

    def test_filter_refuses_all_if_placement_does_not_answer(self):
        spec = self.spec(SMALL, strategy='standalone')
        states = self.candidates(spec)

        def fail(client, url, **kwargs):
            raise OSError('no route')

        with fixtures.MonkeyPatch(
                'nova.scheduler.client.report.SchedulerReportClient.get',
                fail):
            self.assertEqual([], self.filtered(spec, states))

    def test_filter_refuses_a_flavor_that_is_wrong(self):
        logged = self.useFixture(fixtures.FakeLogger())
        self.assertEqual([], self.filtered(
            self.spec(SMALL, strategy='tight')))
        for part in ('gpu:strategy', 'm1.gpu', "'tight'",
                     'pack, spread, standalone, quiet'):
            self.assertIn(part, logged.output)

    def test_weigher_goes_on_with_a_flavor_that_is_wrong(self):
        logged = self.useFixture(fixtures.FakeLogger())
        self.assertEqual(('theirs', FIRST), self.best(
            self.spec(SMALL, strategy='tight')))
        self.assertIn("'tight'", logged.output)

    def test_requests_without_a_gpu_pass(self):
        spec = self.spec(SMALL, strategy='tight')
        states = self.candidates(spec)
        spec.requested_resources = []
        self.assertEqual(states, self.filtered(spec, states))
        self.assertEqual([], self.asked)


class SingleHostTest(PlacementCase):
    """With one host, Nova skips the weighers, so the filter chooses."""

    def setUp(self):
        super().setUp()
        self.host('one', f'3g.40gb@{SECOND}', gpus=(FIRST, SECOND))

    def claimed(self, **extra_specs):
        return self.passed(self.spec(SMALL, **extra_specs))[0][1]

    def test_filter_puts_the_best_gpu_first(self):
        for policy, expected in (('pack', SECOND), ('spread', FIRST),
                                 ('standalone', SECOND), ('quiet', FIRST)):
            self.assertEqual(expected, self.claimed(strategy=policy))

    def test_multiplier_of_zero_leaves_the_order(self):
        self.flags(gpu_weight_multiplier=0.0, group='gpu_weigher')
        spec = self.spec(SMALL)
        states = self.candidates(spec)
        before = self.gpus(states[0])
        self.asked.clear()
        self.filtered(spec, states)
        self.assertEqual([], self.asked)
        self.assertEqual(before, self.gpus(states[0]))

    def test_equal_gpus_take_turns(self):
        self.host('two', gpus=(FIRST, SECOND))
        spec = self.spec(SMALL)
        state, = (state for state in self.candidates(spec)
                  if state.host == 'two')
        first = self.passed(spec, [state])[0][1]
        # By chance, one of 2 ** 99 runs fails.
        self.assertTrue(any(self.passed(spec, [state])[0][1] != first
                            for _ in range(99)))


class QuietTest(PlacementCase):
    """The policy quiet, with measured slowdowns."""

    def setUp(self):
        super().setUp()
        self.host('one', f'{SMALL}@{FIRST}', f'{SMALL}@{FIRST}',
                  f'{SMALL}@{SECOND}', gpus=(FIRST, SECOND))

    def claimed(self, document, application, *running):
        """:param running: the applications that the three servers run."""
        path = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'slowdown.json')
        path.write_text(json.dumps(document), encoding='utf-8')
        self.flags(interference_file=str(path), group='gpu_weigher')
        spec = self.spec(SMALL, strategy='quiet', application=application)
        states = self.candidates(spec)
        states[0].instances = {
            server: types.SimpleNamespace(flavor=objects.Flavor(
                extra_specs={'gpu:application': name}))
            for server, name in zip(
                self.servers['one'], running, strict=True)}
        return self.passed(spec, states)[0][1]

    def test_measured_slowdowns_decide(self):
        pairs = {'slowdown': {'calm': {'calm': 1.0, 'loud': 1.5},
                              'loud': {'calm': 1.0, 'loud': 1.0}}}
        self.assertEqual(FIRST, self.claimed(
            pairs, 'calm', 'calm', 'calm', 'loud'))
        self.assertEqual(SECOND, self.claimed(
            pairs, 'calm', 'loud', 'calm', 'loud'))
        # What the others suffer counts as well.
        self.assertEqual(SECOND, self.claimed(
            pairs, 'loud', 'calm', 'calm', 'loud'))

    def test_wrong_file_is_an_error_of_the_option(self):
        error = self.assertRaises(
            exception.InvalidConfiguration, self.claimed, ['slowdown'], 'a',
            '', '', '')
        for part in ('[gpu_weigher] interference_file', '"slowdown"'):
            self.assertIn(part, str(error))


class ExtraSpecTest(weigher_case.WeigherCase):
    """How nova-api validates extra specs when an operator sets them."""

    def setUp(self):
        super().setUp()
        for item in extra_specs.register():
            self.useFixture(fixtures.MonkeyPatch(
                'nova.api.validation.extra_specs.validators.VALIDATORS',
                {**validators.VALIDATORS, item.name: item}))
        self.useFixture(fixtures.MonkeyPatch(
            'nova.api.validation.extra_specs.validators.NAMESPACES',
            {*validators.NAMESPACES, 'gpu'}))

    def test_right(self):
        for key, value in (('gpu:strategy', 'quiet'),
                           ('gpu:application', 'LAMMPS-2')):
            validators.validate(key, value)

    def test_wrong(self):
        for key, value in (('gpu:strategy', 'tight'),
                           ('gpu:application', ' '),
                           ('gpu:plaecment', 'pack')):
            self.assertRaises(nova_exception.ValidationError,
                              validators.validate, key, value)


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
