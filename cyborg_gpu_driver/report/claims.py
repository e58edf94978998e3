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

"""Find the GPUs that servers may have without a trace on this machine."""

from __future__ import annotations

from collections.abc import Iterable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import provider_tree
from cyborg_gpu_driver.report.content import names


def of_reports(state_path: str, address: model.PciAddress) -> str:
    """Why a server may have a GPU, when Placement cannot be queried.

    A server that has the whole GPU has no entry in the journal of binds.

    :param state_path: ``[gpu] state_path``.
    :returns: empty if the GPU was not whole when it was last reported.
    """
    try:
        known = store.of(state_path).read(address).reported
    except exception.JournalError as error:
        return f'the last report of it is not known: {error}'
    if known is None or not known.is_whole:
        return ''
    return ('it was last reported as a whole GPU, and a server that is shut '
            'off may have it: only the agent, which can query Placement, '
            'prepares it')


def of_placement(tree: provider_tree.ProviderTree, hostname: str,
                 address: model.PciAddress) -> str:
    """Why servers may have a part of a GPU; empty if none has.

    A server that is shut off holds its GPU without a trace on the machine,
    but its allocation remains in Placement. If Placement does not answer,
    that is a reason too.

    :param tree: the providers of this host.
    :param hostname: name of the compute node's provider.
    """
    try:
        for uuid in _providers(tree, hostname, address):
            usages = tree.get(f'/resource_providers/{uuid}/usages')
            if usages is None:
                return f'provider {uuid} has just been deleted'
            if any(usages['usages'].values()):
                return f'Placement has allocations of provider {uuid}'
    except Exception as error:
        return ('Placement does not return its allocations: '
                + exception.steady(error))
    return ''


def mixed(tree: provider_tree.ProviderTree, hostname: str,
          address: model.PciAddress, bound: int) -> str:
    """Why a GPU may have servers of several projects; empty if it has not.

    A server already has its allocation when its part of the GPU is bound.
    So if two servers are bound at the same time, at least one of the binds
    sees the other server. If Placement does not answer, that is a reason
    too.

    :param tree: the providers of this host.
    :param hostname: name of the compute node's provider.
    :param bound: how many parts servers have, including the requested one.
        The projects of parts without an allocation are unknown.
    """
    try:
        parts, projects = _parts(tree, _providers(tree, hostname, address))
    except Exception as error:
        return ('Placement does not return the projects of its servers: '
                + exception.steady(error))
    if '' in projects or parts < bound:
        return ('it has servers whose projects are not known: Placement has '
                f'allocations of {parts} of its parts, and with this bind '
                f'{bound} are bound')
    if len(projects) > 1:
        return 'it has servers of projects ' + ' and '.join(sorted(projects))
    return ''


def allocated(tree: provider_tree.ProviderTree, hostname: str,
              item: offer.Offer) -> dict[str, int] | None:
    """How many units of an offer each server has; one request.

    :param hostname: name of the compute node's provider.
    :returns: by provider and server; None if there is no such provider.
    :raises Exception: if Placement does not answer.
    """
    uuid = names.provider_uuid(names.provider_name(hostname, item))
    found = tree.get(f'/resource_providers/{uuid}/allocations')
    return None if found is None else {
        f'{uuid} {server}': sum(allocation['resources'].values())
        for server, allocation in found['allocations'].items()}


def _parts(tree: provider_tree.ProviderTree, providers: Iterable[str]
           ) -> tuple[int, set[str]]:
    """How many parts of a GPU are allocated, and to which projects."""
    parts = 0
    servers: set[str] = set()
    for uuid in providers:
        found = tree.get(f'/resource_providers/{uuid}/allocations')
        for server, allocation in (found or {'allocations': {}}
                                   )['allocations'].items():
            parts += sum(allocation['resources'].values())
            servers.add(server)
    return parts, {(tree.get(f'/allocations/{server}') or {}
                    ).get('project_id') or '' for server in servers}


def _providers(tree: provider_tree.ProviderTree, hostname: str,
               address: model.PciAddress) -> list[str]:
    """UUIDs of the GPU's providers, of this or another policy."""
    found = tree.of_host(hostname)
    if not found:
        raise exception.InvalidValue(
            what='compute node', value=hostname,
            expected='Placement has no provider of that name; expected the '
            "node's hypervisor_hostname")
    return [provider['uuid'] for provider in found
            if f'_gpu_{address}_' in provider['name']]
