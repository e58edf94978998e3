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

from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.cmd.gpu import offer
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.report.content import view


class ShowReport(table.Lister):
    """Show what the agent would report to Cyborg and Placement now.

    Each row is an offer. A reported offer is a deployable in Cyborg and a
    resource provider in Placement. Formats for programs have every field of
    the report. The command does not ask Placement. The agent does, and it
    withdraws nothing that servers use.
    """

    brief = ('address', 'resource_class', 'total', 'reserved', 'reported')

    def take_action(self, parsed_args):
        machine = self.app.machine
        machine.explain()
        rows = [row for address, sent in machine.sent.items()
                for row in _rows(machine, address, sent)]
        for problem in offer.problems(rows, 'name'):
            cmd_machine.say(problem)
        return _NAMES, [tuple(row[name] for name in _NAMES) for row in rows]


_NAMES = ('address', 'name', 'provider_uuid', 'resource_class', 'total',
          'reserved', 'reported', 'problem', 'traits', 'attributes',
          'driver_name', 'attach_handles', 'device')
_NONE = columns.Optional(None)


def _rows(machine, address, sent):
    """Yield a row for each offer of a GPU; one row if the agent leaves the
    GPU as Cyborg has it.
    """
    gpu = next((gpu for gpu in machine.host.gpus
                if gpu.address == address), None)
    if sent.device is not None and sent.device.stub:
        yield _unreported(address, machine.problem(gpu) if gpu
                          else sent.problem, device=sent.device)
        return
    if gpu is None:
        return
    verdict = machine.verdicts.get(address)
    reserved = {item.provider: item.reserved for item in machine.promised(
        address, machine.offers(gpu), machine.owned(gpu),
        verdict is not None and verdict.is_unhealthy)}
    for item in machine.offers(gpu):
        found = machine.reported(item)
        if found is None:
            yield _unreported(address, item.problem or sent.problem,
                              names.provider_name(machine.hostname, item),
                              names.resource_class(item))
        else:
            yield _reported(sent.device, found, reserved.get(
                found.provider_uuid, 0))


def _unreported(address, problem, name=None, resource_class=None,
                device=None):
    """Return a row for what is not reported.

    A device is a stub that tells Cyborg to leave the GPU as Cyborg has it.
    """
    return {
        'address': str(address), 'name': name or _NONE,
        'provider_uuid': _NONE,
        'resource_class': columns.Optional(resource_class),
        'total': 0, 'reserved': 0, 'reported': 'no',
        'problem': columns.Optional(
            problem and (f'not changed in Cyborg: {problem}' if device
                         else problem)),
        'traits': columns.Names(()), 'attributes': columns.Structure({}),
        'driver_name': _NONE, 'attach_handles': columns.Structure([]),
        'device': columns.Structure(_document(device) if device else {})}


def _reported(device, deployable, reserved):
    return {
        'address': str(device.address),
        'name': deployable.name,
        'provider_uuid': deployable.provider_uuid,
        'resource_class': deployable.resource_class,
        'total': deployable.num_accelerators,
        'reserved': reserved,
        'reported': 'yes',
        'problem': _NONE,
        'traits': columns.Names(deployable.traits),
        'attributes': columns.Structure(dict(deployable.attributes)),
        'driver_name': deployable.driver_name,
        'attach_handles': columns.Structure([
            {'attach_type': handle.attach_type,
             'attach_info': handle.attach_info}
            for handle in deployable.handles]),
        'device': columns.Structure(_document(device)),
    }


def _document(device):
    document = view.device_to_dict(device)
    del document['deployables']
    return document
