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

"""``openstack gpu profile list``."""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import providers
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cloud.profiles import catalogue
from cyborg_gpu_driver.cloud.profiles import plan
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.osc import base

_KINDS = ('passthrough', 'vgpu', 'mig')


class ListProfile(base.Lister):
    """List what the cloud's GPUs offer, and how servers get it.

    Each row is a GPU profile: its hosts, its capacity, and the device profiles
    and flavors that ask for it. Profiles of one GPU exclude each other: the
    free capacity of a profile is available only until something else is
    created on the GPU.
    """

    brief = ('Profile', 'GPUs', 'Total', 'Used', 'Free', 'Device Profiles',
             'Flavors')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', metavar='HOST',
                            help='show only this compute node')
        parser.add_argument(
            '--model', metavar='MODEL',
            help='show only GPUs whose model name contains this text, such as '
                 'A100')
        parser.add_argument('--kind', choices=_KINDS, help='show only '
                                                           'profiles of this '
                                                           'kind')
        parser.add_argument('--numa', action='store_true',
                            help='show NUMA nodes among the traits')
        return parser

    def take_action(self, parsed_args):
        found = providers.read(self.cloud, progress=base.show_progress)
        device_profiles = [existing.item for existing
                           in state.profiles(self.cloud)]
        flavors = self._flavors()
        if not (parsed_args.host or parsed_args.model or parsed_args.kind):
            for text in plan.unoffered(device_profiles, found):
                base.say(text)
        return (('Profile', 'Resource Class', 'Traits', 'Hosts', 'GPUs',
                 'Total', 'Used', 'Reserved', 'Free', 'Device Profiles',
                 'Flavors'),
                [_row(entry, device_profiles, flavors)
                 for entry in catalogue.entries(
                     found, parsed_args.host, parsed_args.model,
                     parsed_args.kind, parsed_args.numa)])

    def _flavors(self):
        """Return flavors that name device profiles; None if Nova fails."""
        try:
            return [existing.item for existing
                    in state.flavors(self.cloud)]
        except exception.CloudError as error:
            base.say(f'The flavors are not known: {error}')
            return None


def _row(entry, device_profiles, flavors):
    asking = catalogue.asking(device_profiles, entry.resource_class)
    return (
        entry.label, entry.resource_class,
        columns.Names(entry.traits), columns.Names(entry.hosts), entry.gpus,
        entry.total, entry.used, entry.reserved, entry.free,
        columns.Names(asking),
        columns.Optional(None) if flavors is None
        else columns.Names(catalogue.naming(flavors, asking)))
