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

"""Read from Cyborg which of a host's GPUs an operator has disabled.

``openstack accelerator device disable`` gives the device the status
``maintaining`` and reserves all of one inventory in Placement. Cyborg chooses
the inventory of the deployable whose database ID equals that of the device
(cyborg/api/controllers/v2/devices.py, the same in Cyborg 16 and 17). That
deployable may belong to another device. So only the status identifies the
disabled device, and only Cyborg's API shows the status: the conductor has no
call for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon

LOG = logging.getLogger(__name__)

STATUS_VERSION = '2.3'
"""The first microversion that shows whether a device is enabled."""
DISABLED = 'maintaining'
_SECTION = 'placement'
_ACCELERATOR = 'accelerator'


class Watch:
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
    with responses.understanding(cloud, 'Cyborg', 'a device'):
        return frozenset(
            found for device in answer['devices']
            if device['status'] == DISABLED and device['hostname'] == host
            for found in [address(device)] if found is not None)


def address(device: Mapping[str, Any]) -> model.PciAddress | None:
    """Return the GPU of a device; None for a device of another driver.

    :param device: as Cyborg's API shows it.
    """
    try:
        return model.PciAddress.parse(
            json.loads(device['std_board_info'])['address'])
    except (KeyError, TypeError, ValueError, exception.GpuDriverError):
        return None


def told(device: Mapping[str, Any]) -> cordon.Cordons:
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
