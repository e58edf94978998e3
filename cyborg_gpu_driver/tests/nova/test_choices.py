# SPDX-License-Identifier: Apache-2.0
"""Choices of requests that come at the same time."""

from __future__ import annotations

import types

import fixtures
from nova import test

from cyborg_gpu_driver.nova import weigher_reader
from cyborg_gpu_driver.nova.scheduling import chooser
from cyborg_gpu_driver.nova.scheduling import promises
from cyborg_gpu_driver.nova.weighing import cost
from cyborg_gpu_driver.nova.weighing import placement
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.report.content import names


class ChoosingTest(test.NoDBTestCase):

    def test_nobody_waits_for_good(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.scheduling.chooser._WAIT', 0.01))
        found, request = chooser.Chooser(), object()
        with found._lock:
            with found.choosing(request) as given:
                self.assertIs(request, given)
            self.assertEqual(frozenset(), found._changing())


class NeighboursTest(test.NoDBTestCase):

    def test_who_is_on_a_gpu(self):
        gpu = tuple(published.Offer(name, name, name, 1, 1) for name in 'ab')
        fleet = cost.Fleet([published.Gpu('host', 'gpu', gpu)])
        old = weigher_reader.Server('old', 'theirs', 1)

        def neighbours(server, known, *promised):
            made = [promises.Promise(name, 'ours', 'app', 'host', 'b', 2)
                    for name in promised]
            found = chooser._neighbours(types.SimpleNamespace(
                fleet=fleet, known=known, server=server,
                promised={'a': made, 'b': made}), {'b': {}})
            return found and [item.server for item in found]

        known = {'a': (old,), 'b': ()}
        for expected, arguments in (
                # All providers of the GPU count.
                (['old'], ('new', known)),
                (['old', 'next'], ('new', known, 'next')),
                # Nobody is there twice, or is its own neighbour.
                (['old'], ('new', known, 'old')),
                ([], ('old', known)),
                (None, ('new', {'a': (old,)}, 'next'))):
            self.assertEqual(expected, neighbours(*arguments))

    def test_an_isolated_gpu_whose_servers_are_not_known(self):
        """The bind decides; a GPU that is known is better."""
        offer = published.Offer(
            'a', '1g', 'X', 1, 6, frozenset({names.ISOLATED}))
        fleet = cost.Fleet([published.Gpu('host', 'gpu', (offer,))])
        candidate = {'allocations': {'a': {'resources': {'X': 1}}}}
        host = types.SimpleNamespace(nodename='host')
        mine = weigher_reader.Server('old', 'mine', 1)
        theirs = weigher_reader.Server('old', 'theirs', 1)
        ranks = chooser.Chooser()
        for policy, known, admitted in (
                ('pack', {}, True), ('pack', {'a': (mine,)}, True),
                ('pack', {'a': (theirs,)}, False),
                ('standalone', {}, False)):
            request = chooser.Request(
                placement.Wish(placement.Placement(policy)), fleet, 'mine',
                'new', known)
            self.assertEqual(admitted, ranks.admits(
                request, host, candidate), (policy, known))
            if not known:
                self.assertIsNone(ranks._figure(request, host, candidate))
