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

"""``cyborg-gpu gpu fabric``."""

from __future__ import annotations

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.fabric import reader

_NAMES = ('partition', 'state', 'count', 'gpus', 'module_ids', 'nvlinks',
          'line_rate_mbps', 'overlaps', 'owner')


class ListFabric(output.Lister):
    """List the NVSwitch partitions of this host.

    A partition is a set of GPUs that NVIDIA's fabric manager connects by
    NVLink. Partitions that share a GPU cannot be active at the same time. A
    GPU that is not bound to NVIDIA's driver is listed by its module ID, and by
    its address only in mode nvlink. The owner is the attach handle that a
    partition is active for.
    """

    brief = ('partition', 'state', 'count', 'gpus', 'nvlinks', 'owner')

    def take_action(self, parsed_args):
        view = self.app.view
        fabric = reader.read(view.platform, view.host)
        if fabric is None:
            raise exception.HostUnusable(
                reason='this machine has no NVSwitches')
        if fabric.problem:
            raise exception.HostUnusable(reason=fabric.problem)
        owners: dict = {}
        members: dict = {}
        for gpu in view.host.gpus:
            for entry in view.claims(gpu):
                owners.setdefault(entry.fabric_partition, entry.handle)
            known = view.records.peek(gpu.address).nvlink
            for group in known.groups if known else ():
                members[group.partition] = group.members
        return _NAMES, [_row(fabric, item, owners.get(item.partition_id),
                             members.get(item.partition_id))
                        for item in fabric.partitions]


def _row(fabric, partition, owner, members):
    first = partition.members[0] if partition.members else None
    known = first if partition.supported else None
    return (
        partition.partition_id, _state(partition), len(partition.members),
        output.Names(tuple(map(str, members or filter(
            None, map(fabric.gpu, partition.members))))),
        output.Structure(sorted(partition.physical_ids)),
        output.Optional(known.links if known else None),
        output.Optional(known.line_rate if known else None),
        output.Structure([
            other.partition_id for other in fabric.partitions
            if other is not partition and other.overlaps(partition)]),
        output.Optional(owner))


def _state(partition):
    if not partition.supported:
        return 'unsupported'
    return 'active' if partition.active else 'inactive'
