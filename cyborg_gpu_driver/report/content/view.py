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


"""The report as dictionaries, for people and for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.report.content import values


def device_to_dict(device: values.ReportedDevice,
                   reserved: Mapping[str, int] | None = None
                   ) -> dict[str, Any]:
    """One device with all the strings that go to Cyborg and Placement.

    :param reserved: ``reserved`` by provider name, as far as it is known.
    """
    return {
        'address': str(device.address),
        'vendor': device.vendor,
        'model': device.model,
        'type': device.type,
        'stub': device.stub,
        'std_board_info': device.std_board_info,
        'vendor_board_info': device.vendor_board_info,
        'controlpath_id': {'cpid_type': device.cpid_type,
                           'cpid_info': device.cpid_info},
        'deployables': [
            deployable_to_dict(deployable,
                               (reserved or {}).get(deployable.name, 0))
            for deployable in device.deployables],
    }


def deployable_to_dict(deployable: values.ReportedDeployable,
                       reserved: int = 0) -> dict[str, Any]:
    """One deployable, and the resource provider that Cyborg makes of it."""
    total = deployable.num_accelerators
    return {
        'name': deployable.name,
        'driver_name': deployable.driver_name,
        'num_accelerators': total,
        'attributes': dict(deployable.attributes),
        'attach_handles': [
            {'attach_type': handle.attach_type,
             'attach_info': handle.attach_info}
            for handle in deployable.handles],
        'resource_provider': {
            'uuid': deployable.provider_uuid,
            'name': deployable.name,
            'inventories': {deployable.resource_class: {
                'total': total, 'max_unit': total, 'reserved': reserved}},
            'traits': list(deployable.traits),
        },
    }
