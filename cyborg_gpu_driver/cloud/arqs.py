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

"""Accelerator requests (ARQs) and the vGPUs that they hold on a host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile

LOG = logging.getLogger(__name__)

_BOUND = 'Bound'
_INITIAL = 'Initial'
_MDEV = 'MDEV'


@dataclasses.dataclass(frozen=True)
class Arq:
    """An accelerator request that has an attach handle."""

    uuid: str
    server: str | None


def read(cloud: connection.Cloud, host: str) -> dict[str, Arq]:
    """Return a cloud's accelerator requests by the vGPU that each may hold.

    Cyborg returns all of them on one page.

    :param host: the compute node as Cyborg names it.
    :raises CloudError: if they cannot be read, or if the cloud has no device
        on the host: then the host belongs to another cloud, or has another
        name in this one.
    """
    return _read(cloud, host, by_vgpu)


class Watch:
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
    return _read(cloud, host, claims)


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


def _read(cloud, host, understand):
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
