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
"""Read the state of a cloud and explain a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import candidates
from cyborg_gpu_driver.cloud import computes
from cyborg_gpu_driver.cloud import records
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cloud import trees
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.explain import explain
from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.cloud.explain import reasons
from cyborg_gpu_driver.cloud.explain import request

MOST = 50
"""The default number of hosts to examine: five times as many as a table shows.
"""


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, by names or IDs: one of the first three, and options.

    :ivar host: hypervisor_hostname of the only host to examine.
    :ivar project: the project whose limits and permissions apply.
    """

    flavor: str | None = None
    profile: str | None = None
    server: str | None = None
    host: str | None = None
    project: str | None = None


def answer(cloud: connection.Cloud, asked: Question,
           most: int | None = MOST,
           progress: placement_api.Progress = lambda done, total: None
           ) -> explain.Verdict:
    """Read the state of the cloud and explain the request.

    The answer names what could not be read of the cloud. Placement and Cyborg
    are required.

    :param most: how many hosts to examine, if no host is named; None for
        all. Those that are closest to a fit are chosen.
    :param progress: called with the number of finished hosts and of all hosts.
    :raises CloudError: if Placement, Cyborg or a named object cannot be read.
    :raises InvalidValue: if a named object does not exist.
    """
    return _Reading(cloud, asked, most, progress).judge()


class _Reading:

    def __init__(self, cloud, asked, most, progress):
        self._cloud = cloud
        self._asked = asked
        self._most = most
        self._progress = progress
        self._unchecked: list[str] = []

    def judge(self):
        cloud = self._cloud
        server, wanted = self._request()
        devices = self._try('devices', records.devices, cloud)
        on_record = trees.Records(
            records.deployables(cloud), records.arqs(cloud))
        root = self._asked.host and candidates.root(cloud, self._asked.host)
        answered = candidates.answer(cloud, wanted, root)
        roots, left_out = ([root], 0) if root else candidates.concerned(
            cloud, wanted, {device.host for device in devices or ()},
            answered, self._most)
        if left_out:
            self._unchecked.append(
                f'{left_out} more hosts, which according to Placement are no '
                'closer to a fit than the others; --all examines all hosts, '
                '--host one host')
        hosts = trees.read(cloud, roots, wanted, on_record, self._progress)
        owner = self._owner(server)
        services = self._try('compute services', computes.services, cloud)
        known = facts.Facts(
            trees=hosts, devices=devices,
            deployables=on_record.deployables, arqs=on_record.arqs,
            unknown_traits=candidates.unknown_traits(cloud, wanted),
            classes=candidates.classes(cloud), services=services,
            aggregates=self._try('aggregates', computes.aggregates, cloud),
            servers=self._names(hosts, services or {}), project=owner,
            server=server, limits=self._limits(owner, wanted),
            answer=answered, whole=not root and not left_out)
        known = dataclasses.replace(known, unchecked=tuple(self._unchecked))
        return self._certain(wanted, known, explain.verdict(wanted, known))

    def _certain(self, wanted, known, found):
        """Examine the hosts again on which Placement disagrees.

        This time all inventories are read from Placement. Cyborg's record of
        a provider does not show if an operator has changed its inventory.
        """
        doubtful = {host.name for host in found.hosts if any(
            item.reason is reasons.Reason.DISAGREES
            for item in host.findings)}
        if not doubtful:
            return found
        again = {tree.name: tree for tree in trees.read(
            self._cloud, [tree.root.uuid for tree in known.trees
                          if tree.name in doubtful],
            wanted, trees.Records({}, known.arqs))}
        return explain.verdict(wanted, dataclasses.replace(
            known, trees=tuple(again.get(tree.name, tree)
                               for tree in known.trees)))

    def _request(self):
        asked, cloud = self._asked, self._cloud
        profiles = records.profiles(cloud)
        server = flavor = None
        if asked.server is not None:
            server, flavor = computes.server(cloud, asked.server)
        elif asked.flavor is not None:
            flavor = computes.flavor(cloud, asked.flavor)
        if flavor is not None:
            name, findings = request.profile_of(flavor, profiles)
        else:
            name = asked.profile
            findings = () if name in profiles else (
                request.unknown_profile(name, profiles),)
        made = request.make(flavor, name, profiles.get(name or '', ()))
        return server, dataclasses.replace(
            made, findings=(*findings, *made.findings))

    def _owner(self, server):
        if self._asked.project is not None:
            return state.project(self._cloud, self._asked.project)
        if server is not None:
            return server.project
        self._unchecked.append(
            'limits, access to the flavor and isolation of projects, because '
            'no project was given')
        return None

    def _limits(self, owner, wanted):
        if owner is None:
            return ()
        return (
            *(self._try('quotas', computes.quotas, self._cloud, owner,
                        wanted) or ()),
            *(self._try('unified limits', computes.unified_limits,
                        self._cloud, owner, wanted) or ()))

    def _names(self, hosts, services):
        """Return the names of the servers that have accelerators, by UUID."""
        consumers = {consumer for tree in hosts for node in tree.below
                     for consumer in node.holders}
        found = self._try(
            'names of servers', computes.known_servers, self._cloud,
            consumers, {services[tree.root.uuid].host for tree in hosts
                        if tree.root.uuid in services
                        and any(node.holders for node in tree.below)}) or {}
        return {uuid: server.name for uuid, server in found.items()}

    def _try(self, what: str, read: Callable[..., Any], *arguments: Any
             ) -> Any:
        """Return what a function reads; note it and return None if it fails.
        """
        try:
            return read(*arguments)
        except exception.CloudError as error:
            self._unchecked.append(f'{what}: {error}')
            return None
