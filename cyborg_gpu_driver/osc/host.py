# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu host list|show``."""

from __future__ import annotations

import collections

from cliff import columns as cliff_columns

from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base
from cyborg_gpu_driver.partition import cordon

_DEVICE_PROFILE = 'device profile'
_GPU_PROFILE = 'gpu profile'


class Gpus(cliff_columns.FormattableColumn):
    """GPUs of a host: a line for each in a table, all data for programs."""

    def human_readable(self) -> str:
        return '\n'.join(
            f'{gpu.address} {gpu.mode or "?"}'
            + (f' ({"/".join(gpu.roles)})' if gpu.roles else '')
            + f' {gpu.model or "?"}'
            + ('' if gpu.numa is None else f' NUMA {gpu.numa}') + ': '
            + ', '.join(f'{offer.label} {offer.free} of {offer.total} free'
                        for offer in gpu.offers)
            + ''.join(f'; unhealthy: {reason}' for reason in gpu.conditions)
            + ''.join(f'; {item}' for item in gpu.cordons)
            for gpu in self._value)

    def machine_readable(self) -> list[dict]:
        return [{
            'address': gpu.address, 'mode': gpu.mode,
            'roles': list(gpu.roles), 'model': gpu.model,
            'numa_node': None if gpu.numa is None else int(gpu.numa),
            'unhealthy': list(gpu.conditions),
            'cordons': list(map(cordon.plain, gpu.cordons)),
            'profiles': [{
                'profile': offer.label,
                'resource_class': offer.resource_class,
                'provider': offer.uuid, 'total': offer.total,
                'used': offer.used, 'reserved': offer.reserved,
                'free': offer.free} for offer in gpu.offers],
        } for gpu in self._value]


class ListHost(base.Lister):
    """List the compute nodes that have GPUs.

    A host is usable if Nova can start servers with accelerators on it: the
    host has the trait COMPUTE_ACCELERATORS, and its nova-compute is enabled
    and up.
    """

    brief = ('Host', 'Usable', 'GPUs', 'Models', 'Free', 'Unhealthy')

    def take_action(self, parsed_args):
        return (('Host', 'Usable', 'Service', 'Accelerators', 'GPUs', 'Models',
                 'Modes', 'Free', 'Unhealthy', 'Cyborg Devices'),
                [_row(host) for host in hosts.read(
                    self.cloud, complain=base.say,
                    progress=base.show_progress)])


