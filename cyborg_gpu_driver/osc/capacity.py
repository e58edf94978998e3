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

"""``openstack gpu capacity``."""

from __future__ import annotations

from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import state
from cyborg_gpu_driver.cloud.profiles import capacity
from cyborg_gpu_driver.cloud.profiles import resources
from cyborg_gpu_driver.osc import base

_DEVICE_PROFILE = 'device profile'
_GPU_PROFILE = 'gpu profile'


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
            rooms = capacity.by_host(groups, usable)
            if parsed_args.by_host:
                rows += [(name, kind, host, *_room(room))
                         for host, room in rooms.items()]
            else:
                rows.append((name, kind, *_room(capacity.together(
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
