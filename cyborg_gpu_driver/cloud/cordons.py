# SPDX-License-Identifier: Apache-2.0

"""Make and lift cordons of GPUs, and find who still has a part of one.

To cordon a GPU, an operator disables its device in Cyborg. Cyborg's API takes
no reason (cyborg/api/controllers/v2/devices.py), so a trait of the GPU's
providers records who disabled it, when and why. cyborg-agent closes the GPU
in its next report.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from collections.abc import Collection

from openstack import exceptions

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import fleet
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.partition import cordon

_ENABLED = 'enabled'
_UNBOUND = 'Initial'
_WRITES = 8
"""Attempts at one write; an attempt fails only if another write succeeded."""
_ROUND = 3.0
"""Seconds between two reads of Placement."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """A consumer that holds a part of one or several GPUs.

    :ivar consumer: UUID of a server, or of another owner of an allocation or
        an accelerator request.
    :ivar consents: whether its owner lets operators move it.
    """

    consumer: str
    name: str | None
    project: str | None
    status: str | None
    gpus: tuple[str, ...]
    handles: tuple[str, ...] = ()
    consents: bool = False


def find(cloud: connection.Cloud, host: str, gpu: str | None
         ) -> tuple[hosts.Gpu, ...]:
    """Return the GPUs of a host that a command is to change."""
    problems: list[str] = []
    _, found = hosts.find(cloud, host, gpu, problems.append)
    for one in found:
        if one.device is None:
            raise cloud.error('; '.join([
                f'Cyborg has no device for GPU {one.address} on host {host}',
                *problems]))
    return found


def close(cloud: connection.Cloud, gpu: hosts.Gpu, new: cordon.Cordon
          ) -> cordon.Cordons:
    """Cordon a GPU. A GPU that is disabled in Cyborg keeps its reason.

    The cordon of a move is replaced, because the end of the move lifts it.
    """
    known = cordon.of(gpu.cordons, cordon.Source.CYBORG)
    if known is not None and (known.who or known.reason) and (
            known.reason != cordon.FOR_A_MOVE):
        return gpu.cordons
    name = cordon.trait(new)
    cloud.change('placement', 'PUT', f'/traits/{name}')
    gone = set()
    for offer in gpu.offers:
        gone |= _set_trait(cloud, offer.uuid, name)
    _forget(cloud, gone)
    _act(cloud, gpu, 'disable', cyborg.DISABLED)
    return cordon.added(gpu.cordons, new)


def open_(cloud: connection.Cloud, gpu: hosts.Gpu) -> cordon.Cordons:
    """Enable the device of a GPU, and delete the reason why it was disabled.

    :returns: the cordons that remain on the host.
    """
    if gpu.device and not gpu.device.enabled:
        _act(cloud, gpu, 'enable', _ENABLED)
    traits = set()
    for offer in gpu.offers:
        traits |= _set_trait(cloud, offer.uuid)
    _forget(cloud, traits)
    return cordon.without(gpu.cordons, {cordon.Source.CYBORG})


def wait_closed(cloud: connection.Cloud, host: str,
                addresses: Collection[str], seconds: float,
                progress: Callable[[int], None] = lambda number: None,
                clock: Callable[[], float] = time.monotonic,
                sleep: Callable[[float], None] = time.sleep
                ) -> tuple[str, ...]:
    """Wait until Placement allocates nothing of some GPUs to new servers.

    :param progress: called with the number of open providers whenever it
        has changed.
    """
    end = clock() + seconds
    before = None
    while True:
        found = tuple(
            offer.name for offer
            in placement.read_providers(cloud, host, gpus=addresses)
            if offer.reserved < offer.total)
        left = end - clock()
        if not found or left <= 0:
            return found
        if len(found) != before:
            before = len(found)
            progress(before)
        sleep(min(_ROUND, left))


def holders(cloud: connection.Cloud, host: str, addresses: Collection[str]
            ) -> tuple[Holder, ...]:
    """Return the consumers that hold a part of some GPUs of a host."""
    offers = {offer.uuid: offer for offer in placement.read_providers(
        cloud, host, gpus=addresses)}
    gpus: dict[str, set[str]] = collections.defaultdict(set)
    handles: dict[str, list[str]] = collections.defaultdict(list)
    requests = cyborg.requests(cloud)
    for request in requests:
        offer = offers.get(request['device_rp_uuid'])
        if offer is None or request['state'] == _UNBOUND:
            continue
        holder = request['instance_uuid'] or request['uuid']
        gpus[holder].add(offer.gpu)
        if request['attach_handle_uuid']:
            handles[holder].append(request['attach_handle_uuid'])
    for offer in offers.values():
        if offer.used:
            for consumer in placement.allocations(cloud, offer.uuid):
                gpus[consumer].add(offer.gpu)
    return tuple(_holder(cloud, consumer, gpus[consumer], handles[consumer])
                 for consumer in sorted(gpus))


def _act(cloud, gpu, action, status):
    """Disable or enable a device.

    Cyborg changes the status first. Then it answers 500 if no deployable has
    the database ID of the device.
    """
    path = f'/devices/{gpu.device.uuid}'
    try:
        cloud.change('accelerator', 'POST', f'{path}/{action}',
                     version=cyborg.STATUS_VERSION)
    except exception.CloudError:
        answer = cloud.ask('accelerator', path, cyborg.STATUS_VERSION)
        if answer is None or answer['status'] != status:
            raise


def _forget(cloud, traits):
    """Delete traits, except those that a provider still has."""
    for name in sorted(traits):
        try:
            cloud.change('placement', 'DELETE', f'/traits/{name}')
        except exception.CloudError as error:
            # Another GPU that was cordoned at the same time still has it.
            if not isinstance(error.__cause__, (
                    exceptions.ConflictException,
                    exceptions.NotFoundException)):
                raise


def _set_trait(cloud, provider, name=None):
    """Replace a provider's cordon traits with one trait.

    :param name: of the new trait; None to only remove the cordon traits.
    """
    path = f'/resource_providers/{provider}/traits'
    for attempt in range(1, _WRITES + 1):
        answer = cloud.ask('placement', path)
        if answer is None:
            return set()
        present = set(answer['traits'])
        gone = {item for item in present
                if item.startswith(cordon.TRAIT) and item != name}
        wanted = present - gone | ({name} if name else set())
        if wanted == present:
            return gone
        body = {'traits': sorted(wanted), 'resource_provider_generation':
                answer['resource_provider_generation']}
        try:
            cloud.change('placement', 'PUT', path, body)
            return gone
        except exception.CloudError as error:
            if attempt == _WRITES or not isinstance(
                    error.__cause__, exceptions.ConflictException):
                raise
    return set()


def _holder(cloud, consumer, gpus, handles):
    """Return a holder, with its server's data from Nova if it is a server."""
    where = tuple(sorted(gpus)), tuple(sorted(handles))
    item = nova.existing_server(cloud, consumer)
    if item is None:
        return Holder(consumer, None, None, None, *where)
    return Holder(consumer, item.name, item.project_id, item.status, *where,
                  consents=fleet.consents(item))
