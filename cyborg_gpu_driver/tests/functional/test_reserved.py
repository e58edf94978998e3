# SPDX-License-Identifier: Apache-2.0

"""The writer of ``reserved`` on the released Placement, and nothing else."""

import dataclasses
import uuid

import fixtures
from oslo_config import cfg
from oslotest import base as oslo_base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import placement_client
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.tests.functional import base
from demo_lib import client
from demo_lib import placement_service

_CLASS = 'CUSTOM_SLICE'
_TOTAL = 7


class _Disturbed:
    """A client that calls a function of the test before each request."""

    def __init__(self, inner):
        self._inner = inner
        self.before_get = self.before_put = lambda url: None

    def get(self, url, version=None):
        self.before_get(url)
        return self._inner.get(url, version)

    def put(self, url, data, version=None):
        self.before_put(url)
        return self._inner.put(url, data, version)


class ReservedCase(oslo_base.BaseTestCase):

    def setUp(self):
        super().setUp()
        directory = self.useFixture(fixtures.TempDir()).path
        _, database = base.make_templates().copy(directory)
        service = placement_service.PlacementService(directory, database)
        self.addCleanup(service.stop)
        self.placement = client.Placement(service.url)
        self.placement.put(f'/resource_classes/{_CLASS}')
        self.root = self.provider('host1')
        self.one, self.two = (
            self.with_inventory(self.provider(name, self.root))
            for name in ('one', 'two'))
        path = f'{directory}/client.conf'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('[placement]\nauth_type = admin_token\n'
                         f'token = admin\nendpoint = {service.url}\n'
                         f'endpoint_override = {service.url}\n')
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[path])
        self.client = _Disturbed(placement_client.Placement(conf))
        self.now = 0.0
        self.restart()

    def restart(self):
        self.tree = publishing.ProviderTree(lambda: self.client)
        self.writer = reserved.ReservedWriter(self.tree, lambda: self.now)

    def provider(self, name, parent=None):
        return self.placement.post('/resource_providers', {
            'name': name, 'uuid': str(uuid.uuid4()),
            'parent_provider_uuid': parent})['uuid']

    def with_inventory(self, provider):
        self.placement.put(
            f'/resource_providers/{provider}/inventories', {
                'resource_provider_generation': 0,
                'inventories': {_CLASS: {'total': _TOTAL}}})
        return provider

    def wanted(self, provider, count):
        return reserved.Inventory(provider, _CLASS, _TOTAL, count)

    def url(self, provider):
        return f'/resource_providers/{provider}/inventories/{_CLASS}'

    def set_reserved(self, provider, count):
        """Write ``reserved`` as another client does."""
        body = self.placement.get(self.url(provider))
        self.placement.put(self.url(provider), dict(body, reserved=count))

    def reserved(self):
        return [self.placement.get(self.url(provider))['reserved']
                for provider in (self.one, self.two)]

    def generation(self, provider):
        return self.placement.get(self.url(provider))[
            'resource_provider_generation']

    def enforce(self, *counts):
        """Enforce these counts as one report does."""
        self.writer.enforce(
            [self.wanted(provider, count) for provider, count
             in zip((self.one, self.two), counts, strict=True)],
            self.tree.generations([self.one, self.two]))

    def use(self, provider):
        """Allocate one unit to a new server; return the server's UUID."""
        server = str(uuid.uuid4())
        self.placement.put(f'/allocations/{server}', {
            'allocations': {provider: {'resources': {_CLASS: 1}}},
            'project_id': client.PROJECT, 'user_id': client.USER,
            'consumer_generation': None, 'consumer_type': 'INSTANCE'})
        return server


