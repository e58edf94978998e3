# SPDX-License-Identifier: Apache-2.0

"""The inventory that each provider of a GPU should have now. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.offer import offer
from cyborg_gpu_driver.partition.offer import offers as partition_offers
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import publishing
from cyborg_gpu_driver.report import reserved
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names


def inventories(offers: Iterable[partition_offers.Offer],
                owned: Mapping[str, int], hostname: str,
                withheld: bool = False, cordoned: bool = False
                ) -> tuple[reserved.Inventory, ...]:
    """The inventories of one GPU, with the ``reserved`` to write.

    Placement offers ``total - reserved - used``, where ``used`` counts the
    allocations of servers with handles bound through Cyborg. It must offer
    what can be created now. So everything that is neither bound nor
    creatable is reserved: placements that other profiles block, and
    instances that another tool created.

    A whole GPU excludes no other offer. It is reserved while processes of
    this machine use it, and while it is withheld.

    :param owned: how many of each profile are bound through Cyborg.
    :param withheld: whether Placement must not promise anything on this GPU
        now, even if the GPU has room.
    :param cordoned: whether the GPU gets no new server. Then everything is
        reserved, whatever is bound, as Cyborg itself does when a device is
        disabled: what a server releases must not be promised even for a
        moment.
    """
    return tuple(
        reserved.Inventory(
            provider=names.provider_uuid(
                names.provider_name(hostname, offer)),
            resource_class=names.resource_class(offer), total=offer.total,
            reserved=offer.total if cordoned else max(0, min(
                offer.total, offer.total - owned.get(offer.profile, 0)
                - (0 if withheld else offer.creatable))))
        for offer in offers if build.reportable(offer))


# Remember the last report, so that no provider is ever deleted.
#
# Cyborg deletes what a report leaves out, in use or not. So each report is
# compared with the last one. Facts that only NVML knows are kept while a
# server holds the GPU and NVML cannot see it.

_FACTS = tuple(field.name for field in
               dataclasses.fields(gpu_record.ReportedFacts))


def complete(gpu: model.Gpu, known: gpu_record.Reported | None) -> model.Gpu:
    """``gpu`` with the facts that NVML told when it last saw the GPU.

    Facts of another board in the same slot are not used.
    """
    if known is None or known.device_id != gpu.device_id or (
            gpu.uuid is not None and gpu.uuid != known.facts.uuid):
        return gpu
    return dataclasses.replace(gpu, **{
        name: getattr(known.facts, name) for name in _FACTS
        if getattr(gpu, name) is None})


def recalled(address: model.PciAddress, known: gpu_record.Reported
             ) -> model.Gpu:
    """A GPU that is gone or ignored, as far as it is remembered."""
    return model.Gpu(address, build.NVIDIA, known.device_id, '', **{
        name: getattr(known.facts, name) for name in _FACTS})


def untrusted(gpu: model.Gpu, known: gpu_record.Reported | None,
              library_missing: bool) -> str:
    """Why this reading of ``gpu`` is not reliable; empty if it is.

    :param library_missing: whether this machine has no NVML library.
    """
    if gpu.problems:
        return '; '.join(gpu.problems)
    if gpu.visible_to_nvml or gpu.driver != whole.NVIDIA:
        return ''
    if library_missing and (known is None or known.facts.uuid is None):
        return ''
    return 'the nvidia driver is bound, but NVML does not list the GPU'


def is_unread(state_path: str, host: model.Host, gpu: model.Gpu) -> bool:
    """Whether nothing can be bound on a GPU, because it cannot be read."""
    return bool(untrusted(
        gpu, store.of(state_path).peek(gpu.address).reported,
        host.library_missing))


def remember(gpu: model.Gpu, device: names.ReportedDevice,
             before: gpu_record.Reported | None = None,
             left: Iterable[str] = ()) -> gpu_record.Reported:
    """What to remember about a GPU and the device that is reported for it.

    :param device: what is reported, with what is withdrawn.
    :param left: UUIDs of providers in ``before`` that the GPU does not offer
        any more and that Placement still has. In the first report that
        withdraws one, the GPU keeps the mode in ``before``: a server may just
        have got it.
    """
    mode = _mode(device).value
    leftover = {uuid: before.providers[uuid] for uuid in left
                } if before else {}
    if before and not all(item.withdrawn for item in leftover.values()):
        mode = before.mode
    return gpu_record.Reported(
        device_id=gpu.device_id,
        mode=mode,
        facts=_facts(gpu),
        providers={**leftover, **{
            item.provider_uuid: item.offer for item in device.deployables}})


def never_reported(gpu: model.Gpu) -> gpu_record.Reported:
    """What to remember about a GPU before its first report.

    A server may have it through Cyborg's own driver, as a whole.
    """
    return gpu_record.Reported(
        gpu.device_id, policy.Mode.PASSTHROUGH.value, _facts(gpu), {})


def _facts(gpu: model.Gpu) -> gpu_record.ReportedFacts:
    return gpu_record.ReportedFacts(**{
        name: getattr(gpu, name) for name in _FACTS})


def _mode(device: names.ReportedDevice) -> policy.Mode:
    modes = {item.offer.mode for item in device.deployables
             if not item.offer.withdrawn}
    if len(modes) > 1:
        return policy.Mode.AUTO
    return modes.pop() if modes else policy.Mode.OFF


def withdrawn(known: gpu_record.Reported, device: names.ReportedDevice | None
              ) -> tuple[str, ...]:
    """Providers that the GPU does not offer or that get other handles.

    :param device: what the GPU offers; None for nothing.
    """
    now = {item.provider_uuid: item.offer
           for item in (device.deployables if device else ())}
    return tuple(sorted(
        uuid for uuid, before in known.providers.items()
        if now.get(uuid) != dataclasses.replace(before, withdrawn=False)))


def drained(before: gpu_record.Reported, dropped: Collection[str]
            ) -> list[reserved.Inventory]:
    """The inventories of providers of which nothing may be promised."""
    return [reserved.Inventory(uuid, names.resource_class(item), item.total,
                               item.total)
            for uuid, item in before.providers.items() if uuid in dropped]


# Find the GPUs that servers may have without a trace on this machine.

def of_reports(state_path: str, address: model.PciAddress) -> str:
    """Why a server may have a GPU, when Placement cannot be queried.

    A server that has the whole GPU has no claim.

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


