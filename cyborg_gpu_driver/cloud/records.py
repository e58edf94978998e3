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
"""Read Cyborg's profiles, devices, deployables and accelerator requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.cloud import devices as cloud_devices
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.explain import facts


def profiles(cloud: connection.Cloud
             ) -> dict[str, list[Mapping[str, str]]]:
    """Return the groups of each device profile, by name.

    :raises CloudError: if a request to Cyborg fails.
    """
    found = cloud.get('/device_profiles', 'device_profiles')
    with responses.understanding(cloud, 'Cyborg', 'a device profile'):
        return {item['name']: list(item['groups']) for item in found}


def devices(cloud: connection.Cloud) -> tuple[facts.Device, ...]:
    """Return the devices of all hosts.

    :raises CloudError: if a request to Cyborg fails.
    """
    answer: Any = cloud.ask('accelerator', '/devices',
                            cloud_devices.STATUS_VERSION)
    with responses.understanding(cloud, 'Cyborg', 'a device'):
        return tuple(facts.Device(
            item['uuid'], item['hostname'], item['model'],
            item.get('status') != cloud_devices.DISABLED,
            str(cloud_devices.address(item) or ''), cloud_devices.told(item))
            for item in answer['devices'])


def deployables(cloud: connection.Cloud) -> dict[str, int]:
    """Return the number of attach handles by UUID of the provider.

    :raises CloudError: if a request to Cyborg fails.
    """
    found = cloud.get('/deployables', 'deployables')
    with responses.understanding(cloud, 'Cyborg', 'a deployable'):
        return {item['rp_uuid']: int(item['num_accelerators'])
                for item in found}


def arqs(cloud: connection.Cloud) -> tuple[facts.Arq, ...]:
    """Return the accelerator requests of all projects.

    :raises CloudError: if a request to Cyborg fails.
    """
    found = cloud.get('/accelerator_requests', 'arqs')
    with responses.understanding(cloud, 'Cyborg', 'an accelerator request'):
        return tuple(facts.Arq(
            item['uuid'], item['state'], item['instance_uuid'],
            item['device_rp_uuid'], item['hostname'],
            item['device_profile_name']) for item in found)
