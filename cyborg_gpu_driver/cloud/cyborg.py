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

"""Read devices, device profiles and accelerator requests (ARQs) from Cyborg.

``openstack accelerator device disable`` gives the device the status
``maintaining`` and reserves all of one inventory in Placement. Cyborg chooses
the inventory of the deployable whose database ID equals that of the device
(cyborg/api/controllers/v2/devices.py, the same in Cyborg 16 and 17). That
deployable may belong to another device. So only the status identifies the
disabled device, and only Cyborg's API shows the status: the conductor has no
call for it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import reconcile

LOG = logging.getLogger(__name__)

STATUS_VERSION = '2.3'
"""The first microversion that shows whether a device is enabled."""
DISABLED = 'maintaining'
_SECTION = 'placement'
_ACCELERATOR = 'accelerator'
_BOUND = 'Bound'
_INITIAL = 'Initial'
_MDEV = 'MDEV'


class DisabledWatch:
    """Reads repeatedly which GPUs of one host are disabled.

    :param conf: with ``[gpu] os_cloud``, the cloud to ask. If it is unset, the
        watch asks Cyborg as the user that ``[placement]`` names.
    :param host: the compute node as Cyborg names it.
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str):
        self._conf = conf
        self._host = host
        self._cloud: connection.Cloud | None = None
        self._said = log_once.LogOnce()

    def read(self) -> frozenset[model.PciAddress] | None:
        """Return the GPUs that are disabled now.

        :returns: None if that is unknown. Each reason is logged once.
        """
        try:
            if self._cloud is None:
                self._cloud = _connect(self._conf)
            found = disabled(self._cloud, self._host)
        except Exception as error:
            # The report of the GPUs must not depend on this request.
            reason = exception.steady(error)
            if self._said.is_new(reason):
                LOG.warning(
                    'Cannot read from Cyborg which devices are disabled: %s. '
                    'The last known answer stays in effect. The user of [gpu] '
                    'os_cloud, or of [placement] if os_cloud is unset, needs '
                    'the role admin.', reason)
            return None
        self._said.over()
        return found


def disabled(cloud: connection.Cloud, host: str
             ) -> frozenset[model.PciAddress]:
    """Return the GPUs of a host that are disabled in Cyborg.

    :param host: the compute node as Cyborg names it.
    :raises CloudError: if a request to Cyborg fails.
    """
    answer = cloud.ask(_ACCELERATOR, '/devices', STATUS_VERSION,
                       hostname=host)
    with connection.understanding(cloud, 'Cyborg', 'a device'):
        return frozenset(
            found for device in answer['devices']
            if device['status'] == DISABLED and device['hostname'] == host
            for found in [gpu_address(device)] if found is not None)


def gpu_address(device: Mapping[str, Any]) -> model.PciAddress | None:
    """Return the GPU of a device; None for a device of another driver.

    :param device: as Cyborg's API shows it.
    """
    try:
        return model.PciAddress.parse(
            json.loads(device['std_board_info'])['address'])
    except (KeyError, TypeError, ValueError, exception.GpuDriverError):
        return None


def told_cordons(device: Mapping[str, Any]) -> cordon.Cordons:
    """Return the cordons that the agent has reported; empty if none are known.

    :param device: as Cyborg's API shows it.
    """
    try:
        return cordon.of_json(
            json.loads(device['vendor_board_info'])['cordons'])
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return ()


def _connect(conf):
    if conf.gpu.os_cloud:
        return connection.Cloud.named(conf.gpu.os_cloud)
    return connection.Cloud.of_section(conf, _SECTION)


@dataclasses.dataclass(frozen=True)
class Arq:
    """An accelerator request that has an attach handle."""

    uuid: str
    server: str | None


def requests_by_vgpu(cloud: connection.Cloud, host: str) -> dict[str, Arq]:
    """Return a cloud's accelerator requests by the vGPU that each may hold.

    Cyborg returns all of them on one page.

    :param host: the compute node as Cyborg names it.
    :raises CloudError: if they cannot be read, or if the cloud has no device
        on the host: then the host belongs to another cloud, or has another
        name in this one.
    """
    return _of_host(cloud, host, by_vgpu)


class RequestWatch:
    """Reads the accelerator requests of one host repeatedly.

    :param name: of the cloud, in ``clouds.yaml``; if it is empty, nothing is
        read.
    :param host: the compute node as Cyborg names it.
    """

    def __init__(self, name: str | None, host: str):
        self._name = name
        self._host = host
        self._cloud: connection.Cloud | None = None
        self._said = log_once.LogOnce()

    def read(self) -> reconcile.Claims | None:
        """Return what the requests hold on the host now.

        :returns: None if that is unknown. Each reason is logged once.
        """
        if not self._name:
            return None
        try:
            if self._cloud is None:
                self._cloud = connection.Cloud.named(self._name)
            found = read_claims(self._cloud, self._host)
        except Exception as error:
            # The report of the GPUs must not depend on this request.
            reason = exception.steady(error)
            if self._said.is_new(reason):
                LOG.warning('Cannot read the accelerator requests: %s',
                            reason)
            return None
        self._said.over()
        return found


