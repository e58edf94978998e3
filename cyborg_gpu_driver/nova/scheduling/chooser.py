# SPDX-License-Identifier: Apache-2.0

"""Ranks the GPUs that a host has for a request.

The weigher and the filter use it and share what it reads from Placement.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import math
import operator
import random
import threading
from collections.abc import Iterator
from collections.abc import Mapping

import nova.conf
from nova.scheduler import utils
from nova.scheduler.client import report
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import weigher
from cyborg_gpu_driver.nova import weigher_reader
from cyborg_gpu_driver.nova.scheduling import promises
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost
from cyborg_gpu_driver.nova.weighing import placement
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.report.content import names

_CLAIM = 15.0
"""Seconds after which a claim has succeeded or failed: Nova tries a claim
four times, and sleeps for up to twelve seconds in between (``retries`` in
nova/scheduler/client/report.py)."""
_WAIT = 5.0
"""Seconds for which a request waits for the choices of other requests. A
choice takes a tenth of a second of CPU time with 1,000 hosts, and calls no
service."""

CONF = nova.conf.CONF
CONF.register_group(weigher.GROUP)
CONF.register_opts(weigher.OPTS, group=weigher.GROUP)

LOG = logging.getLogger(__name__)

_PROFILE = 'device_profile_'
"""How Nova names the request groups of a device profile
(get_device_profile_group_requester_id in nova/accelerator/cyborg.py)."""
CACHE_SECONDS = 5.0
"""How long the free capacity of a host's GPUs is kept after it was read. The
time doubles, up to 60 times this, while the capacity stays the same."""
_SERVERS = 100_000
"""The maximum number of servers whose application is remembered."""
_KEPT = 2
"""Hosts to remember, as a multiple of those that one request can name."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a server requests of the GPUs, and what is known about them."""

    wish: placement.Wish
    fleet: weigher_cost.Fleet
    project: str
    server: str
    """Its UUID; its own allocations do not count as a neighbour's."""
    known: Mapping[str, tuple[weigher_reader.Server, ...]]
    """By provider for which the neighbours matter, the servers on it; absent
    if they are not known."""
    promised: Mapping[str, tuple[promises.Promise, ...]] | None = None
    """By provider, the promises for its GPU; ``fleet`` then includes them.
    None: other requests may choose at the same time."""


