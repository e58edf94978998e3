# SPDX-License-Identifier: Apache-2.0

"""Read devices, device profiles and accelerator requests (ARQs) from Cyborg.

``openstack accelerator device disable`` gives the device the status
``maintaining`` and reserves all of one inventory in Placement. Cyborg chooses
the inventory of the deployable whose database ID equals that of the device
(cyborg/api/controllers/v2/devices.py, the same in Cyborg 16 and 17). That
deployable may belong to another device. So only the status identifies the
disabled device, and only Cyborg's API shows the status: the conductor has no
call for it.

A host is a compute node as Cyborg names it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from openstack import resource
from openstack.accelerator.v2 import accelerator_request
from openstack.accelerator.v2 import deployable
from openstack.accelerator.v2 import device
from oslo_config import cfg
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import reconcile

LOG = logging.getLogger(__name__)

STATUS_VERSION = '2.3'
"""The first microversion that shows whether a device is enabled."""
DISABLED = 'maintaining'
_BOUND = 'Bound'
_INITIAL = 'Initial'
_MDEV = 'MDEV'


class Device(device.Device):
    """A device, with its status."""

    _query_mapping = resource.QueryParameters(
        'hostname', include_pagination_defaults=False)
    status = resource.Body('status')

    @property
    def enabled(self) -> bool:
        """Whether operators let it have new servers."""
        return self.status != DISABLED

    @property
    def gpu(self) -> str:
        """PCI address of the GPU; empty for a device of another driver."""
        try:
            return str(model.PciAddress.parse(
                json.loads(self.std_board_info)['address']))
        except (KeyError, TypeError, ValueError, exception.GpuDriverError):
            return ''

    def cordons(self, traits: Iterable[str] = ()) -> cordon.Cordons:
        """Return the reasons why the GPU gets no new server.

        :param traits: of its providers.
        """
        try:
            # As the agent has reported them.
            told = cordon.of_json(
                json.loads(self.vendor_board_info)['cordons'])
        except (KeyError, TypeError, ValueError, OverflowError, OSError):
            told = ()
        return cordon.current(told, self.enabled, traits)


class Deployable(deployable.Deployable):
    """A deployable, with the UUID of its provider in Placement."""

    rp_uuid = resource.Body('rp_uuid')


class AcceleratorRequest(accelerator_request.AcceleratorRequest):
    """An accelerator request, with the UUID of its attach handle."""

    _query_mapping = resource.QueryParameters(
        instance_uuid='instance', include_pagination_defaults=False)
    attach_handle_uuid = resource.Body('attach_handle_uuid')

    @property
    def function(self) -> str | None:
        """PCI address of the function that carries the handle: the GPU or a
        virtual function of it; None if the request is not bound.
        """
        info = self.attach_handle_info
        return str(_function(info)) if info else None

    @property
    def handle(self) -> str | None:
        """What the server gets: an mdev's UUID, or the address of a PCI
        function; None if the request is not bound.
        """
        return (self.attach_handle_uuid if self.attach_handle_type == _MDEV
                else self.function)

    @property
    def holds(self) -> bool:
        """Whether it may have an attach handle."""
        return self.state != _INITIAL and self.device_rp_uuid is not None


class Watch:
    """Asks a cloud about one host repeatedly.

    :param problem: logged once for each reason why the answer is unknown.
    """

    def __init__(self, connect: Callable[[], connection.Cloud],
                 ask: Callable[[connection.Cloud], Any], problem: str):
        self.connect = functools.cache(connect)
        self._ask = ask
        self._problem = problem
        self._said = log_once.LogOnce()

    def read(self) -> Any:
        """Return the answer; None if it is unknown."""
        try:
            cloud = self.connect()
            with cloud.errors():
                found = self._ask(cloud)
        except Exception as error:
            # The report of the GPUs must not depend on this request.
            reason = exception.steady(error)
            if self._said.is_new(reason):
                LOG.warning(self._problem, reason)
            return None
        self._said.over()
        return found


class DisabledWatch(Watch):
    """Reads which GPUs of one host are disabled.

    :param conf: with the user of ``[gpu_cloud]``. Without one, the watch asks
        Cyborg as the user that ``[placement]`` names.
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str):
        super().__init__(
            lambda: connection.Cloud.of_section(
                conf, gpu_conf.CLOUD if gpu_conf.has_cloud_user(conf)
                else 'placement'),
            lambda cloud: disabled(cloud, host),
            'Cannot read from Cyborg which devices are disabled: %s. The last '
            'known answer stays in effect. The user of [gpu_cloud], or of '
            '[placement] if that is unset, needs the role admin.')