def of_placement(tree: publishing.ProviderTree, hostname: str,
                 address: model.PciAddress) -> str:
    """Why servers may have a part of a GPU; empty if none has.

    A server that is shut off holds its GPU without a trace on the machine,
    but its allocation remains in Placement. If Placement does not answer,
    that is a reason too.
    """
    try:
        for uuid in _providers(tree, hostname, address):
            usages = tree.usages(uuid)
            if usages is None:
                return f'provider {uuid} has just been deleted'
            if any(usages.values()):
                return f'Placement has allocations of provider {uuid}'
    except Exception as error:
        return ('Placement does not return its allocations: '
                + exception.steady(error))
    return ''


def mixed(tree: publishing.ProviderTree, hostname: str,
          address: model.PciAddress, bound: int) -> str:
    """Why a GPU may have servers of several projects; empty if it has not.

    A server already has its allocation when its part of the GPU is bound.
    So if two servers are bound at the same time, at least one of the binds
    sees the other server. If Placement does not answer, that is a reason
    too.

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


def allocated(tree: publishing.ProviderTree, hostname: str,
              item: offer.Offer) -> dict[str, int] | None:
    """How many units of an offer each server has; one request.

    :returns: by provider and server; None if there is no such provider.
    :raises Exception: if Placement does not answer.
    """
    uuid = names.provider_uuid(names.provider_name(hostname, item))
    found = tree.get(f'/resource_providers/{uuid}/allocations')
    return None if found is None else {
        f'{uuid} {server}': sum(allocation['resources'].values())
        for server, allocation in found['allocations'].items()}


def _parts(tree: publishing.ProviderTree, providers: Iterable[str]
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


def _providers(tree: publishing.ProviderTree, hostname: str,
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
