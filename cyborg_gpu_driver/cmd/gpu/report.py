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

from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report.content import build
from cyborg_gpu_driver.report.content import names

# ``cyborg-gpu offer list``.


class ListOffer(output.Lister):
    """List what each GPU offers, and how much of it can be created now.

    The column gpus has the GPUs of a group that NVLink connects. An offer is
    shown as reported if the agent would report it now. The reason why an offer
    is not reported is also written to standard error.
    """

    brief = ('address', 'profile', 'total', 'in_use', 'creatable', 'reported')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--all', action='store_true', dest='everything',
            help='list what the GPUs could offer in any mode, not only in the '
                 'mode of their policy')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine
        machine.explain()
        rows = [row for gpu in machine.host.gpus
                for row in _offer_rows(machine, gpu, parsed_args.everything)]
        for problem in problems(rows, 'profile'):
            output.say(problem)
        return _OFFER_NAMES, [tuple(row.values()) for row in rows]


_OFFER_NAMES = ('address', 'profile', 'resource_class', 'total', 'in_use',
                'creatable', 'reported', 'problem', 'traits', 'gpus')


def _offer_rows(machine, gpu, everything):
    """Yield a row for each offer of a GPU; one row if the agent cannot bind
    anything on it, because it cannot be read.
    """
    if capacity.is_unread(machine.state_path, machine.host, gpu):
        if machine.settings.policy_for(gpu) or everything:
            yield _row(str(gpu.address), output.Optional(None),
                       output.Optional(None), 0, 0, 0, 'no',
                       output.Optional(machine.problem(gpu)
                                       or condition.state(gpu)),
                       output.Names(()), output.Names(()))
        return
    left = machine.problem(gpu)
    for offer in machine.offers(gpu, everything):
        reported = machine.reported(offer) is not None
        problem = '' if reported else offer.problem or left
        # With --all, the row shows what a policy could offer.
        barred = offer.problem if everything else not reported
        yield _row(
            str(gpu.address), offer.profile, names.resource_class(offer),
            offer.total, offer.in_use, 0 if barred else offer.creatable,
            'yes' if reported else 'no',
            output.Optional(problem or offer.busy or None),
            output.Names(names.traits(gpu, offer)),
            output.Names(tuple(map(str, offer.members or (gpu.address,)))))


def _row(*values):
    return dict(zip(_OFFER_NAMES, values, strict=True))


def problems(rows, name):
    """Yield one line for each GPU and problem, with all affected offers.

    :param name: the column that names an offer.
    """
    hit: dict[tuple, list] = {}
    for row in rows:
        why = row['problem'].machine_readable()
        if why:
            what = ('none is free now' if row['reported'] == 'yes'
                    else 'not reported')
            hit.setdefault((row['address'], what, why), []).append(row[name])
    for (address, what, why), affected in hit.items():
        named = ', '.join(item for item in affected if isinstance(item, str))
        yield (f'{address}: {what}' + (f' ({named})' if named else '')
               + f': {why}')


class ShowReport(output.Lister):
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
        for problem in problems(rows, 'name'):
            output.say(problem)
        return _NAMES, [tuple(row[name] for name in _NAMES) for row in rows]


_NAMES = ('address', 'name', 'provider_uuid', 'resource_class', 'total',
          'reserved', 'reported', 'problem', 'traits', 'attributes',
          'driver_name', 'attach_handles', 'device')
_NONE = output.Optional(None)


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
        'resource_class': output.Optional(resource_class),
        'total': 0, 'reserved': 0, 'reported': 'no',
        'problem': output.Optional(
            problem and (f'not changed in Cyborg: {problem}' if device
                         else problem)),
        'traits': output.Names(()), 'attributes': output.Structure({}),
        'driver_name': _NONE, 'attach_handles': output.Structure([]),
        'device': output.Structure(_document(device) if device else {})}


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
        'traits': output.Names(deployable.traits),
        'attributes': output.Structure(dict(deployable.attributes)),
        'driver_name': deployable.driver_name,
        'attach_handles': output.Structure([
            {'attach_type': handle.attach_type,
             'attach_info': handle.attach_info}
            for handle in deployable.handles]),
        'device': output.Structure(_document(device)),
    }


def _document(device):
    document = build.device_to_dict(device)
    del document['deployables']
    return document