def read_claims(cloud: connection.Cloud, host: str) -> reconcile.Claims:
    """Return what a cloud's accelerator requests hold on a host.

    :param host: the compute node as Cyborg names it.
    :raises CloudError: as :func:`read` does.
    """
    return _of_host(cloud, host, claims)


def claims(requests: Iterable[Mapping[str, Any]], host: str
           ) -> reconcile.Claims:
    """Return what accelerator requests hold on a host.

    If a request is neither bound nor new, Cyborg does not show its attach
    handle. If its unbind has failed, Cyborg does not show its host either.

    :param requests: as Cyborg's API shows them.
    :raises KeyError, TypeError, AttributeError, InvalidValue: if a request
        is malformed.
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
            bound.append(reconcile.Claim(
                request['attach_handle_uuid'].lower(), request['uuid'],
                request['instance_uuid'], _function(info),
                info['asked_type']))
    return reconcile.Claims(tuple(bound), tuple(unsettled))


def _of_host(cloud, host, understand):
    if not cloud.get('/devices', 'devices', hostname=host):
        raise cloud.error(f'Cyborg has no device on host {host}; give the '
                          'host name that Cyborg uses')
    try:
        return understand(cloud.get('/accelerator_requests', 'arqs'), host)
    except (KeyError, TypeError, AttributeError,
            exception.InvalidValue) as error:
        raise cloud.error(
            f'an accelerator request cannot be parsed: {error!r}'
        ) from error


def _function(info):
    return model.PciAddress.parse(
        '{domain}:{bus}:{device}.{function}'.format(**info))


def by_vgpu(requests: Iterable[Mapping[str, Any]], host: str
            ) -> dict[str, Arq]:
    """Return the requests by vGPU name: mdev UUID or PCI address of a VF.

    Nova creates the mdev of an attach handle with the handle's UUID. A PCI
    address is valid only on its own host, and names a vGPU only where the
    vGPU of the handle has no UUID.

    :param requests: as Cyborg's API shows them.
    :raises KeyError, TypeError, AttributeError, InvalidValue: if a request
        is malformed.
    """
    found = {}
    for request in requests:
        handle = request['attach_handle_uuid']
        if handle is None:
            continue
        arq = Arq(request['uuid'], request['instance_uuid'])
        found[handle.lower()] = arq
        if request['hostname'] == host:
            found[str(_function(request['attach_handle_info']))] = arq
    return found


def profiles(cloud: connection.Cloud
             ) -> dict[str, list[Mapping[str, str]]]:
    """Return the groups of each device profile, by name.

    :raises CloudError: if a request to Cyborg fails.
    """
    found = cloud.get('/device_profiles', 'device_profiles')
    with connection.understanding(cloud, 'Cyborg', 'a device profile'):
        return {item['name']: list(item['groups']) for item in found}


def devices(cloud: connection.Cloud) -> tuple[facts.Device, ...]:
    """Return the devices of all hosts.

    :raises CloudError: if a request to Cyborg fails.
    """
    answer: Any = cloud.ask('accelerator', '/devices',
                            STATUS_VERSION)
    with connection.understanding(cloud, 'Cyborg', 'a device'):
        return tuple(facts.Device(
            item['uuid'], item['hostname'], item['model'],
            item.get('status') != DISABLED,
            str(gpu_address(item) or ''), told_cordons(item))
            for item in answer['devices'])


def deployables(cloud: connection.Cloud) -> dict[str, int]:
    """Return the number of attach handles by UUID of the provider.

    :raises CloudError: if a request to Cyborg fails.
    """
    found = cloud.get('/deployables', 'deployables')
    with connection.understanding(cloud, 'Cyborg', 'a deployable'):
        return {item['rp_uuid']: int(item['num_accelerators'])
                for item in found}


def arqs(cloud: connection.Cloud) -> tuple[facts.Arq, ...]:
    """Return the accelerator requests of all projects.

    :raises CloudError: if a request to Cyborg fails.
    """
    found = cloud.get('/accelerator_requests', 'arqs')
    with connection.understanding(cloud, 'Cyborg', 'an accelerator request'):
        return tuple(facts.Arq(
            item['uuid'], item['state'], item['instance_uuid'],
            item['device_rp_uuid'], item['hostname'],
            item['device_profile_name']) for item in found)