class Chooser:
    """Ranks allocation candidates. Thread-safe."""

    def __init__(self):
        self._reader = weigher_reader.Reader(
            _get, CACHE_SECONDS, _KEPT * CONF.scheduler.max_placement_results)
        self._lock = threading.Lock()
        self._promises = promises.Promises(_CLAIM + CACHE_SECONDS)
        self._applications: dict[str, str] = {}
        self._matrix = _matrix(CONF.gpu_weigher.interference_file)

    def request(self, spec, wish, hosts) -> Request | None:
        """Return what is known for a request for a GPU.

        Only this method waits for Placement, and queries the database.

        :returns: None if Placement does not answer; that is logged.
        """
        # nova-compute updates both values when a server is added or
        # removed; Nova updates them within a request for several servers.
        fleet = self._reader.fleet(resource_classes(spec)[0], {
            host.uuid: (host.updated, host.num_instances) for host in hosts
            if multiplier(host) or policy_of(wish, host).is_strict},
            self._changing(), {
                host.uuid for host in hosts
                if self._concerns_servers(policy_of(wish, host))})
        if fleet is None:
            return None
        request = Request(
            wish, fleet, spec.project_id,
            spec.instance_uuid if 'instance_uuid' in spec else '', {})
        return dataclasses.replace(
            request, known=self._known(request, hosts))

    @contextlib.contextmanager
    def choosing(self, request) -> Iterator[Request]:
        """Open a context in which no other request chooses.

        It yields the request with what others have chosen. If the lock cannot
        be had in time, it yields the unchanged request. Do not query
        Placement or a database in the context.
        """
        with self._locked() as is_locked:
            yield self._after_others(request) if is_locked else request

    def current(self, request) -> Request:
        """Return the request with what others have chosen so far.

        Others may choose more while the caller looks at many hosts.
        """
        with self.choosing(request) as now:
            return now

    def figures(self, request, hosts) -> list[list[float | None]]:
        """Return how bad each allocation candidate of each host is.

        :returns: infinite for an impossible candidate, None for an unknown
            one.
        """
        return [[self._figure(request, host, candidate)
                 for candidate in host.allocation_candidates]
                for host in hosts]

    def promise(self, request, host) -> None:
        """Record that Nova is about to claim the first candidate of a host.

        :param request: from :meth:`choosing`, whose context is still open.
        """
        if request.promised is None or not host.allocation_candidates:
            return
        if any(promise.is_claimed
               for promise in self._promises.of(request.server)):
            # Nova looks for alternates.
            return
        self._promises.replace(request.server, host, [
            promises.Promise(
                request.server, request.project, request.wish.application,
                host.uuid, offer.provider, amount)
            for offer, amount in request.fleet.taken(
                host.allocation_candidates[0]['allocations'])],
            self._reader.latest)

    def keep_admitted(self, request, host) -> None:
        """Remove the candidates that later promises to others rule out.

        The filter did not know those promises.
        """
        if request.promised:
            host.allocation_candidates = [
                candidate for candidate in host.allocation_candidates
                if request.promised.keys().isdisjoint(
                    candidate['allocations'])
                or self.admits(request, host, candidate)]

    def admits(self, request, host, candidate) -> bool:
        """Whether policy and isolation allow an allocation candidate.

        A strict policy refuses a GPU about which nothing is known. Otherwise
        such a GPU is allowed; if it is isolated, the bind may still refuse
        the server.
        """
        allocations = candidate['allocations']
        is_strict = policy_of(request.wish, host).is_strict
        if request.fleet.cost(allocations) is None:
            return not is_strict
        if not is_strict and not _is_isolated(request, allocations):
            return True
        there = _neighbours(request, allocations)
        return (not is_strict if there is None
                else not _strangers(request, there))

    @contextlib.contextmanager
    def _locked(self):
        """Open a context with the promises; no service is called in it."""
        is_locked = self._lock.acquire(timeout=_WAIT)
        try:
            yield is_locked
        finally:
            if is_locked:
                self._lock.release()

    def _changing(self):
        """Return the compute nodes that were just chosen for a server."""
        with self._locked() as is_locked:
            return self._promises.hosts if is_locked else frozenset()

    def _after_others(self, request):
        self._promises.settle(self._reader.latest)
        amounts: collections.Counter[str] = collections.Counter()
        promised: dict[str, tuple[promises.Promise, ...]] = {}
        for promise in self._promises.missing(request.fleet):
            if promise.server == request.server:
                continue
            amounts[promise.provider] += promise.amount
            for gpu in request.fleet.gpus([promise.provider]):
                for offer in gpu:
                    promised[offer.provider] = (
                        *promised.get(offer.provider, ()), promise)
        return dataclasses.replace(
            request, promised=promised,
            fleet=request.fleet.after(amounts) if amounts
            else request.fleet)

    def _figure(self, request, host, candidate):
        allocations = candidate['allocations']
        cost = request.fleet.cost(allocations)
        if cost is None:
            return None
        policy = policy_of(request.wish, host)
        if _is_isolated(request, allocations):
            there = _neighbours(request, allocations)
            if there is None:
                return None
            if _strangers(request, there):
                return math.inf
        return placement.figure(policy, cost, self._company(
            request, policy, allocations))

    def _company(self, request, policy, allocations):
        """Return who is on the GPUs of an allocation candidate.

        The result has only what the policy needs.
        """
        if policy not in (placement.Placement.STANDALONE,
                          placement.Placement.QUIET):
            return placement.Company()
        used = sum(offer.used for gpu in request.fleet.gpus(allocations)
                   for offer in gpu)
        if not used or not self._concerns_servers(policy):
            return placement.Company(used)
        there = _neighbours(request, allocations)
        if there is None:
            return placement.Company(used, strangers=used)
        return placement.Company(
            sum(neighbour.amount for neighbour in there),
            _strangers(request, there),
            None if policy.is_strict
            else self._interference(request, there))

    def _concerns_servers(self, policy):
        """Whether a policy depends on who is on a GPU."""
        return policy.is_strict or (
            policy is placement.Placement.QUIET and self._matrix is not None)

    def _known(self, request, hosts):
        """Return who is on the GPUs for which the neighbours matter."""
        found: dict[str, tuple[weigher_reader.Server, ...]] = {}
        for host in hosts:
            policy = policy_of(request.wish, host)
            concerns = self._concerns_servers(policy)
            if not concerns and not request.fleet.has_isolated:
                continue
            for candidate in host.allocation_candidates:
                allocations = candidate['allocations']
                if concerns or _is_isolated(request, allocations):
                    for gpu in request.fleet.gpus(allocations):
                        self._learn(found, host, gpu, policy)
        return found

    def _learn(self, found, host, gpu, policy):
        """Note who is on a GPU, as far as that is known."""
        for offer in gpu:
            servers = (None if offer.provider in found
                       else self._reader.servers(host.uuid, offer))
            if servers is not None:
                found[offer.provider] = servers if (
                    policy.is_strict or self._matrix is None) else tuple(
                        dataclasses.replace(item, application=(
                            self._application(host, item.server)))
                        for item in servers)

    def _application(self, host, server):
        """Return what a server runs; empty if its flavor does not say."""
        if server not in self._applications and server in host.instances:
            try:
                specs = host.instances[server].flavor.extra_specs
            except Exception as error:
                # From the database of a cell, which may be down.
                LOG.warning('The flavor of server %s cannot be read: %s',
                            server, error)
                return ''
            if len(self._applications) >= _SERVERS:
                self._applications.clear()
            self._applications[server] = specs.get(
                placement.APPLICATION, '')
        return self._applications.get(server, '')

    def _interference(self, request, there):
        return self._matrix.interference(
            request.wish.application,
            [neighbour.application for neighbour in there
             for _ in range(neighbour.amount)])


