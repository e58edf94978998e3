# SPDX-License-Identifier: Apache-2.0
"""Promises: choices that Placement does not show yet."""

from __future__ import annotations

from oslotest import base

from cyborg_gpu_driver.nova.scheduling import promises
from cyborg_gpu_driver.nova.weighing import cost
from cyborg_gpu_driver.nova.weighing import published

KEEP = 20.0
WHOLE, Q, C = 'passthrough', 'L40S-12Q', 'L40S-24C'


def fleet(number, began=0.0, **used):
    """A reading with a number and a time: providers of seven slices each.

    :param used: the number of used slices, by provider.
    """
    found = cost.Fleet(published.Gpu('host', name, (published.Offer(
        name, '1g', 'CUSTOM_X', units, 7 - units),))
        for name, units in used.items())
    found.number, found.began = number, {'host': began}
    return found


class State:
    """The state of a host, which Nova has while a request lasts."""

    num_instances = 3


class PromisesTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.promises = promises.Promises(KEEP, lambda: self.now)
        self.states = {}

    def promise(self, server, provider='a', amount=1, read=None):
        state = self.states[server] = State()
        self.promises.replace(server, state, [promises.Promise(
            server, 'project', '', 'host', provider, amount)],
            read or fleet(1, a=2, b=0))

    def end(self, server):
        del self.states[server]

    def missing(self, read):
        self.promises.settle(read)
        return [promise.server for promise in self.promises.missing(read)]

    def test_what_was_chosen_is_missing(self):
        self.promise('x')
        self.promise('y', 'b')
        self.assertEqual(['x', 'y'], self.missing(fleet(1, a=2, b=0)))
        self.assertEqual({'host'}, self.promises.hosts)

    def test_what_shows_is_not_counted_twice(self):
        for server in 'xyz':
            self.promise(server)
        for number in (2, 3):
            self.assertEqual(['z'], self.missing(fleet(number, a=4, b=0)))
        self.assertEqual([], self.missing(fleet(4, a=5, b=0)))
        self.assertEqual(frozenset(), self.promises.hosts)

    def test_who_read_earlier_still_misses_it(self):
        self.promise('x')
        self.assertEqual([], self.missing(fleet(3, a=3, b=0)))
        self.assertEqual(['x'], self.missing(fleet(2, a=2, b=0)))
        # The earlier reading revealed nothing new.
        self.promise('y', read=fleet(3, a=3, b=0))
        self.assertEqual(['y'], self.missing(fleet(3, a=3, b=0)))

    def test_a_host_that_was_read_after_the_request_has_it(self):
        for server in 'xyz':
            self.promise(server)
        self.end('y')
        # Another server has left, so the number of used units is no evidence.
        self.assertEqual(['x', 'y', 'z'], self.missing(
            fleet(2, self.now - 1, a=2, b=0)))
        self.assertEqual(['x', 'z'], self.missing(
            fleet(3, self.now + 1, a=2, b=0)))
        # One more unit is that of a server whose request goes on.
        self.assertEqual(['z'], self.missing(
            fleet(4, self.now + 2, a=3, b=0)))

    def test_units_of_ended_requests_are_not_those_of_others(self):
        for server in 'xyz':
            self.promise(server)
        self.end('y')
        self.end('z')
        self.assertEqual(['x'], self.missing(
            fleet(2, self.now + 1, a=4, b=0)))

    def test_a_server_is_promised_one_thing(self):
        self.promise('x')
        self.promise('x', 'b')
        self.assertEqual(['b'], [
            promise.provider for promise in self.promises.of('x')])

    def test_a_claim(self):
        self.promise('x')
        (promise,) = self.promises.of('x')
        self.assertFalse(promise.is_claimed)
        self.states['x'].num_instances += 1
        self.assertTrue(promise.is_claimed)
        self.end('x')
        self.assertFalse(promise.is_claimed)

    def test_a_promise_is_forgotten_after_a_while(self):
        self.promise('x')
        self.now += KEEP - 1
        self.promise('y')
        self.now += 1
        self.assertEqual(['y'], self.missing(fleet(1, a=2, b=0)))

    def test_what_is_not_known_is_not_promised(self):
        self.promise('x', 'elsewhere')
        self.assertEqual([], self.missing(fleet(1, a=2, b=0)))

    def test_a_host_that_is_read_no_more(self):
        self.promise('x')
        self.assertEqual(['x'], self.missing(fleet(2, b=0)))


class ClaimedTest(base.BaseTestCase):
    """The free amounts that a GPU offers after a claim."""

    def offer(self, profile, used, free):
        return published.Offer(profile, profile, profile, used, free)

    def free(self, *offers, **amounts):
        claims = {{'whole': WHOLE, 'q': Q}.get(name, name): amount
                  for name, amount in amounts.items()}
        found = published.claimed(offers, claims)
        self.assertEqual(
            [offer.used + claims.get(offer.provider, 0)
             for offer in offers], [offer.used for offer in found])
        return [offer.free for offer in found]

    def test_only_what_is_claimed_counts_as_in_placement(self):
        self.assertEqual([3, 2], self.free(
            self.offer('a', 1, 5), self.offer('b', 0, 2), a=2))

    def test_a_gpu_has_one_role(self):
        self.assertEqual([0, 0, 6], self.free(
            self.offer(WHOLE, 0, 1), self.offer(Q, 0, 4),
            self.offer('a', 0, 7), a=1))
        self.assertEqual([0, 0], self.free(
            self.offer(WHOLE, 0, 1), self.offer('a', 0, 7), whole=1))

    def test_the_first_vgpu_chooses_the_type(self):
        self.assertEqual([3, 0], self.free(
            self.offer(Q, 0, 4), self.offer(C, 0, 2), q=1))
        # Later, the agent has reported what still fits.
        self.assertEqual([2, 1], self.free(
            self.offer(Q, 1, 3), self.offer(C, 0, 1), q=1))


class AfterTest(base.BaseTestCase):
    """The fleet that results from claims."""

    def test_only_its_own_host_changes(self):
        before = cost.Fleet([
            published.Gpu(host, '0', (published.Offer(
                host, '1g', 'CUSTOM_X', 0, 7),)) for host in 'ab'])
        after = before.after({'a': 7})
        for read, expected in ((before, 0), (after, 7)):
            self.assertEqual(expected, read.offer('a').used)
            self.assertEqual(0, read.offer('b').used)
        asked = {'a': {'resources': {'CUSTOM_X': 1}}}
        self.assertLess(before.cost(asked).loss, 9)
        self.assertEqual(float('inf'), after.cost(asked).loss)
        self.assertEqual(0, after.cost(asked).host)
        self.assertIsNone(after.offer('c'))
