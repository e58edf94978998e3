# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu offer list``."""

from __future__ import annotations

from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.partition.offer import offer as offer_module
from cyborg_gpu_driver.program.reconcile import orphans
from cyborg_gpu_driver.report import capacity
from cyborg_gpu_driver.report.content import names


class ListOffer(output.Lister):
    """List what each GPU offers, and what the agent would report.

    A reported offer is a deployable in Cyborg and a resource provider in
    Placement. The reason why an offer is not reported is also written to
    standard error. Fixed vGPUs are reported by Nova; "in_use" then counts
    those that have a guest. The column gpus has the GPUs of a group that
    NVLink connects. --long and the formats for programs have every field of
    the report; csv and value have nested ones with --long only. The command
    does not ask Placement. The agent does, and it withdraws nothing that
    servers use.
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
        rows = [row for address in machine.sent
                for row in _rows(machine, address, parsed_args.everything)]
        for problem in _problems(rows):
            output.say(problem)
        whole = (parsed_args.formatter not in output.FLAT
                 or parsed_args.long or parsed_args.columns)
        names = (*_NAMES, *_NESTED) if whole else _NAMES
        return names, [tuple(row[name] for name in names) for row in rows]


_NAMES = ('address', 'profile', 'resource_class', 'total', 'in_use',
          'creatable', 'reserved', 'reported', 'problem', 'traits', 'gpus',
          'provider_name', 'provider_uuid', 'driver_name')
_NESTED = ('attributes', 'attach_handles', 'device')
_NONE = output.Optional(None)
_KEPT = 'not changed in Cyborg: '


def _rows(machine, address, everything):
    """Yield a row for each offer of a GPU; one row if there is none to show,
    because the GPU cannot be read or the agent leaves it as Cyborg has it.
    """
    sent = machine.sent[address]
    stub = sent.device is not None and sent.device.stub
    gpu = next((gpu for gpu in machine.host.gpus
                if gpu.address == address), None)
    if gpu is None:
        if stub:
            yield _row(address, sent.device, _KEPT + sent.problem)
        return
    left = (_KEPT if stub else '') + machine.problem(gpu)
    unread = capacity.is_unread(machine.state_path, machine.host, gpu)
    offers = () if unread else machine.offers(gpu, everything)
    if not offers and (stub or unread and everything):
        yield _row(address, sent.device, left or condition.state(gpu))
    reserved = _reserved(machine, gpu) if offers and not stub else {}
    for offer in offers:
        found = machine.reported(offer)
        # With --all, the row shows what a policy could offer.
        barred = offer.problem if everything else found is None
        problem = left if stub else offer.problem or offer.busy or left
        row = _row(address, sent.device if stub or found else None,
                   offer.busy if found else problem or offer.busy)
        row.update(
            profile=offer.profile,
            resource_class=names.resource_class(offer),
            total=offer.total, in_use=offer.in_use,
            creatable=0 if barred else offer.creatable,
            traits=output.Names(names.traits(gpu, offer)),
            gpus=output.Names(map(str, offer.members or (address,))),
            provider_name=names.provider_name(machine.hostname, offer))
        if offer.problem == offer_module.LEFT_TO_NOVA:
            row.update(_fixed(machine, gpu, offer))
        if found is not None:
            row.update(_reported(found, reserved))
        yield row


def _fixed(machine, gpu, offer):
    """Return what is different for the vGPUs that Nova assigns."""
    machine.act_here()
    free = [found.guest for found in machine.vgpus.on(gpu.address)
            if found.vgpu.type_id == offer.vgpu_type_id
            ].count(orphans.Guest.NONE)
    return {'total': offer.in_use, 'in_use': offer.in_use - free,
            'creatable': free, 'reported': 'Nova', 'problem': _NONE}


def _reserved(machine, gpu):
    """Return what Placement should have as reserved, by provider."""
    verdict = machine.verdicts.get(gpu.address)
    return {item.provider: item.reserved for item in machine.promised(
        gpu.address, machine.offers(gpu), machine.owned(gpu),
        verdict is not None and verdict.is_unhealthy)}


def _row(address, device, problem):
    """Return the row of something that is not reported.

    :param device: what is sent to Cyborg of the GPU; None for nothing. A stub
        tells Cyborg to leave the GPU as Cyborg has it.
    """
    return {
        **dict.fromkeys(_NAMES + _NESTED, _NONE), 'address': str(address),
        'total': 0, 'in_use': 0, 'creatable': 0, 'reserved': 0,
        'reported': 'no', 'problem': output.Optional(problem or None),
        'traits': output.Names(()), 'gpus': output.Names(()),
        'attributes': output.Structure({}),
        'attach_handles': output.Structure([]),
        'device': output.Structure({
            'address': str(device.address), 'vendor': device.vendor,
            'model': device.model, 'type': names.DEVICE_TYPE,
            'stub': device.stub, 'std_board_info': device.std_board_info,
            'vendor_board_info': device.vendor_board_info,
            'controlpath_id': {'cpid_type': names.PCI,
                               'cpid_info': device.cpid_info},
        } if device else {})}


def _reported(deployable, reserved):
    return {
        'resource_class': deployable.resource_class,
        'total': deployable.num_accelerators,
        'reserved': reserved.get(deployable.provider_uuid, 0),
        'reported': 'yes',
        'traits': output.Names(deployable.traits),
        'provider_uuid': deployable.provider_uuid,
        'attributes': output.Structure(dict(deployable.attributes)),
        'driver_name': names.DRIVER_NAME,
        'attach_handles': output.Structure([
            {'attach_type': handle.attach_type,
             'attach_info': handle.attach_info}
            for handle in deployable.handles])}


def _problems(rows):
    """Yield one line for each problem, with all affected GPUs and offers."""
    hit: dict[tuple, list] = {}
    for row in rows:
        why = row['problem'].machine_readable()
        if why:
            what = ('none is free now' if row['reported'] == 'yes'
                    else 'not reported')
            hit.setdefault((row['address'], what, why), []).append(
                row['profile'])
    alike: dict[tuple, list] = {}
    for (address, what, why), affected in hit.items():
        named = ', '.join(item for item in affected if isinstance(item, str))
        alike.setdefault((what, named, why), []).append(address)
    for (what, named, why), addresses in alike.items():
        yield (f'{", ".join(addresses)}: {what}'
               + (f' ({named})' if named else '') + f': {why}')
