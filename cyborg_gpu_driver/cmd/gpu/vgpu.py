# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu vgpu list|clean``: live vGPUs and orphaned vGPUs."""

from __future__ import annotations

from collections.abc import Collection

from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import cyborg
from cyborg_gpu_driver.cmd import context
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import vgpu_type

_UNKNOWN = '?'
_NONE = 'none'
_ORPHAN = {True: 'yes', False: 'no', None: _UNKNOWN}


class ListVgpu(output.Lister):
    """List the live vGPUs of this host and their owners.

    An orphan has no claim, is not a fixed vGPU, and has neither a guest nor
    an accelerator request. Accelerator requests are known only if a cloud is
    named and its user is an administrator.
    """

    brief = ('name', 'gpu', 'type', 'guest', 'orphan')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        context.add_cloud(parser)
        parser.add_argument(
            '--orphans', action='store_true',
            help='list only orphans and possible orphans')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine
        machine.act_here()
        claimed = _claimed(parsed_args, machine.hostname)
        rows = []
        for found in machine.vgpus.found():
            orphan = found.orphan(claimed)
            if parsed_args.orphans and orphan is False:
                continue
            if found.unknown:
                output.say(f'{found.vgpu.name}: {found.unknown}')
            rows.append((
                found.vgpu.name, str(found.gpu.address),
                str(found.vgpu.function), _type(found), _instance(found),
                found.owner or _NONE, found.guest.value,
                *_request(found, claimed), _ORPHAN[orphan]))
        return (('name', 'gpu', 'function', 'type', 'gpu_instance', 'owner',
                 'guest', 'server', 'arq', 'orphan'), rows)


class CleanVgpu(command.Command):
    """Remove orphaned vGPUs.

    Refuses a vGPU that has an owner, a guest or an accelerator request. The
    GPU instances of MIG-backed vGPUs are kept. Exits 1 if a vGPU could not be
    removed.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        context.add_cloud(parser)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument(
            'name', metavar='NAME', nargs='*', default=[],
            help='UUID of an mdev, or address of a virtual function')
        which.add_argument(
            '--orphans', action='store_true',
            help='remove all orphans; needs a cloud, or --without-cloud')
        parser.add_argument(
            '--yes', action='store_true', help='do not ask for confirmation')
        return parser

    def take_action(self, parsed_args):
        machine = self.app.machine
        machine.check_root('remove its vGPUs')
        machine.act_here()
        vgpus = machine.vgpus
        claimed = _claimed(parsed_args, machine.hostname)
        if (parsed_args.orphans and claimed is None
                and not parsed_args.without_cloud):
            raise exception.CloudError(
                'it is not known which vGPUs servers have; name the cloud '
                'with --os-cloud, or give --without-cloud')
        live = {found.vgpu.name: found for found in vgpus.found()}
        if parsed_args.orphans:
            wanted = {name: found for name, found in live.items()
                      if found.orphan(claimed) is not False}
        else:
            wanted = {name: live.get(name)
                      for name in map(_name, parsed_args.name)}
        kept = [name for name, found in wanted.items()
                if not _is_free(name, found, claimed)]
        free = [found for name, found in wanted.items() if name not in kept]
        if not free:
            output.say('There is nothing to remove.')
        elif not parsed_args.yes and not _agreed(free):
            output.say('Nothing was removed.')
            return 1
        return int(not _remove(vgpus, free, claimed) or bool(kept))


def _claimed(parsed_args, hostname):
    """Return the accelerator requests by vGPU; None if no cloud is used."""
    if not context.has_cloud(parsed_args):
        return None
    return cyborg.requests_by_vgpu(
        connection.Cloud.named(parsed_args.os_cloud),
        parsed_args.host or hostname)


def _type(found):
    return vgpu_type.name(vgpu_type.by_id(found.gpu), found.vgpu.type_id)


def _instance(found):
    if found.on_instance and found.instance_id is None:
        return _UNKNOWN
    return output.Optional(found.instance_id)


def _request(found, claimed):
    """Return the server and the accelerator request of a vGPU."""
    if claimed is None:
        return _UNKNOWN, _UNKNOWN
    arq = claimed.get(found.vgpu.name)
    return (_NONE, _NONE) if arq is None else (
        arq.instance_uuid or _NONE, arq.uuid)


def _name(text):
    try:
        return str(model.PciAddress.parse(text))
    except exception.InvalidValue:
        return text.lower()


def _is_free(name, found, claimed: Collection[str] | None):
    """Whether a vGPU may be removed; prints the reason if not."""
    if found is None:
        output.say(f'There is no vGPU {name}.')
        return False
    obstacle = found.obstacle(claimed)
    if obstacle:
        output.say(str(exception.ChangeRefused(
            f'vGPU {name} was not removed: {obstacle}')))
    return not obstacle


def _agreed(free):
    """Whether the operator confirms the removal."""
    for found in free:
        output.say(f'{found.vgpu.name}  {_type(found)} on GPU '
                   f'{found.gpu.address}')
    return output.agreed(f'Remove {len(free)} of the vGPUs of this host?')


def _remove(vgpus, free, claimed):
    """Remove the vGPUs one by one; return whether all were removed."""
    failed = 0
    for number, found in enumerate(free, 1):
        begin = f'{number} of {len(free)}: '
        try:
            left = vgpus.remove(found, claimed)
        except exception.GpuDriverError as error:
            failed += 1
            output.say(begin + str(error))
            continue
        output.say(f'{begin}removed {found.vgpu.name}')
        for item in left:
            output.say(f'  Not removed: {item}')
    return not failed
