# SPDX-License-Identifier: Apache-2.0

"""The GPU hosts of a cloud, and what they offer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

import os_traits

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.cloud import placement
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.report.content import names


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU and the providers that offer it.

    :ivar device: the device in Cyborg; None if there is none, or if it is
        unknown.
    """

    address: str
    offers: tuple[facts.Node, ...]
    device: cyborg.Device | None = None

    def _fact(self, kind: str) -> str | None:
        return next((fact for fact in (
            offer.fact(kind) for offer in self.offers) if fact), None)

    @property
    def model(self) -> str | None:
        """As in the trait; None if no trait has it."""
        return self._fact('MODEL')

    @property
    def numa(self) -> int | None:
        """The NUMA node."""
        return self.offers[0].numa_node

    @property
    def roles(self) -> tuple[str, ...]:
        """The modes that the GPU can have, if there are several."""
        kinds = {offer.fact('KIND') for offer in self.offers} - {None}
        return tuple(sorted(filter(None, kinds))) if len(kinds) > 1 else ()

    @property
    def mode(self) -> str | None:
        """``PASSTHROUGH``, ``VGPU``, ``MIG``; None if no trait has it.

        For a GPU with several roles, the role that servers use, or ``AUTO``
        if no server uses the GPU.
        """
        if not self.roles:
            return self._fact('KIND')
        return next((offer.fact('KIND') for offer in self.offers
                     if offer.used), 'AUTO')

    @property
    def conditions(self) -> tuple[str, ...]:
        """The health conditions from its traits, such as ``XID_79``."""
        return tuple(sorted({reason for offer in self.offers
                             for reason in offer.conditions}))

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
    """

    name: str
    root: str
    gpus: tuple[Gpu, ...]
    accelerators: bool
    enabled: bool
    service: facts.Service | None = None

    @property
    def usable(self) -> bool:
        """Whether Nova starts servers with accelerators on it."""
        return self.accelerators and self.enabled and (
            self.service is None or self.service.up)

    @property
    def providers(self) -> tuple[facts.Node, ...]:
        """The providers of all its GPUs."""
        return tuple(offer for gpu in self.gpus for offer in gpu.offers)


def build(found: Iterable[facts.Node], able: Mapping[str, str],
          disabled: Collection[str], services: Mapping[str, facts.Service],
          devices: Mapping[tuple[str, str], cyborg.Device]
          ) -> tuple[Host, ...]:
    """Build the hosts from the data of the services.

    :param devices: by host and PCI address.
    """
    hosts: dict[tuple[str, str], dict[str, list[facts.Node]]] = {}
    for node in found:
        hosts.setdefault((node.host, node.root), {}).setdefault(
            node.gpu, []).append(node)
    return tuple(
        Host(name, root, tuple(
            Gpu(address, tuple(offers), devices.get(
                (able.get(root, name), address)))
            for address, offers in sorted(gpus.items())),
            root in able, root not in disabled,
            services.get(able.get(root, name)))
        for (name, root), gpus in sorted(hosts.items()))


def read(cloud: connection.Cloud, host: str | None = None,
         complain: Callable[[str], None] = lambda text: None,
         progress: Callable[[int, int], None] = lambda done, total: None
         ) -> tuple[Host, ...]:
    """Return the GPU hosts of a cloud.

    :param host: the only host to read; None for all.
    :param complain: called if Nova or Cyborg, whose data is unknown then,
        does not answer.
    """
    found = placement.read_providers(cloud, host, progress)
    able = {item['uuid']: item['name'] for item
            in placement.listed(
                cloud, required=os_traits.COMPUTE_ACCELERATORS)}
    disabled = [item['uuid'] for item in placement.listed(
        cloud, required=os_traits.COMPUTE_STATUS_DISABLED)]
    return build(found, able, disabled,
                 cloud.attempt(nova.services_by_host, cloud,
                               complain=complain) or {},
                 cloud.attempt(_devices, cloud, complain=complain) or {})


def find(cloud: connection.Cloud, host: str, gpu: str | None,
         complain: Callable[[str], None] = lambda text: None
         ) -> tuple[Host, tuple[Gpu, ...]]:
    """Return a host, and one of its GPUs or all.

    :param gpu: PCI address, with or without the domain; None for all GPUs.
    :raises InvalidValue: if ``gpu`` is not a PCI address.
    """
    wanted = None if gpu is None else str(model.PciAddress.parse(
        gpu if gpu.count(':') > 1 else f'0000:{gpu}'))
    for one in read(cloud, host, complain):
        found = tuple(item for item in one.gpus
                      if wanted in (None, item.address))
        if found:
            return one, found
    raise cloud.error(
        f'Placement has no GPU {f"{wanted} " if wanted else ""}on host '
        f'{host}; "openstack gpu list" shows all')


def host_names(cloud: connection.Cloud) -> tuple[str, ...]:
    """Return the names of the GPU hosts, as their agents name them."""
    return tuple(sorted({place.host for _, place
                         in placement.gpu_providers(cloud)}))


def _devices(cloud: connection.Cloud
             ) -> Mapping[tuple[str, str], cyborg.Device]:
    cloud.check_admin()
    return {(device.hostname, device.gpu): device
            for device in cyborg.devices(cloud)}


def catalogue(found: Iterable[facts.Node]) -> dict[str, list[facts.Node]]:
    """Return the providers by the profile that they offer, in its order.

    A provider without an inventory offers nothing. A group of GPUs has the
    name of its model, as in ``nvlink-2_H100_NVL``.
    """
    profiles: dict[str, list[facts.Node]] = {}
    for node in found:
        if node.resource_class is not None:
            label = node.label
            if vgpu_name.group_size(label):
                # Each model has its own class.
                label += node.resource_class.removeprefix(
                    names.custom(names.VENDOR, label))
            profiles.setdefault(label, []).append(node)
    return dict(sorted(profiles.items()))