class RequestWatch(Watch):
    """Reads what the accelerator requests hold on one host.

    :param conf: with ``[gpu_cloud]``. Without a user, nothing is read.
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str):
        super().__init__(
            functools.partial(connection.Cloud.of_section, conf,
                              gpu_conf.CLOUD),
            self._claims, 'Cannot read the accelerator requests: %s')
        self._conf = conf
        self._host = host
        self._is_first = True

    def _claims(self, cloud: connection.Cloud) -> reconcile.Requests | None:
        is_first, self._is_first = self._is_first, False
        if is_first and not _has_device(cloud, self._host):
            # Cyborg creates the devices of a new host after its first report.
            return None
        return read_claims(cloud, self._host)

    def read(self) -> reconcile.Requests | None:
        return (super().read() if gpu_conf.has_cloud_user(self._conf)
                else None)


def disabled(cloud: connection.Cloud, host: str
             ) -> frozenset[model.PciAddress]:
    """Return the GPUs of a host that are disabled in Cyborg."""
    found = set()
    for one in Device.list(cloud.sdk.accelerator, hostname=host,
                           microversion=STATUS_VERSION):
        if one.status is None:
            raise cloud.error(f'Cyborg shows no status of device {one.uuid}')
        if one.status == DISABLED and one.hostname == host:
            found.add(one.gpu)
    return frozenset(map(model.PciAddress.parse, found - {''}))


def requests_by_vgpu(cloud: connection.Cloud, host: str
                     ) -> dict[str, AcceleratorRequest]:
    """Return a cloud's accelerator requests by the vGPU that each may hold.

    Cyborg returns all of them on one page.

    :raises CloudError: if they cannot be read, or if the cloud has no device
        on the host: then the host belongs to another cloud, or has another
        name in this one.
    """
    with cloud.errors():
        return by_vgpu(_of_host(cloud, host), host)


def read_claims(cloud: connection.Cloud, host: str) -> reconcile.Requests:
    """Return what a cloud's accelerator requests hold on a host."""
    with cloud.errors():
        return claims(_of_host(cloud, host), host)


def claims(requests: Iterable[Mapping[str, Any]], host: str
           ) -> reconcile.Requests:
    """Return what accelerator requests hold on a host.

    If a request is neither bound nor new, Cyborg does not show its attach
    handle. If its unbind has failed, Cyborg does not show its host either.
    """
    bound, unsettled = [], []
    for request in requests:
        if request['state'] == _INITIAL:
            continue
        if request['state'] != _BOUND:
            if request['hostname'] in (host, None):
                unsettled.append(request['uuid'])
        elif (request['hostname'] == host
              and request['attach_handle_type'] == _MDEV):
            info = request['attach_handle_info']
            bound.append(reconcile.Request(
                request['attach_handle_uuid'].lower(), request['uuid'],
                request['instance_uuid'], _function(info),
                info['asked_type']))
    return reconcile.Requests(tuple(bound), tuple(unsettled))


def _of_host(cloud: connection.Cloud, host: str
             ) -> list[AcceleratorRequest]:
    cloud.check_admin()
    if not _has_device(cloud, host):
        raise cloud.error(f'Cyborg has no device on host {host}; give the '
                          'host name that Cyborg uses')
    return requests(cloud)


def _has_device(cloud: connection.Cloud, host: str) -> bool:
    return any(True for _ in Device.list(cloud.sdk.accelerator,
                                         hostname=host))


def _function(info: Mapping[str, str]) -> model.PciAddress:
    return model.PciAddress.parse(
        '{domain}:{bus}:{device}.{function}'.format(**info))


def by_vgpu(requests: Iterable[AcceleratorRequest], host: str
            ) -> dict[str, AcceleratorRequest]:
    """Return the requests by vGPU name: mdev UUID or PCI address of a VF.

    Nova creates the mdev of an attach handle with the handle's UUID. A PCI
    address is valid only on its own host, and names a vGPU only where the
    vGPU of the handle has no UUID.
    """
    found = {}
    for request in requests:
        handle = request['attach_handle_uuid']
        if handle is None:
            continue
        found[handle.lower()] = request
        if request['hostname'] == host:
            found[str(_function(request['attach_handle_info']))] = request
    return found


def devices(cloud: connection.Cloud) -> tuple[Device, ...]:
    """Return the devices of all hosts."""
    return tuple(Device.list(cloud.sdk.accelerator,
                             microversion=STATUS_VERSION))


def deployables(cloud: connection.Cloud) -> dict[str, int]:
    """Return the number of attach handles by UUID of the provider."""
    cloud.check_admin()
    return {item.rp_uuid: int(item.num_accelerators)
            for item in Deployable.list(cloud.sdk.accelerator)}


def requests(cloud: connection.Cloud, **query: str
             ) -> list[AcceleratorRequest]:
    """Return the accelerator requests of all projects, or of one server.

    Cyborg silently restricts the list of a user who is not an administrator
    to the user's project. This function refuses such a list.

    :raises CloudError: if the user is not an administrator, or a request has
        no UUID or no state.
    """
    if not query:
        cloud.check_admin()
    found = list(AcceleratorRequest.list(cloud.sdk.accelerator, **query))
    if not all(one.uuid and one.state for one in found):
        raise cloud.error('Cyborg lists an accelerator request without a UUID '
                          'or without a state')
    return found
