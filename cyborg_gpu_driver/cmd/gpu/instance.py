# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu instance list|create|destroy``: single GPU instances."""

from __future__ import annotations

import re

from cliff import command

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import change
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import plan
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import target

_GPU = f'the GPU, by {choice.WAYS}'
_SIZES = re.compile('[1-9][0-9]?(,[1-9][0-9]?)*', re.ASCII)


class ListInstance(output.Lister):
    """List the GPU instances of this host and their users.

    Exits 1 if a GPU that is bound to NVIDIA's driver cannot be read.
    """

    brief = ('address', 'id', 'profile', 'start', 'in_use')

    def take_action(self, parsed_args):
        machine = self.app.machine.for_changes(links=False)
        rows = []
        for gpu in machine.gpus:
            reason = choice.obstacle(machine.host, gpu)
            if reason:
                output.say(reason)
                self.code |= not condition.is_away(gpu)
                continue
            try:
                now = machine.current(gpu)
                used = machine.transactions.in_use(now)
            except exception.GpuDriverError as error:
                # Continue, to list the other GPUs.
                output.say(f'GPU {gpu.address}: {error}')
                self.code = 1
                continue
            for item in now.mig.instances if now.mig else ():
                profile = now.mig.profile_by_id(item.profile_id)
                rows.append((
                    str(gpu.address), item.instance_id,
                    output.Optional(profile and profile.name),
                    item.placement.start, item.placement.size,
                    output.Names(f'{part.size}c at {part.start}'
                                 for part in item.compute),
                    output.Optional(used.get(item.placement))))
        return (('address', 'id', 'profile', 'start', 'size', 'compute',
                 'in_use'), rows)


class CreateInstance(command.Command):
    """Create a GPU instance, with a compute instance that spans it.

    Without --start, the command chooses the placement that leaves the most
    room for other instances. It is created again after a reboot, as that of a
    layout.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('gpu', metavar='GPU', help=_GPU)
        parser.add_argument('profile', metavar='PROFILE',
                            help='profile name, such as 1g.10gb')
        parser.add_argument('--start', type=int, metavar='UNIT',
                            help='first memory unit of the instance on the '
                                 'grid')
        parser.add_argument(
            '--compute', metavar='SLICES[,SLICES...]',
            help='compute instances to create in it, by their slices; 0 '
                 'creates none')
        return parser

    def take_action(self, parsed_args):
        machine, gpu = _opened(self, parsed_args.gpu)
        made = []

        def decide(now):
            planned = _creation(now, machine.transactions.in_use(now),
                                parsed_args)
            made.extend(planned.create)
            return planned

        machine.applier.transact(gpu, decide, remember=True)
        output.say(f'{parsed_args.profile} at {made[0].placement} of '
                   f'GPU {gpu.address}')


class DestroyInstance(command.Command):
    """Destroy an idle GPU instance with its compute instances."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('gpu', metavar='GPU', help=_GPU)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument('id', metavar='ID', type=int, nargs='?',
                           help='id of the instance, as "instance list" and '
                                'nvidia-smi show it')
        which.add_argument('--start', type=int, metavar='UNIT',
                           help='first memory unit of the instance on the '
                                'grid, instead of its id')
        return parser

    def take_action(self, parsed_args):
        machine, gpu = _opened(self, parsed_args.gpu)
        found: list[tuple] = []

        def decide(now):
            instance = _existing(now, parsed_args)
            found[:] = [(now, instance)]
            return _destruction(now, machine.transactions.in_use(now),
                                instance)

        machine.applier.transact(gpu, decide)
        ((now, instance),) = found
        output.say(f'Destroyed {_named(now, instance)} of GPU {gpu.address}')


def _opened(asked, text):
    """Return the host to work with, and the GPU that the operator named.
    """
    machine = asked.app.machine.for_changes(links=False)
    gpu = machine.gpu(text)
    if machine.ignores(gpu):
        raise _refused(gpu, 'it is in [gpu] ignored_devices')
    machine.reachable((gpu,))
    machine.check_root()
    if gpu.mig is None or not machine.current(gpu).mig.enabled:
        raise _refused(gpu, 'MIG mode is off')
    return machine, gpu


def _creation(now, used, asked):
    """Return the change that creates one instance.

    :raises ChangeRefused: if there is no such profile, or no room.
    """
    profile = now.mig.profile_by_name(asked.profile)
    if profile is None:
        raise _refused(now, f'no profile {asked.profile}; it has '
                       + ', '.join(item.name for item in now.mig.profiles))
    grid = geometry.Geometry(now.mig.profiles)
    occupancy = grid.occupancy_of(now.mig.instances)
    if asked.start is None:
        place = geometry.choose_start(grid, occupancy, profile)
    else:
        place = next((item for item in grid.free_placements(
            occupancy, profile) if item.start == asked.start), None)
    if place is None:
        free = grid.free_placements(occupancy, profile)
        raise _refused(now, f'no room for {profile.name}'
                       + ('' if asked.start is None
                          else f' at unit {asked.start}')
                       + ('; it fits at ' + ', '.join(
                           str(item.start) for item in free)
                          if free else ''))
    return plan.keeping_others(now, now.mig, used, create=(change.Created(
        place, target.WantedInstance(profile, _compute(asked, profile))),))


def _existing(now, asked):
    """Return the instance that the operator named.

    :raises ChangeRefused: if it does not exist.
    """
    for item in now.mig.instances:
        if (item.instance_id == asked.id if asked.start is None
                else item.placement.start == asked.start):
            return item
    named = (f'no instance has the id {asked.id}' if asked.start is None
             else f'no instance begins at unit {asked.start}')
    raise _refused(now, f'{named}; it has ' + (', '.join(
        _named(now, item) for item in now.mig.instances) or 'none'))


def _named(gpu, instance):
    return (f'{spec.profile_name(gpu.mig, instance.profile_id)} with id '
            f'{instance.instance_id} at unit {instance.placement.start}')


def _destruction(now, used, instance):
    """Return the change that destroys one instance.

    :raises ChangeRefused: if it is in use.
    """
    if instance.placement in used:
        raise _refused(now, f'{_named(now, instance)} is in use: '
                       + used[instance.placement])
    return plan.keeping_others(now, now.mig, used, destroy=(instance,))


def _compute(asked, profile):
    """Return the slices of the requested compute instances."""
    if asked.compute is None:
        return (profile.slices,)
    if asked.compute == '0':
        return ()
    if not _SIZES.fullmatch(asked.compute):
        raise exception.InvalidValue(
            what='--compute', value=asked.compute,
            expected='expected numbers of slices, such as 1,2')
    sizes = tuple(sorted(map(int, asked.compute.split(',')), reverse=True))
    if sum(sizes) > profile.slices:
        raise exception.InvalidValue(
            what='--compute', value=asked.compute,
            expected=f'{profile.name} has {profile.slices} compute slice(s)')
    return sizes


def _refused(gpu: model.Gpu, reason: str) -> exception.ChangeRefused:
    return exception.ChangeRefused(gpu=gpu.address, reason=reason)
