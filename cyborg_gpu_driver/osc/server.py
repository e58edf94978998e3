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

"""``openstack gpu server show``."""

from __future__ import annotations

from cyborg_gpu_driver.cloud import servers
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.osc import base


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
        server = servers.find(self.cloud, parsed_args.server)
        return (('ARQ', 'State', 'Device Profile', 'Host', 'GPU', 'Profile',
                 'Handle Type', 'Handle', 'Function', 'Model', 'NUMA Node',
                 'Health'),
                [_row(one) for one in servers.read(self.cloud, server)])


def _row(one):
    provider = one.provider
    where: tuple[str | int | None, ...] = (None,) * 5
    if provider is not None:
        where = (provider.gpu, provider.label, provider.fact('MODEL'),
                 provider.numa_node, ', '.join(provider.conditions) or 'ok')
    gpu, label, model, numa, health = map(columns.Optional, where)
    return (one.arq, one.state, one.device_profile,
            columns.Optional(one.host), gpu, label,
            columns.Optional(one.handle_type), columns.Optional(one.handle),
            columns.Optional(one.function), model, numa, health)
