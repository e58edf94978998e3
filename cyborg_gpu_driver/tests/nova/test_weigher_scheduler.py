# SPDX-License-Identifier: Apache-2.0


"""The released nova-scheduler claims what the weigher puts first."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import json
import threading
import types
import uuid

import fixtures
from nova import exception
from nova.scheduler import manager
from nova.scheduler.client import report

from cyborg_gpu_driver.nova.scheduling import chooser
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.nova import weigher_case

FIRST, SECOND = weigher_case.GPUS
SMALL = '1g.10gb'


class Scheduler(manager.SchedulerManager):
    """Nova's own scheduler, except that it reads no nodes from a database.

    :ivar chosen: called when the hosts of a request are in order, before the
        request claims.
    """

    chosen = staticmethod(bool)

    def _get_all_host_states(self, context, spec_obj, provider_summaries):
        return iter(provider_summaries)

    def _get_sorted_hosts(self, spec_obj, host_states, index):
        found = super()._get_sorted_hosts(spec_obj, host_states, index)
        self.chosen()
        return found


class SchedulerCase(weigher_case.WeigherCase):

    USES_DB = True

    def setUp(self):
        super().setUp()
        self.flags(
            available_filters=[weigher_case.FILTER],
            enabled_filters=['GpuFilter'], track_instance_changes=False,
            weight_classes=['nova.scheduler.weights.all_weighers',
                            weigher_case.WEIGHER],
            group='filter_scheduler')
        self.flags(gpu_weight_multiplier=10.0, group='gpu_weigher')

    def ready(self, spec, alternates=False):
        """Prepare a request and get its allocation candidates.

        :returns: a function that takes a scheduler and does what
            select_destinations does next.
        """
        by_provider = collections.defaultdict(list)
        states = self.candidates(spec)
        for state in states:
            # The weighers for memory and processors divide by it.
            state.cpu_allocation_ratio = 1.0
        for request in self.requests(spec):
            for provider in request['allocations']:
                by_provider[provider].append(request)
        return lambda scheduler: scheduler._schedule(
            self.context, spec,
            [str(uuid.uuid4()) for _ in range(spec.num_instances)],
            by_provider, states, weigher_case.VERSION, alternates)


class SchedulerTest(SchedulerCase):

    PROFILES = ('4g.40gb',)

    def setUp(self):
        super().setUp()
        self.host('one')
        self.host('two', gpus=(FIRST, SECOND))

    def schedule(self, spec, alternates=False):
        """The names of each server's host and of its alternates."""
        return sorted(
            [item.service_host for item in selected]
            for selected in self.ready(spec, alternates)(Scheduler()))

    def test_each_of_several_servers_gets_a_gpu(self):
        for weighers in ([weigher_case.WEIGHER],
                         ['nova.scheduler.weights.all_weighers',
                          weigher_case.WEIGHER]):
            self.flags(weight_classes=weighers, group='filter_scheduler')
            self.assertEqual([['one'], ['two'], ['two']], self.schedule(
                self.spec('4g.40gb', servers=3)))
            for host in self.hosts:
                for server in self.client.get(
                        f'/resource_providers/{host}/allocations').json()[
                            'allocations']:
                    self.client.delete(f'/allocations/{server}')

    def test_alternates_are_other_hosts(self):
        self.host('three', gpus=(FIRST, SECOND))
        self.flags(max_attempts=4, group='scheduler')
        (names,) = self.schedule(self.spec('4g.40gb'), alternates=True)
        self.assertEqual(['one', 'three', 'two'], sorted(names))


