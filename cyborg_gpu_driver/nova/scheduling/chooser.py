# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.
"""Ranks the GPUs that a host has for a request.

For the weigher and the filter, which share what was read from Placement.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import random

import nova.conf
from nova.scheduler import utils
from nova.scheduler.client import report
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.conf import weigher
from cyborg_gpu_driver.nova import weigher_reader
from cyborg_gpu_driver.nova.scheduling import promises
from cyborg_gpu_driver.nova.scheduling import residents
from cyborg_gpu_driver.nova.scheduling import utilization
from cyborg_gpu_driver.nova.weighing import cost as weigher_cost
from cyborg_gpu_driver.nova.weighing import interference
from cyborg_gpu_driver.nova.weighing import placement
from cyborg_gpu_driver.nova.weighing import published
from cyborg_gpu_driver.report.content import traits

CONF = nova.conf.CONF
CONF.register_group(weigher.GROUP)
CONF.register_opts(weigher.OPTS, group=weigher.GROUP)

LOG = logging.getLogger(__name__)

_PROFILE = 'device_profile_'
"""How Nova names the request groups of a device profile
(get_device_profile_group_requester_id in nova/accelerator/cyborg.py)."""
_KEPT = 2
"""Hosts that are remembered, by those that one request can name."""
_SERVERS = 100_000
"""Servers whose application is remembered, at most."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a server asks of the GPUs."""

    wish: placement.Wish
    fleet: weigher_cost.Fleet
    project: str
    server: str
    """Its UUID; what it has already does not count as a neighbour's."""


class Chooser:
    """Ranks allocation candidates."""

    def __init__(self):
        self._reader = weigher_reader.Reader(
            _get, CONF.gpu_weigher.cache_seconds,
            _KEPT * CONF.scheduler.max_placement_results)
        self._residents = residents.Residents(_get)
        self._promises = promises.Promises()
        self._utilization = utilization.Utilization(
            CONF.gpu_weigher.prometheus_url)
        self._matrix = _matrix(CONF.gpu_weigher.interference_file)
        self._said = log_once.LogOnce()
        self._applications: dict[str, str] = {}

    def request(self, spec, wish, hosts) -> Request | None:
        """What is known for a request for a GPU.

        :param hosts: on which it may go.
        :returns: None if Placement does not tell; that is logged.
        """
        # Nova updates both after a claim, its own included, and when
        # nova-compute reports a change.
        fleet = self._reader.fleet(resource_classes(spec), {
            host.uuid: (host.updated, host.num_instances) for host in hosts
            if multiplier(host) or policy_of(wish, host).is_strict})
        return None if fleet is None else Request(
            wish, fleet, spec.project_id,
            spec.instance_uuid if 'instance_uuid' in spec else '')

    def figures(self, request, hosts) -> list[list[float | None]]:
        """How bad each allocation candidate of each host is.

        :returns: infinite for what is impossible, None for the unknown.
        """
        figures = [[self._figure(request, host, candidate)
                    for candidate in host.allocation_candidates]
                   for host in hosts]
        if not request.wish.preferences:
            return self._with_promises(request, hosts, figures)
        known = [figure for row in figures for figure in row
                 if figure is not None and math.isfinite(figure)]
        low, high = min(known, default=0.0), max(known, default=0.0)
        span = high - low or 1.0
        return self._with_promises(request, hosts, [
            [None if figure is None else (figure - low) / span
             - _preference(request, candidate)
             for figure, candidate in zip(
                 row, host.allocation_candidates, strict=True)]
            for row, host in zip(figures, hosts, strict=True)])

    def _with_promises(self, request, hosts, figures):
        """The same, but infinite for what others have just chosen."""
        return [[figure if figure is None or all(
            self._promises.left(offer) >= amount for offer, amount
            in request.fleet.taken(candidate['allocations']))
            else math.inf
            for figure, candidate in zip(
                row, host.allocation_candidates, strict=True)]
            for row, host in zip(figures, hosts, strict=True)]

    def promise(self, request, host) -> None:
        """Nova is about to claim the first candidate of a host."""
        if CONF.gpu_weigher.order_candidates and host.allocation_candidates:
            candidate = host.allocation_candidates[0]
            for offer, amount in request.fleet.taken(
                    candidate['allocations']):
                self._promises.add(offer, amount)

    def admits(self, request, host, candidate) -> bool:
        """Whether policy and isolation allow an allocation candidate.

        A strict policy refuses a GPU of which nothing is known. If such a
        GPU is isolated, the bind may refuse the server.
        """
        allocations = candidate['allocations']
        if request.fleet.cost(allocations) is None:
            return not policy_of(request.wish, host).is_strict
        return (not _is_strict(request, host, allocations)
                or not self._company(
                    request, host, placement.Placement.STANDALONE,
                    allocations).strangers)

    def _figure(self, request, host, candidate):
        allocations = candidate['allocations']
        cost = request.fleet.cost(allocations)
        if cost is None:
            return None
        policy = policy_of(request.wish, host)
        if (_is_isolated(request, allocations) and self._company(
                request, host, placement.Placement.STANDALONE,
                allocations).strangers):
            return math.inf
        return placement.figure(policy, cost, self._company(
            request, host, policy, allocations),
            self._busy(request, host, policy, allocations))

    def _busy(self, request, host, policy, allocations):
        """How busy the GPUs of an allocation candidate are, if it matters."""
        if policy is not placement.Placement.QUIET:
            return None
        return self._utilization.of(host.nodename, (
            gpu[0].gpu for gpu in request.fleet.gpus(allocations)))

    def _company(self, request, host, policy, allocations):
        """Who is on the GPUs of an allocation candidate.

        Only what the policy needs to know.
        """
        if policy not in (placement.Placement.STANDALONE,
                          placement.Placement.QUIET):
            return placement.Company()
        gpus = request.fleet.gpus(allocations)
        neighbours = sum(offer.used for gpu in gpus for offer in gpu)
        measured = policy is placement.Placement.QUIET and self._matrix
        if not neighbours or not measured and not policy.is_strict:
            return placement.Company(neighbours)
        try:
            there = [resident for gpu in gpus
                     for resident in self._residents.of(gpu)
                     if resident.server != request.server]
        except Exception as error:
            # Whatever it is: a weigher must not fail a request.
            if self._said.is_new(str(error)):
                LOG.warning('Placement does not tell the projects of servers '
                            'with GPUs: %s', error)
            return placement.Company(neighbours, strangers=neighbours)
        self._said.over()
        return placement.Company(
            sum(resident.amount for resident in there),
            sum(resident.amount for resident in there
                if resident.project != request.project),
            self._interference(request, host, there) if measured else None)

    def _interference(self, request, host, there):
        return self._matrix.interference(
            request.wish.application,
            [self._application(host, resident.server)
             for resident in there for _ in range(resident.amount)])

    def _application(self, host, server):
        """What a server runs; empty if its flavor does not say."""
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


