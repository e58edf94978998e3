# SPDX-License-Identifier: Apache-2.0


"""Nova's part, through the public APIs only.

The requests and their order are those of nova-compute, nova-scheduler and
nova-conductor for a server whose flavor names a device profile.
"""

from __future__ import annotations

import dataclasses
import http
import uuid

from demo_lib import client
from demo_lib import compute_events

_ROOT_INVENTORIES = {
    'VCPU': {'total': 64, 'max_unit': 64, 'allocation_ratio': 4.0},
    'MEMORY_MB': {'total': 524288, 'max_unit': 524288, 'reserved': 512},
}
_SERVER = {'VCPU': 1, 'MEMORY_MB': 512}


class NoCandidates(Exception):
    """Placement has no host for the request (Nova's NoValidHost)."""


class BindFailed(Exception):
    """Cyborg could not bind; the message has its answer."""


@dataclasses.dataclass(frozen=True)
class Server:
    """A server with its accelerators."""

    uuid: str
    device_profile: str
    arqs: tuple[dict, ...]
    """The bound ARQs as Cyborg shows them, with attach handles."""
    providers: tuple[str, ...]
    """UUIDs of the accelerators' providers, in the order of ``arqs``."""


class NovaPart:
    """Creates and deletes servers that need accelerators.

    :param host: name of the one compute node.
    """

    def __init__(self, placement: client.Placement, cyborg: client.Cyborg,
                 events: compute_events.ComputeEvents, host: str):
        self.placement = placement
        self.cyborg = cyborg
        self.events = events
        self.host = host

    def create_compute_node(self) -> str:
        """Create the root provider, as nova-compute does when it starts.

        An existing provider does not change.

        :returns: the provider's UUID.
        """
        root = str(uuid.uuid5(uuid.NAMESPACE_DNS, self.host))
        if self.host in self.placement.providers():
            return root
        self.placement.post('/resource_providers',
                            {'name': self.host, 'uuid': root})
        self.placement.put(f'/resource_providers/{root}/inventories', {
            'resource_provider_generation': 0,
            'inventories': _ROOT_INVENTORIES})
        self.placement.put(f'/resource_providers/{root}/traits', {
            'resource_provider_generation': 1,
            'traits': ['COMPUTE_ACCELERATORS', 'COMPUTE_NODE']})
        return root

    def candidates(self, device_profile: str) -> list[dict]:
        """Return Placement's allocation candidates for a server."""
        query = {
            'resources': ','.join(f'{name}:{amount}' for name, amount
                                  in _SERVER.items()),
            'root_required': 'COMPUTE_ACCELERATORS',
            'group_policy': 'none', 'limit': '1000'}
        groups = self.cyborg.device_profile(device_profile)['groups']
        for index, group in enumerate(groups):
            query.update(_granular(f'_device_profile_{index}', group))
        return self.placement.get(
            '/allocation_candidates', **query)['allocation_requests']

    def place(self, server: str, device_profile: str) -> dict:
        """Claim the first candidate for a server, as nova-scheduler does.

        :returns: the candidate.
        :raises NoCandidates: if Placement has no host.
        """
        candidates = self.candidates(device_profile)
        if not candidates:
            raise NoCandidates(device_profile)
        try:
            self.claim(server, candidates[0])
        except client.ApiError as error:
            if error.status != http.HTTPStatus.CONFLICT:
                raise
            # Another server took it, or the agent reserved it, meanwhile.
            raise NoCandidates(device_profile) from error
        return candidates[0]

    def claim(self, server: str, candidate: dict) -> None:
        """Claim a candidate's resources for a server."""
        self.placement.put(f'/allocations/{server}', {
            'allocations': candidate['allocations'],
            'mappings': candidate['mappings'],
            'project_id': client.PROJECT, 'user_id': client.USER,
            'consumer_generation': None, 'consumer_type': 'INSTANCE'})

    def request_arqs(self, server: str, device_profile: str,
                     candidate: dict) -> dict[str, dict[str, str]]:
        """Create ARQs and return how to bind each of them.

        :returns: the bindings for :meth:`client.Cyborg.bind`.
        """
        mappings = candidate['mappings']
        return {
            arq['uuid']: {
                'hostname': self.host, 'instance_uuid': server,
                'device_rp_uuid': mappings['_device_profile_%d' % arq[
                    'device_profile_group_id']][0]}
            for arq in self.cyborg.create_arqs(device_profile)}

    def create_server(self, device_profile: str, timeout: float = 30.0,
                      server: str | None = None) -> Server:
        """Boot a server: candidates, claim, ARQs, bind, wait.

        :param timeout: seconds for the bind.
        :param server: UUID of a server to unshelve; None for a new server.
        :raises NoCandidates: if Placement has no host.
        :raises BindFailed: if Cyborg cannot bind; nothing is left behind.
        """
        server = server or str(uuid.uuid4())
        candidate = self.place(server, device_profile)
        bindings = self.request_arqs(server, device_profile, candidate)
        try:
            self._bind(server, bindings, timeout)
        except (BindFailed, client.ApiError) as error:
            self.delete_server(server, list(bindings))
            raise BindFailed(str(error)) from error
        arqs = tuple(self.cyborg.arq(arq) for arq in bindings)
        return Server(server, device_profile, arqs, tuple(
            fields['device_rp_uuid'] for fields in bindings.values()))

    def delete_server(self, server: str, arqs: list[str] | None = None
                      ) -> None:
        """Unbind and delete ARQs, then delete the server's allocations.

        :param arqs: ARQs that may not have been bound to the server.
        """
        self.cyborg.delete_arqs(instance=server)
        left = {arq['uuid'] for arq in self.cyborg.arqs()}
        unbound = [uuid for uuid in arqs or () if uuid in left]
        if unbound:
            self.cyborg.delete_arqs(uuids=unbound)
        self.placement.delete(f'/allocations/{server}')

    def _bind(self, server, bindings, timeout):
        self.cyborg.bind(bindings)
        if not self.events.wait_for(server, len(bindings), timeout):
            raise BindFailed(
                f'no accelerator-request-bound event in {timeout} s')
        failed = [event['tag'] for event in self.events.events
                  if event['server_uuid'] == server
                  and event['status'] != 'completed']
        if failed:
            raise BindFailed(f'accelerator requests {failed} failed')


def _granular(suffix, group):
    resources = [f'{_after(key)}:{value}' for key, value in group.items()
                 if key.startswith('resources:')]
    traits = [('!' if value == 'forbidden' else '') + _after(key)
              for key, value in group.items() if key.startswith('trait:')]
    query = {'resources' + suffix: ','.join(resources)}
    if traits:
        query['required' + suffix] = ','.join(traits)
    return query


def _after(key):
    return key.partition(':')[2]