class StormCase(SchedulerCase):
    """Requests that all choose before the first one claims."""

    PROFILES = (SMALL,)

    def setUp(self):
        super().setUp()
        # The database of a test's Placement handles one request at a time.
        one = threading.RLock()
        for name in ('get', 'put'):
            method = getattr(report.SchedulerReportClient, name)

            @functools.wraps(method)
            def alone(*args, method=method, **kwargs):
                with one:
                    return method(*args, **kwargs)

            self.useFixture(fixtures.MonkeyPatch(
                'nova.scheduler.client.report.SchedulerReportClient.'
                f'{name}', alone))

    def storm(self, specs):
        """The name of the GPU that each request gets, or None."""
        chooser.shared.cache_clear()
        scheduler = Scheduler()
        ready = list(map(self.ready, specs))
        barrier = threading.Barrier(len(specs), timeout=scope.HANG)
        Scheduler.chosen = staticmethod(barrier.wait)
        self.addCleanup(setattr, Scheduler, 'chosen', staticmethod(bool))
        with concurrent.futures.ThreadPoolExecutor(len(specs)) as pool:
            return list(pool.map(self.create, ready,
                                 itertools.repeat(scheduler)))

    def create(self, ready, scheduler):
        try:
            ((selection,),) = ready(scheduler)
        except exception.NoValidHost:
            return None
        return self.gpus(types.SimpleNamespace(
            uuid=selection.compute_node_uuid, allocation_candidates=[
                json.loads(selection.allocation_request)]))[0]


class StormTest(StormCase):

    def served(self, count=20):
        found = self.storm([self.spec(SMALL) for _ in range(count)])
        return count - found.count(None)

    def test_nobody_loses_a_race_in_one_worker(self):
        self.host('one', gpus=(FIRST, SECOND))
        self.asked.clear()
        self.assertEqual(14, self.served(count=14))
        claims = [url for url in self.asked if url.startswith('/allocations')]
        self.assertEqual(14, len(claims))


class ProjectTest(StormCase):
    """Requests of several projects for GPUs that must not be shared."""

    def isolated_host(self, name, *gpus):
        """The agent of a host whose GPUs must not be shared."""
        agent = weigher_case.Agent(
            self.client, name, gpus or (FIRST,), self._made,
            profiles=(SMALL,), isolated=True)
        self.hosts[agent.root] = name
        return agent

    def spec_of(self, project, **extra_specs):
        spec = self.spec(SMALL, **extra_specs)
        spec.project_id = project
        return spec

    def projects(self, names, **extra_specs):
        """For each GPU, and None, the projects whose requests got it."""
        found = collections.defaultdict(list)
        for gpu, name in zip(self.storm([
                self.spec_of(name, **extra_specs) for name in names]), names):
            found[gpu].append(name)
        return sorted(''.join(sorted(part)) for part in found.values())

    def test_a_third_project_finds_no_gpu(self):
        with self.isolated_host('one', FIRST, SECOND):
            found = self.projects('abcabc')
            self.assertEqual(['aa', 'bb', 'cc'], found)

    def test_standalone(self):
        self.host('one', gpus=(FIRST, SECOND))
        self.assertEqual(['aaa', 'bbb'], self.projects(
            'ababab', strategy='standalone'))

    def test_who_has_given_up_keeps_nothing(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.scheduling.chooser.CACHE_SECONDS', 0.0))
        with self.isolated_host('one'):
            scheduler = Scheduler()
            one, two = (self.ready(self.spec_of(name)) for name in 'ab')
            with fixtures.MonkeyPatch(
                    'nova.scheduler.client.report.SchedulerReportClient'
                    '.claim_resources', lambda *args, **kwargs: False):
                self.assertIsNone(self.create(one, scheduler))
            # The request has ended.
            del one
            self.assertEqual(FIRST, self.create(two, scheduler))

    def test_what_was_promised_since_the_filter_is_taken_away(self):
        with self.isolated_host('one'), self.isolated_host('two'):
            scheduler = Scheduler()
            specs = [self.spec_of(name) for name in 'abc']
            states = [self.candidates(spec) for spec in specs]
            for state in itertools.chain(*states):
                state.cpu_allocation_ratio = 1.0
            late = scheduler.host_manager.get_filtered_hosts(
                states[2], specs[2])
            self.assertEqual([1, 1], [
                len(host.allocation_candidates) for host in late])
            kept = [scheduler._get_sorted_hosts(spec, found, 0)
                    for spec, found in zip(specs[:2], states[:2])]
            self.assertEqual([2, 1], list(map(len, kept)))
            self.assertEqual([[], []], [
                weighed.obj.allocation_candidates for weighed in
                scheduler.host_manager.get_weighed_hosts(late, specs[2])])
