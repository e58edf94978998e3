# SPDX-License-Identifier: Apache-2.0


"""The weigher in the released Nova, with what agents really publish."""

from __future__ import annotations

import fixtures
from keystoneauth1 import exceptions as keystone_exceptions

from cyborg_gpu_driver.tests.nova import weigher_case

LEFT_FREE = ('3g.40gb',)
"""The agent places this 3g so that the half on which a 4g fits is free."""
RIGHT_FREE = ('3g.40gb', '3g.40gb', '-3g.40gb')
"""Servers that leave the other half free."""
FIRST, SECOND = weigher_case.GPUS


class HostTest(weigher_case.WeigherCase):

    def setUp(self):
        super().setUp()
        self.host('empty')
        self.host('left', *LEFT_FREE)
        self.host('right', *RIGHT_FREE)

    def test_pack(self):
        # Half a GPU on which no 4g fits is worth the least.
        for profile in ('1g.10gb', '3g.40gb'):
            spec = self.spec(profile)
            self.assertEqual('right', self.first(spec), profile)
        # Host "right" has no room for a 4g, so Nova never asks about it.
        self.assertEqual(['left', 'empty'],
                         list(self.order(self.spec('4g.40gb'))))
        # Two of them in one server.
        self.assertEqual('right', self.first(self.spec('1g.10gb',
                                                       '1g.10gb')))

    def test_spread(self):
        self.flags(gpu_weight_multiplier=-1.0, group='gpu_weigher')
        for profile in ('1g.10gb', '3g.40gb', '4g.40gb'):
            self.assertEqual('empty', self.first(self.spec(profile)),
                             profile)

    def test_aggregate_has_its_own_multiplier(self):
        spec = self.spec('1g.10gb')
        states = self.candidates(spec)
        for state in states:
            weigher_case.in_aggregate(state, gpu_weight_multiplier='0')
        self.assertEqual({0.0}, set(self.order(spec, states).values()))
        self.assertEqual([], self.asked)
        for state in states:
            weigher_case.in_aggregate(state, gpu_weight_multiplier='7.5')
        self.assertEqual(7.5, self.order(spec, states)['right'])

    def test_a_request_without_a_gpu_asks_nothing(self):
        for spec in (self.spec(), self.spec('1g.10gb')):
            if spec.requested_resources:
                spec.requested_resources[0].requester_id = 'a-port'
            self.assertEqual(
                {0.0}, set(self.order(spec, self.candidates(
                    self.spec('1g.10gb'))).values()))
            self.assertEqual([], self.asked)

    def test_placement_fails(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.scheduling.chooser.CACHE_SECONDS', 0.0))
        spec = self.spec('1g.10gb')
        states = self.candidates(spec)
        loaded = self.weighers()
        logged = self.useFixture(fixtures.FakeLogger(
            'cyborg_gpu_driver.nova.weigher_reader'))

        def fail(client, url, **kwargs):
            raise keystone_exceptions.ConnectFailure('no route')

        with fixtures.MonkeyPatch(
                'nova.scheduler.client.report.SchedulerReportClient.get',
                fail):
            for _ in range(3):
                self.assertEqual(
                    [0.0] * 3,
                    list(self.order(spec, states, loaded).values()))
        self.assertEqual(1, logged.output.count('no route'))


class GpuTest(weigher_case.WeigherCase):

    def setUp(self):
        super().setUp()
        self.host('one', *LEFT_FREE)
        self.host('two', f'3g.40gb@{SECOND}', gpus=(FIRST, SECOND))

    def choose(self, profile, last):
        """Weigh with the candidate on GPU ``last`` at the end."""
        spec = self.spec(profile)
        states = self.candidates(spec)
        two, = (state for state in states if state.host == 'two')
        if self.gpus(two)[0] == last:
            two.allocation_candidates.reverse()
        weights = self.order(spec, states)
        return weights, self.gpus(two)[0]

    def test_the_best_gpu_of_a_host_is_claimed(self):
        weights, gpu = self.choose('1g.10gb', last=SECOND)
        self.assertEqual(SECOND, gpu)
        # The GPUs look alike, so the weigher prefers the fuller host.
        self.assertEqual('one', next(iter(weights)))

    def test_spread_claims_the_empty_one(self):
        self.flags(gpu_weight_multiplier=-1.0, group='gpu_weigher')
        weights, gpu = self.choose('1g.10gb', last=FIRST)
        self.assertEqual(FIRST, gpu)
        self.assertEqual('two', next(iter(weights)))


class ClaimedTest(weigher_case.WeigherCase):

    def test_what_is_claimed_and_not_bound_yet_counts(self):
        self.host('bound', '3g.40gb')
        self.host('claimed', '3g.40gb?')
        self.host('empty')
        order = self.order(self.spec('4g.40gb'))
        self.assertEqual([1.0, 1.0, 0.0], list(order.values()))
        self.assertEqual('empty', list(order)[-1])