class ShowHost(base.ShowOne):
    """Show the GPUs of a compute node and their free capacity."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('host', metavar='HOST',
                            help='name of the host, as "gpu host list" shows '
                                 'it')
        return parser

    def take_action(self, parsed_args):
        found = hosts.read(self.cloud, parsed_args.host, base.say,
                           base.show_progress)
        if not found:
            raise self.cloud.error(
                f'Placement has no GPU on host {parsed_args.host}; "openstack '
                'gpu host list" shows the hosts')
        host = found[0]
        service = host.service
        return zip(*(
            ('host', host.name), ('provider', host.root),
            ('usable', host.usable), ('accelerators', host.accelerators),
            ('enabled', host.enabled),
            ('service', output.Optional(_service(service))),
            ('disabled_reason', output.Optional(
                service.reason or None if service else None)),
            ('gpus', Gpus(host.gpus)),
            ('cyborg_devices', output.Optional(None)
             if host.devices is None else output.Names(host.devices))))


def _row(host):
    free: collections.Counter[str] = collections.Counter()
    for offer in host.providers:
        free[offer.label] += offer.free
    return (
        host.name, host.usable, output.Optional(_service(host.service)),
        host.accelerators, len(host.gpus),
        output.Names(_distinct(gpu.model for gpu in host.gpus)),
        output.Names(_distinct(gpu.mode for gpu in host.gpus)),
        output.Counts(free),
        output.Names([f'{gpu.address} {reason}' for gpu in host.gpus
                      for reason in gpu.conditions]),
        output.Optional(None if host.devices is None
                        else len(host.devices)))


def _service(service: facts.Service | None) -> str | None:
    if service is None:
        return None
    return (('up' if service.up else 'down') + ', '
            + ('enabled' if service.enabled else 'disabled'))


def _distinct(values):
    return sorted({value for value in values if value is not None})


class ShowCapacity(base.Lister):
    """List how many more servers the cloud's GPUs have room for now.

    Each number is for servers with the same request, created one after the
    other. Numbers of different profiles cannot be added, because profiles
    share GPUs. Hosts on which Nova starts no such server do not count. vCPUs,
    memory and disks are not considered. If a device profile asks for several
    kinds of GPU slices, there may be room for more ("at least").
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--profile', metavar='PROFILE',
            help='show only this device profile or GPU profile')
        parser.add_argument('--by-host', action='store_true',
                            help='show a row for each host')
        return parser

    def take_action(self, parsed_args):
        found = hosts.read(self.cloud, complain=base.say,
                           progress=base.show_progress)
        usable = [offer for host in found if host.usable
                  for offer in host.providers]
        asked = self._asked(
            [offer for host in found for offer in host.providers])
        if parsed_args.profile is not None:
            asked = [item for item in asked if item[0] == parsed_args.profile]
            if not asked:
                raise self.cloud.error(
                    'there is neither a device profile nor a GPU profile '
                    f'named {parsed_args.profile}')
        columns: tuple[str, ...] = (
            'Profile', 'Kind', 'Host', 'Servers', 'Count')
        rows = []
        for name, kind, groups in asked:
            rooms = hosts.room_by_host(groups, usable)
            if parsed_args.by_host:
                rows += [(name, kind, host, *_room(room))
                         for host, room in rooms.items()]
            else:
                rows.append((name, kind, *_room(hosts.total_room(
                    rooms.values()))))
        if not parsed_args.by_host:
            columns = tuple(name for name in columns if name != 'Host')
        return columns, rows

    def _asked(self, offers):
        """Return (name, kind, groups) of all device and GPU profiles."""
        classes = {offer.label: offer.resource_class for offer in offers
                   if offer.resource_class is not None}
        profiles = [existing.item for existing in state.profiles(self.cloud)]
        return [(item.name, _DEVICE_PROFILE, item.groups)
                for item in profiles
                if isinstance(item, resources.DeviceProfile)] + [
            (label, _GPU_PROFILE, (resources.group(classes[label]),))
            for label in sorted(classes)]


def _room(room):
    return room.servers, 'exact' if room.exact else 'at least'


class ShowServer(base.Lister):
    """Show the accelerators of a server and their location.

    The attach handle is the UUID of the mdev or the address of the PCI
    function of the server. The function is the GPU or the virtual function
    that carries it. Health is taken from the GPU's traits.
    """

    brief = ('State', 'Device Profile', 'Host', 'GPU', 'Profile', 'Health')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('server', metavar='SERVER', help='name or UUID of '
                                                             'the server')
        return parser

    def take_action(self, parsed_args):
        server = nova.find_server(self.cloud, parsed_args.server)
        return (('ARQ', 'State', 'Device Profile', 'Host', 'GPU', 'Profile',
                 'Handle Type', 'Handle', 'Function', 'Model', 'NUMA Node',
                 'Health'),
                [_accelerator_row(*one)
                 for one in nova.accelerators(self.cloud, server)])


def _accelerator_row(request, provider):
    where: tuple[str | int | None, ...] = (None,) * 5
    if provider is not None:
        where = (provider.gpu, provider.label, provider.fact('MODEL'),
                 provider.numa_node, ', '.join(provider.conditions) or 'ok')
    gpu, label, model, numa, health = map(output.Optional, where)
    kind, handle, function = map(output.Optional, (
        request.attach_handle_type or None, request.handle, request.function))
    return (request.uuid, request.state, request.device_profile_name,
            output.Optional(request.hostname), gpu, label, kind, handle,
            function, model, numa, health)