@functools.cache
def shared() -> Chooser:
    """Return the chooser of this process, created at the first call."""
    return Chooser()


def resource_classes(spec) -> list[str]:
    """Return the GPU resource classes in a request's device profiles."""
    if 'requested_resources' not in spec:
        return []
    return sorted({
        resource_class for group in spec.requested_resources or ()
        if (group.requester_id or '').startswith(_PROFILE)
        for resource_class in group.resources
        if published.is_gpu(resource_class)})


def wish_of(spec) -> placement.Wish:
    """Return what the flavor of a request says about the choice of a GPU.

    :raises InvalidValue: an extra spec of the weigher is malformed.
    """
    flavor = spec.flavor
    return placement.wish(
        flavor.extra_specs if 'extra_specs' in flavor else {},
        flavor.name if 'name' in flavor else '')


def multiplier(host) -> float:
    """Return the multiplier of a host's weight; negative to spread."""
    return utils.get_weight_multiplier(
        host, 'gpu_weight_multiplier',
        CONF.gpu_weigher.gpu_weight_multiplier)


def policy_of(wish, host) -> placement.Placement:
    """Return the placement policy to apply on a host."""
    return wish.placement or (
        placement.Placement.SPREAD if multiplier(host) < 0
        else placement.Placement(CONF.gpu_weigher.strategy))


def put_best_first(candidates, figures) -> float | None:
    """Put the best allocation candidate first, because Nova claims that one.

    Among equal candidates the choice is random: servers that are created at
    the same time see the same state, and only one of them gets the last
    slice.

    :returns: the figure of the best candidate; None if nothing is known
        about any candidate.
    """
    known = [(figure, position) for position, figure in enumerate(figures)
             if figure is not None]
    if not known:
        return None
    best = min(known, key=operator.itemgetter(0))[0]
    position = random.choice([position for figure, position in known
                              if figure == best])
    candidates.insert(0, candidates.pop(position))
    return best


def _neighbours(request, allocations):
    """Return the other servers on the GPUs of a candidate.

    :returns: None if they are not known.
    """
    found = []
    for gpu in request.fleet.gpus(allocations):
        if any(offer.provider not in request.known for offer in gpu):
            return None
        shown = [server for offer in gpu
                 for server in request.known[offer.provider]]
        servers = {request.server, *(item.server for item in shown)}
        found += [item for item in shown if item.server != request.server]
        # Each provider of a GPU has all of its promises.
        found += [promise for promise
                  in (request.promised or {}).get(gpu[0].provider, ())
                  if promise.server not in servers]
    return found


def _strangers(request, there):
    """Return the units that servers of other projects have."""
    return sum(item.amount for item in there
               if item.project != request.project)


def _is_isolated(request, allocations):
    """Whether a GPU of the candidate may have servers of one project only."""
    return request.fleet.has_isolated and any(
        names.ISOLATED in offer.traits for offer, _amount
        in request.fleet.taken(allocations))


def _matrix(path):
    if path is None:
        return None
    try:
        with open(path, encoding='utf-8') as file:
            return published.parse(json.load(file))
    except (OSError, ValueError, exception.InvalidValue) as error:
        raise exception.InvalidConfiguration(
            group=weigher.GROUP.name, option='interference_file',
            value=path, reason=str(error)) from error


def _get(url, version):
    return report.report_client_singleton().get(url, version=version)