class WriteTest(ReservedCase):

    def test_a_bind_writes_what_differs_once(self):
        asked = []
        self.client.before_get = asked.append
        self.writer.write([self.wanted(self.one, 3), self.wanted(self.two, 0)])
        self.assertEqual([3, 0], self.reserved())
        generation = self.generation(self.one)
        asked.clear()
        self.writer.write([self.wanted(self.one, 3), self.wanted(self.two, 0)])
        self.assertEqual([], asked)
        self.assertEqual(generation, self.generation(self.one))

    def test_a_bind_reads_only_what_somebody_else_has_changed(self):
        asked = []
        self.client.before_get = asked.append
        self.enforce(3, 0)
        self.set_reserved(self.two, 4)
        asked.clear()
        self.writer.write([self.wanted(self.one, 2), self.wanted(self.two, 1)])
        self.assertEqual([2, 1], self.reserved())
        self.assertEqual([self.url(self.two)], asked)
        self.placement.delete(f'/resource_providers/{self.one}')
        self.writer.write([self.wanted(self.one, 1)])

    def test_a_report_puts_right_what_somebody_else_wrote(self):
        self.enforce(3, 0)
        self.set_reserved(self.one, 1)
        self.set_reserved(self.two, 2)
        self.enforce(3, 0)
        self.assertEqual([3, 0], self.reserved())

    def test_a_report_reads_only_what_has_changed(self):
        self.enforce(3, 0)
        self.set_reserved(self.two, 2)
        asked = []
        self.client.before_get = asked.append
        self.enforce(3, 0)
        self.assertEqual([self.url(self.two)],
                         [url for url in asked if _CLASS in url])

    def test_a_provider_that_there_is_not_is_left_out(self):
        # Cyborg creates the provider after the report, or has removed it.
        absent = self.wanted(str(uuid.uuid4()), 1)
        self.writer.write([absent, self.wanted(self.one, 3)])
        self.writer.enforce([absent, self.wanted(self.two, 2)],
                            self.tree.generations([self.one]))
        self.assertEqual([3, 2], self.reserved())

    def test_a_provider_that_is_made_again_is_written_again(self):
        self.enforce(3, 0)
        self.placement.delete(f'/resource_providers/{self.one}')
        self.enforce(3, 0)
        self.placement.post('/resource_providers', {
            'name': 'one', 'uuid': self.one,
            'parent_provider_uuid': self.root})
        self.with_inventory(self.one)
        self.writer.write([self.wanted(self.one, 3)])
        self.assertEqual([3, 0], self.reserved())

    def test_as_much_is_offered_while_placement_has_another_total(self):
        """Cyborg changes the total after it has got the report."""
        for total, count, expected in (
                (_TOTAL + 3, _TOTAL + 3, _TOTAL),
                (_TOTAL + 3, _TOTAL + 1, _TOTAL - 2),
                (_TOTAL + 3, 1, 0),
                (_TOTAL - 3, 0, 3),
                (_TOTAL - 3, 3, 6),
                (_TOTAL - 3, _TOTAL - 3, _TOTAL)):
            wanted = dataclasses.replace(
                self.wanted(self.one, count), total=total)
            self.writer.enforce(
                [wanted], self.tree.generations([self.one]))
            self.assertEqual([expected, 0], self.reserved())


class ClosedTest(ReservedCase):
    """Cyborg closes the provider of a device that an operator disables."""

    def test_it_is_opened_by_the_second_report(self):
        self.enforce(3, 0)
        self.set_reserved(self.one, _TOTAL)
        # A report may have asked Cyborg just before; a bind never asks.
        for write in (lambda: self.writer.write([self.wanted(self.one, 2)]),
                      lambda: self.writer.write([self.wanted(self.one, 1)])):
            write()
            self.assertEqual([_TOTAL, 0], self.reserved())
        self.enforce(1, 0)
        self.assertEqual([1, 0], self.reserved())

    def test_a_report_that_finds_it_leaves_it(self):
        self.enforce(3, 0)
        self.set_reserved(self.one, _TOTAL)
        self.enforce(3, 0)
        self.assertEqual([_TOTAL, 0], self.reserved())
        self.enforce(3, 0)
        self.assertEqual([3, 0], self.reserved())

    def test_what_we_have_closed_ourselves_is_opened_at_once(self):
        self.enforce(_TOTAL, 0)
        self.writer.write([self.wanted(self.one, 2)])
        self.assertEqual([2, 0], self.reserved())

    def test_the_first_report_opens_what_an_earlier_process_closed(self):
        self.set_reserved(self.one, _TOTAL)
        self.writer.write([self.wanted(self.one, 2)])
        self.assertEqual([_TOTAL, 0], self.reserved())
        self.restart()
        self.enforce(2, 0)
        self.assertEqual([2, 0], self.reserved())


