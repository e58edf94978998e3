# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu list``, ``show``, ``capacity`` and ``server show``."""

from __future__ import annotations

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
_GPU_PROFILE = 'profile'


class Profiles(cliff_columns.FormattableColumn):
    """What a GPU offers: a line for each profile, all data for programs."""

    def human_readable(self) -> str:
        return '\n'.join(f'{offer.label}: {offer.free} of {offer.total} free'
                         for offer in self._value)

    def machine_readable(self) -> list[dict]:
        return [{
            'profile': offer.label, 'resource_class': offer.resource_class,
            'provider': offer.uuid, 'total': offer.total, 'used': offer.used,
            'reserved': offer.reserved, 'free': offer.free}
            for offer in self._value]


class Cordons(cliff_columns.FormattableColumn):
    """Cordons: a line for each, all data for programs."""

    def human_readable(self) -> str:
        return '\n'.join(map(str, self._value))

    def machine_readable(self) -> list[dict]:
        return list(map(cordon.plain, self._value))


class ListGpu(base.Lister):
    """List the GPUs of the cloud, or of a compute node.

    A GPU is usable if Nova can start servers with accelerators on its host:
    the host has the trait COMPUTE_ACCELERATORS, and its nova-compute is
    enabled and up.
    """

    brief = ('Host', 'GPU', 'Model', 'Mode', 'Free', 'Problems')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', metavar='HOST',
                            help='list only the GPUs of this compute node')
        return parser

    def take_action(self, parsed_args):
        return (('Host', 'GPU', 'Model', 'Mode', 'NUMA Node', 'Free',
                 'Problems', 'Usable', 'Service'),
                [_row(host, gpu) for host in hosts.read(
                    self.cloud, parsed_args.host, base.say,
                    base.show_progress) for gpu in host.gpus])


class ShowGpu(base.ShowOne):
    """Show a GPU of the cloud and its free capacity."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        base.add_gpu(parser)
        return parser

    def take_action(self, parsed_args):
        host, (gpu,) = hosts.find(self.cloud, parsed_args.host,
                                  parsed_args.gpu, base.say)
        service = host.service
        return zip(*(
            ('host', host.name), ('gpu', gpu.address),
            ('model', output.Optional(gpu.model)),
            ('mode', output.Optional(gpu.mode)),
            ('roles', output.Names(gpu.roles)),
            ('numa_node', output.Optional(gpu.numa)),
            ('profiles', Profiles(gpu.offers)),
            ('unhealthy', output.Names(gpu.conditions)),
            ('cordons', Cordons(gpu.cordons)),
            ('usable', host.usable), ('accelerators', host.accelerators),
            ('service', output.Optional(_service(service))),
            ('disabled_reason', output.Optional(
                service.reason or None if service else None)),
            ('provider', host.root),
            ('device', output.Optional(gpu.device and gpu.device.uuid))))


def _row(host, gpu):
    return (
        host.name, gpu.address, output.Optional(gpu.model),
        output.Optional(gpu.mode), output.Optional(gpu.numa),
        output.Counts({offer.label: offer.free for offer in gpu.offers}),
        output.Names([*gpu.conditions, *(['cordoned'] * bool(gpu.cordons)),
                      *([] if host.usable else ['host not usable'])]),
        host.usable, output.Optional(_service(host.service)))


def _service(service: facts.Service | None) -> str | None:
    if service is None:
        return None
    return (('up' if service.up else 'down') + ', '
            + ('enabled' if service.enabled else 'disabled'))


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
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            '--profile', metavar='PROFILE',
            help='show only this profile, as "gpu profile list" shows it')
        which.add_argument(
            '--device-profile', metavar='DEVICE_PROFILE',
            help='show only this device profile')
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
        for kind, name in ((_GPU_PROFILE, parsed_args.profile),
                           (_DEVICE_PROFILE, parsed_args.device_profile)):
            if name is not None:
                asked = [item for item in asked if item[:2] == (name, kind)]
                if not asked:
                    raise self.cloud.error(f'there is no {kind} {name}')
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
    that carries it. Only the role admin sees servers of other projects, and
    the data that Placement has of the GPU.
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