@functools.cache
def shared() -> Chooser:
    """The one of this process; made when the scheduler needs it first."""
    return Chooser()


def resource_classes(spec) -> list[str]:
    """Those of our GPUs that device profiles of a request ask for."""
    if 'requested_resources' not in spec:
        return []
    return sorted({
        resource_class for group in spec.requested_resources or ()
        if (group.requester_id or '').startswith(_PROFILE)
        for resource_class in group.resources
        if published.is_gpu(resource_class)})


def wish_of(spec) -> placement.Wish:
    """What the flavor of a request says.

    :raises InvalidValue: one of our extra specs is malformed.
    """
    flavor = spec.flavor
    return placement.wish(
        flavor.extra_specs if 'extra_specs' in flavor else {},
        flavor.name if 'name' in flavor else '')


def multiplier(host) -> float:
    """What the weight of a host is multiplied with; negative to spread."""
    return utils.get_weight_multiplier(
        host, 'gpu_weight_multiplier',
        CONF.gpu_weigher.gpu_weight_multiplier)


def policy_of(wish, host) -> placement.Placement:
    """How to choose on a host."""
    return wish.placement or (
        placement.Placement.SPREAD if multiplier(host) < 0
        else placement.Placement(CONF.gpu_weigher.placement))


def put_best_first(candidates, figures) -> float | None:
    """Put the best allocation candidate first, for Nova claims that one.

    Equal ones take turns at random: servers that are created at the same
    time see the same state, and only one of them gets the last slice.

    :returns: its figure; None if nothing is known of any.
    """
    known = [(figure, position) for position, figure in enumerate(figures)
             if figure is not None]
    if not known:
        return None
    if not CONF.gpu_weigher.order_candidates:
        return known[0][0]
    best = min(known, key=operator.itemgetter(0))[0]
    position = random.choice([position for figure, position in known
                              if figure == best])
    candidates.insert(0, candidates.pop(position))
    return best


def _is_strict(request, host, allocations):
    return (policy_of(request.wish, host).is_strict
            or _is_isolated(request, allocations))


def _is_isolated(request, allocations):
    """Whether the GPUs may have servers of one project only."""
    return any(traits.ISOLATED in offer.traits for offer, _amount
               in request.fleet.taken(allocations))


def _preference(request, candidate):
    found = set().union(*(
        offer.traits for offer, _amount
        in request.fleet.taken(candidate['allocations'])))
    return sum(weight for trait, weight in request.wish.preferences
               if trait in found)


def _matrix(path):
    if path is None:
        return None
    try:
        with open(path, encoding='utf-8') as file:
            return interference.parse(json.load(file))
    except (OSError, ValueError, exception.InvalidValue) as error:
        raise exception.InvalidConfiguration(
            group=weigher.GROUP.name, option='interference_file',
            value=path, reason=str(error)) from error


def _get(url, version):
    return report.report_client_singleton().get(url, version=version)