class RefusedTest(ReservedCase):

    def test_one_that_is_refused_keeps_no_other_from_it(self):
        error = self.assertRaises(
            exception.PlacementRefused, self.writer.write,
            [self.wanted(self.one, _TOTAL + 1), self.wanted(self.two, 2)])
        self.assertIn(self.one, str(error))
        self.assertEqual([0, 2], self.reserved())
        self.writer.write([self.wanted(self.one, 1)])
        self.assertEqual([1, 2], self.reserved())

    def silence(self, url):
        self.now += 3.0
        raise ConnectionError(url)

    def test_a_silent_placement_is_not_asked_for_ever(self):
        asked = []

        def silent(url):
            asked.append(url)
            self.silence(url)

        self.client.before_get = silent
        self.assertRaises(
            ConnectionError, self.writer.write,
            [self.wanted(str(uuid.uuid4()), 1) for _ in range(5)])
        self.assertEqual(2, len(asked))

    def test_a_slow_placement_is_asked_to_the_end(self):
        def slow(_url):
            self.now += 3.0

        self.client.before_get = slow
        self.enforce(1, 2)
        self.assertEqual([1, 2], self.reserved())

    def test_other_writers_are_outrun(self):
        left = [5, 4, 5]

        def first(_url):
            if left:
                self.set_reserved(self.one, left.pop())

        self.client.before_put = first
        self.writer.write([self.wanted(self.one, 3)])
        self.assertEqual([3, 0], self.reserved())

    def test_a_writer_that_never_ends_wins(self):
        counts = []

        def first(_url):
            counts.append(len(counts) % 2 + 4)
            self.set_reserved(self.one, counts[-1])

        self.client.before_put = first
        error = self.assertRaises(
            exception.PlacementRefused, self.writer.write,
            [self.wanted(self.one, 3)])
        self.assertIn('409', str(error))
        self.assertEqual(8, len(counts))
        self.client.before_put = lambda url: None
        self.writer.write([self.wanted(self.one, 3)])
        self.assertEqual([3, 0], self.reserved())


class TenantTest(ReservedCase):

    def test_who_uses_a_provider(self):
        server = self.use(self.one)
        self.assertIsNone(self.writer.seen(str(uuid.uuid4())))
        seen = self.writer.seen(self.one)
        self.assertEqual(((server,), self.generation(self.one), 0),
                         (seen.tenants, seen.generation, seen.ours))
        self.writer.write([self.wanted(self.one, 1)])
        self.assertEqual(1, self.writer.seen(self.one).ours)

    def test_closed_while_nobody_has_come(self):
        seen = self.writer.seen(self.one)
        closed = self.writer.close(self.one, _CLASS, seen)
        self.assertEqual([_TOTAL, 0], self.reserved())
        self.assertEqual(dataclasses.replace(
            seen, generation=self.generation(self.one), ours=1), closed)
        # No server can get it now, and no second write is necessary.
        self.assertEqual(closed, self.writer.close(self.one, _CLASS, closed))
        self.assertEqual(closed, self.writer.seen(self.one))

    def test_not_closed_once_somebody_has_come(self):
        seen = self.writer.seen(self.one)
        self.use(self.one)
        self.assertIsNone(self.writer.close(self.one, _CLASS, seen))
        self.assertEqual([0, 0], self.reserved())

    def test_not_closed_where_somebody_is_quicker(self):
        seen = self.writer.seen(self.one)
        self.client.before_put = lambda url: self.use(self.one)
        self.assertIsNone(self.writer.close(self.one, _CLASS, seen))
        self.assertEqual([0, 0], self.reserved())
