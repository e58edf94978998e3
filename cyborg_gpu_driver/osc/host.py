# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu list``, ``show`` and ``server show``."""

from __future__ import annotations

from cliff import columns as cliff_columns

from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.osc import base


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
            ('cordons', output.Names(map(str, gpu.cordons))),
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
