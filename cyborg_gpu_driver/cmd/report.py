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

"""``cyborg-gpu report show``."""

from __future__ import annotations

from cliff import lister

from cyborg_gpu_driver.cmd import columns
from cyborg_gpu_driver.report import build
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report import view


class ShowReport(lister.Lister):
    """Show exactly what goes to Cyborg and Placement.

    A row is a deployable of Cyborg's and a resource provider of
    Placement's. The formats for programs have every field that is sent.
    """

    def take_action(self, parsed_args):
        machine = self.app.machine
        machine.explain()
        offers = {gpu.address: machine.offers(gpu)
                  for gpu in machine.host.gpus}
        reserved = {
            inventory.provider: inventory.reserved
            for gpu in machine.host.gpus
            for inventory in capacity.inventories(
                offers[gpu.address], machine.owned(gpu), machine.hostname)}
        rows = [_row(device, deployable,
                     reserved.get(deployable.provider_uuid, 0))
                for device in build.build(machine.host, offers,
                                          machine.hostname)
                for deployable in device.deployables]
        if parsed_args.formatter == 'table':
            return _columns(rows, _BRIEF)
        return _columns(rows, _FULL)


_BRIEF = ('address', 'name', 'resource_class', 'total', 'reserved',
          'attach_handles', 'traits')
_FULL = ('address', 'name', 'provider_uuid', 'resource_class', 'total',
         'reserved', 'traits', 'attributes', 'driver_name', 'attach_handles',
         'device')


def _row(device, deployable, reserved):
    document = view.device_to_dict(device)
    del document['deployables']
    return {
        'address': str(device.address),
        'name': deployable.name,
        'provider_uuid': deployable.provider_uuid,
        'resource_class': deployable.resource_class,
        'total': deployable.num_accelerators,
        'reserved': reserved,
        'traits': columns.Names(deployable.traits),
        'attributes': columns.Structure(dict(deployable.attributes)),
        'driver_name': deployable.driver_name,
        'attach_handles': columns.Structure([
            {'attach_type': handle.attach_type,
             'attach_info': handle.attach_info}
            for handle in deployable.handles]),
        'device': columns.Structure(document),
    }


def _columns(rows, names):
    return names, [tuple(row[name] for name in names) for row in rows]
