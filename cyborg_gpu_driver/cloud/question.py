# SPDX-License-Identifier: Apache-2.0

"""Read what the explanation of a request needs, and explain it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import explain
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import hosts as cloud_hosts
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.report.content import names

MOST = 50
"""The default number of hosts to examine: five times as many as a table shows.
"""


def answer(cloud: connection.Cloud, flavor: str | None = None,
           profile: str | None = None, server: str | None = None,
           host: str | None = None, most: int | None = MOST,
           progress: placement.Progress = lambda done, total: None
           ) -> explain.Verdict:
    """Read the state of the cloud and explain the request.

    The answer names what could not be read of the cloud. Placement and Cyborg
    are required.

    One of the first three is given; all are names or IDs.

    :param host: hypervisor_hostname of the only host to examine.
    :param most: how many hosts to examine, if no host is named; None for
        all. Those with candidates in Placement come first.
    """
    return _Reading(cloud, host, most, progress).judge(
        *_request(cloud, flavor, profile, server))


class _Reading:

    def __init__(self, cloud, host, most, progress):
        self._cloud = cloud
        self._host = host
        self._most = most
        self._progress = progress
        self._unchecked: list[str] = []

    def judge(self, server, wanted):
        cloud = self._cloud
        devices = self._try('devices', cyborg.devices, cloud)
        on_record = placement.Records(
            cyborg.deployables(cloud), tuple(cyborg.requests(cloud)))
        root = self._host and find_root(cloud, self._host)
        answered = candidates(cloud, wanted, root)
        options = dict(answered.options)
        roots, left_out = ([root], 0) if root else concerned(
            cloud, {device.hostname for device in devices or ()},
            answered, self._most)
        if answered.partial:
            for found in placement.at_once(
                    lambda one: candidates(cloud, wanted, one),
                    [one for one in roots if one not in options]):
                options.update(found.options)
        if left_out:
            self._unchecked.append(
                f'{left_out} more hosts; --all examines all hosts, --host one '
                'host')
        hosts = placement.read_trees(cloud, roots, wanted, on_record,
                                     self._progress)
        services = self._try('compute services', nova.services, cloud)
        known = facts.Facts(
            trees=hosts, devices=devices,
            deployables=on_record.deployables, arqs=on_record.arqs,
            unknown_traits=unknown_traits(cloud, wanted),
            classes=classes(cloud), services=services,
            servers=self._names(hosts), server=server,
            answer=facts.Answer(options, answered.refusal),
            whole=not root and not left_out)
        known = dataclasses.replace(known, unchecked=tuple(self._unchecked))
        return self._certain(wanted, known, explain.verdict(wanted, known))

    def _certain(self, wanted, known, found):
        """Examine the hosts again that seem to lack nothing.

        This time all inventories are read from Placement. Cyborg's record of
        a provider does not show if an operator has changed its inventory.
        """
        doubtful = {host.name for host in found.hosts
                    if not host.scheduled and not host.distance}
        if not doubtful:
            return found
        again = {tree.name: tree for tree in placement.read_trees(
            self._cloud, [tree.root.uuid for tree in known.trees
                          if tree.name in doubtful],
            wanted, placement.Records({}, known.arqs))}
        return explain.verdict(wanted, dataclasses.replace(
            known, trees=tuple(again.get(tree.name, tree)
                               for tree in known.trees)))

    def _names(self, hosts):
        """Return the names of the servers that have accelerators, by UUID."""
        consumers = {consumer for tree in hosts for node in tree.below
                     for consumer in node.holders}
        return self._try('names of servers', nova.known_servers, self._cloud,
                         consumers) or {}

    def _try(self, what: str, read: Callable[..., Any], *arguments: Any
             ) -> Any:
        """Return what a function reads; note it and return None if it fails.
        """
        return self._cloud.attempt(
            read, *arguments, complain=lambda error:
            self._unchecked.append(f'{what}: {error}'))


def _request(cloud, flavor, profile, server):
    """Return the named server, and the request for one with its flavor."""
    profiles = {item.name: list(map(dict, item.groups))
                for item in state.device_profiles(cloud)}
    found = asked = None
    if server is not None:
        found, asked = nova.server(cloud, server)
    elif flavor is not None:
        asked = nova.flavor(cloud, flavor)
    if asked is not None:
        profile, findings = request.profile_of(asked, profiles)
    else:
        findings = () if profile in profiles else (
            request.unknown_profile(profile, profiles),)
    made = request.make(asked, profile, profiles.get(profile or '', ()))
    return found, dataclasses.replace(
        made, findings=(*findings, *made.findings))


def candidates(cloud: connection.Cloud, wanted: request.Request,
               root: str | None = None) -> facts.Answer:
    """Ask Placement for candidates, as the Nova scheduler does."""
    if not any(group.resources for group in wanted.groups):
        return facts.Answer()
    query = wanted.query(root)
    try:
        found = cloud.ask('placement', '/allocation_candidates',
                          **query)
    except exception.CloudError as error:
        if isinstance(error.__cause__, exceptions.BadRequestException):
            return facts.Answer(refusal=_refusal(error.__cause__))
        raise
    options: dict[str, list[facts.Option]] = {}
    for item in found['allocation_requests']:
        # A candidate that also uses a sharing provider has two roots.
        for root_uuid in {
                found['provider_summaries'][uuid]['root_provider_uuid']
                for uuid in item['allocations']}:
            options.setdefault(root_uuid, []).append(
                frozenset(item['allocations']))
    return facts.Answer(options, partial=len(
        found['allocation_requests']) >= int(query['limit']))


def unknown_traits(cloud: connection.Cloud, wanted: request.Request
                   ) -> frozenset[str]:
    """Return the traits of a request that Placement does not know."""
    asked = frozenset().union(*(
        group.required | group.forbidden for group in wanted.groups))
    if not asked:
        return frozenset()
    found = cloud.ask('placement', '/traits',
                      name='in:' + ','.join(sorted(asked)))
    return asked - set(found['traits'])


def classes(cloud: connection.Cloud) -> frozenset[str]:
    """Return all resource classes that Placement knows."""
    found = cloud.ask('placement', '/resource_classes')
    return frozenset(item['name'] for item in found['resource_classes'])


def find_root(cloud: connection.Cloud, host: str) -> str:
    """Return the UUID of a compute node's provider."""
    for item in placement.listed(cloud, name=host):
        if item['parent_provider_uuid'] is None:
            return item['uuid']
    known = cloud_hosts.host_names(cloud)
    raise exception.InvalidValue(
        what='host', value=host,
        expected='expected the hypervisor_hostname of a compute node'
        + (request.similar(host, known)
           or f'; with GPUs: {", ".join(known) or "none"}'))


def concerned(cloud: connection.Cloud, more: Iterable[str],
              found: facts.Answer, most: int | None
              ) -> tuple[Sequence[str], int]:
    """Choose the compute nodes to read, those with candidates first.

    :param more: names of further compute nodes, which count even if Placement
        has no accelerators on them.
    """
    below = placement.of_cyborg(cloud)
    named = {place.host for items in below.values() for place in (
        names.parse_provider_name(item['name']) for item in items) if place}
    bare = sorted(set(more) - named)
    roots = {*below, *(item['uuid'] for name in bare[:most]
                       for item in placement.listed(cloud, name=name))}
    chosen = sorted(roots, key=lambda uuid: (
        uuid not in found.options, uuid))[:most]
    return chosen, max(0, len(below) + len(bare) - len(chosen))


def _refusal(error):
    """Placement's message, without the preamble of every error message."""
    try:
        told = error.response.json()['errors'][0]['detail']
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        told = str(error)
    return ' '.join(told.rpartition('\n\n')[2].split())
