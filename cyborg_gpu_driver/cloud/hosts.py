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

"""The GPU hosts of a cloud, and whether Nova creates servers on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import os_traits

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import computes
from cyborg_gpu_driver.cloud import providers
from cyborg_gpu_driver.cloud import records
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.explain import facts
from cyborg_gpu_driver.partition import cordon


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU and the providers that offer it.

    :ivar mode: ``PASSTHROUGH``, ``VGPU``, ``MIG``; None if no trait has it.
        For a GPU with several roles, the role that servers use, or ``AUTO``
        if no server uses the GPU.
    :ivar numa: NUMA node, as text.
    :ivar conditions: its health conditions from its traits, such as
        ``XID_79``.
    :ivar device: the device in Cyborg; None if there is none, or if it is
        unknown.
    """

    address: str
    mode: str | None
    model: str | None
    numa: str | None
    conditions: tuple[str, ...]
    offers: tuple[providers.Provider, ...]
    device: facts.Device | None = None
    roles: tuple[str, ...] = ()
    """The modes that the GPU can have, if there are several."""

    @property
    def cordons(self) -> cordon.Cordons:
        """Why the GPU gets no new server, as far as the cloud knows."""
        return () if self.device is None else self.device.cordons(
            trait for offer in self.offers for trait in offer.traits)


@dataclasses.dataclass(frozen=True)
class Host:
    """A compute node with GPUs.

    :ivar name: as in the names of its providers.
    :ivar accelerators: whether Nova selects the host for servers that need
        accelerators (it has the trait COMPUTE_ACCELERATORS).
    :ivar enabled: whether its nova-compute is enabled (it does not have the
        trait COMPUTE_STATUS_DISABLED).
    :ivar service: None if it is unknown.
    :ivar devices: UUID and model of each device in Cyborg; None if unknown.
    """

    name: str
    root: str
    gpus: tuple[Gpu, ...]
    accelerators: bool
    enabled: bool
    service: facts.Service | None = None
    devices: tuple[str, ...] | None = None

    @property
    def usable(self) -> bool:
        """Whether Nova starts servers with accelerators on it."""
        return self.accelerators and self.enabled and (
            self.service is None or self.service.up)

    @property
    def providers(self) -> tuple[providers.Provider, ...]:
        """The providers of all its GPUs."""
        return tuple(offer for gpu in self.gpus for offer in gpu.offers)


def build(found: Iterable[providers.Provider], able: Mapping[str, str],
          disabled: Iterable[str],
          services: Mapping[str, facts.Service] | None,
          devices: Mapping[str, Sequence[facts.Device]] | None
          ) -> tuple[Host, ...]:
    """Build the hosts from the data of the services.

    :param found: the providers of this driver.
    :param able: names of the providers that have COMPUTE_ACCELERATORS, by
        UUID.
    :param disabled: UUIDs of the providers that have COMPUTE_STATUS_DISABLED.
    :param services: by host; None if unknown.
    :param devices: by host; None if unknown.
    """
    disabled = frozenset(disabled)
    hosts: dict[tuple[str, str], list[providers.Provider]] = {}
    for provider in found:
        hosts.setdefault((provider.host, provider.root), []).append(provider)
    found_hosts = []
    for (name, root), offers in sorted(hosts.items()):
        full = able.get(root, name)
        mine = () if devices is None else devices.get(full, ())
        found_hosts.append(Host(
            name, root, _gpus(offers, mine), root in able,
            root not in disabled,
            None if services is None else services.get(full),
            None if devices is None else tuple(
                f'{device.uuid} {device.model}' for device in mine)))
    return tuple(found_hosts)


def read(cloud: connection.Cloud, host: str | None = None,
         complain: Callable[[str], None] = lambda text: None,
         progress: Callable[[int, int], None] = lambda done, total: None
         ) -> tuple[Host, ...]:
    """Return the GPU hosts of a cloud.

    :param host: the only host to read; None for all.
    :param complain: called with the error if a request to Nova or Cyborg
        fails. The data of that service is unknown then.
    :param progress: as in :func:`providers.read`.
    :raises CloudError: if a request to Placement fails.
    """
    found = providers.read(cloud, host, progress)
    able = {item['uuid']: item['name'] for item
            in placement_api.listed(
                cloud, required=os_traits.COMPUTE_ACCELERATORS)}
    disabled = [item['uuid'] for item in placement_api.listed(
        cloud, required=os_traits.COMPUTE_STATUS_DISABLED)]
    return build(found, able, disabled,
                 _unless(computes.services_by_host, cloud, complain),
                 _unless(_devices, cloud, complain))


def names(cloud: connection.Cloud) -> tuple[str, ...]:
    """Return the names of the GPU hosts, as their agents name them.

    :raises CloudError: if a request to Placement fails.
    """
    return tuple(sorted({place.host for _, place in providers.ours(cloud)}))


def _unless(ask, cloud, complain):
    """Return the data of a service; None if the request fails."""
    try:
        return ask(cloud)
    except exception.CloudError as error:
        complain(str(error))
        return None


def _devices(cloud) -> Mapping[str, list[facts.Device]]:
    cloud.check_admin()
    found: dict[str, list[facts.Device]] = {}
    for device in records.devices(cloud):
        found.setdefault(device.host, []).append(device)
    return found


def _gpus(offers, devices):
    by_address = {device.gpu: device for device in devices}
    gpus: dict[str, list[providers.Provider]] = {}
    for offer in offers:
        gpus.setdefault(offer.gpu, []).append(offer)
    return tuple(
        Gpu(address, _mode(of_gpu), _fact(of_gpu, 'MODEL'),
            _fact(of_gpu, 'NUMA'),
            tuple(sorted({reason for offer in of_gpu
                          for reason in offer.conditions})), tuple(of_gpu),
            by_address.get(address), _roles(of_gpu))
        for address, of_gpu in sorted(gpus.items()))


def _roles(offers):
    kinds = {offer.fact('KIND') for offer in offers} - {None}
    return tuple(sorted(kinds)) if len(kinds) > 1 else ()


def _mode(offers):
    if not _roles(offers):
        return _fact(offers, 'KIND')
    return _fact([offer for offer in offers if offer.used], 'KIND') or 'AUTO'


def _fact(offers, kind):
    return next((fact for fact in (offer.fact(kind) for offer in offers)
                 if fact is not None), None)
