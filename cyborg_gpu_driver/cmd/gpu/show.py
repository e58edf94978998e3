# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu gpu list``, ``gpu show`` and ``gpu map``."""

from __future__ import annotations

import collections
import itertools
import operator

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_type


class ListGpu(output.Lister):
    """List the NVIDIA GPUs of this host."""

    brief = ('index', 'address', 'model', 'mode', 'health')

    def take_action(self, parsed_args):
        view = self.app.view
        view.detail = False
        view.explain()
        return _NAMES, [_row(view, gpu) for gpu in view.host.gpus]


_NAMES = ('index', 'address', 'uuid', 'model', 'mode', 'roles', 'numa_node',
          'memory_mib', 'driver', 'vgpu_framework', 'partitions', 'health',
          'cordons')


def _row(view, gpu):
    return (
        output.Optional(choice.index(view.host, gpu)), str(gpu.address),
        output.Optional(gpu.uuid), output.Optional(gpu.model),
        _mode(view, gpu), _roles(view, gpu), output.Optional(gpu.numa_node),
        output.Optional(gpu.memory_mib), output.Optional(gpu.driver),
        gpu.framework.value, output.Counts(partitions(gpu)),
        condition.state(gpu), _cordons(view, gpu))


def _cordons(view, gpu):
    """Return the cordons: who cordoned the GPU, since when and why."""
    return output.Names(map(str, view.cordons_of(gpu)))


def _mode(view, gpu):
    mode = view.mode(gpu)
    return output.Optional(mode and mode.value)


def _roles(view, gpu):
    """Return the roles that a GPU in mode auto can have."""
    return output.Names(role.value for role in view.roles(gpu))


class ShowGpu(output.ShowOne):
    """Show one GPU.

    A fabric partition is a set of GPUs that NVIDIA's fabric manager connects
    by NVLink. Partitions that share a GPU cannot be active at the same time.
    The owner is the attach handle that a partition is active for.
    """

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('gpu', metavar='GPU',
                            help=f'the GPU, by {choice.WAYS}')
        return parser

    def take_action(self, parsed_args):
        view = self.app.view
        gpu = view.gpu(parsed_args.gpu)
        names, values = zip(*_facts(gpu, _mode(view, gpu)),
                            ('fabric_partitions', _fabric(view, gpu)),
                            ('roles', _roles(view, gpu)),
                            ('cordons', _cordons(view, gpu)))
        return names, values


def _fabric(view, gpu):
    """Return the NVSwitch partitions with a GPU, as far as they are known.

    The fabric manager names a GPU by its module id. A GPU that is not bound
    to NVIDIA's driver is found only by the records of mode nvlink.
    """
    # Other commands start faster without it.
    from cyborg_gpu_driver.host.fabric import reader
    fabric = reader.read(view.platform, view.host)
    if fabric is None or fabric.problem:
        if fabric is not None:
            output.say(f'NVSwitches: {fabric.problem}')
        return output.Structure(None)
    owners: dict = {}
    groups: dict = {}
    for other in view.host.gpus:
        for entry in view.claims(other):
            owners.setdefault(entry.fabric_partition, entry.handle)
        known = view.records.peek(other.address).nvlink
        for group in known.groups if known else ():
            groups[group.partition] = group.members
    rows = []
    for item in fabric.partitions:
        members = groups.get(item.partition_id) or tuple(filter(
            None, map(fabric.gpu, item.members)))
        if gpu.address in members:
            rows.append(_partition(fabric, item, members,
                                   owners.get(item.partition_id)))
    return output.Structure(rows, _partition_line)


def _partition(fabric, item, members, owner):
    first = item.members[0] if item.supported else None
    return {
        'partition': item.partition_id,
        'state': ('unsupported' if not item.supported
                  else 'active' if item.active else 'inactive'),
        'gpus': [*map(str, members)],
        'module_ids': sorted(item.physical_ids),
        'nvlinks': first and first.links,
        'line_rate_mbps': first and first.line_rate,
        'overlaps': [other.partition_id for other in fabric.partitions
                     if other is not item and other.overlaps(item)],
        'owner': owner}


def _partition_line(item):
    return (f"{item['partition']} {item['state']}: modules "
            + ', '.join(map(str, item['module_ids']))
            + (f" for {item['owner']}" if item['owner'] else ''))


def partitions(gpu: model.Gpu) -> collections.Counter:
    """Return the number of instances or vGPUs of each kind on the GPU.

    A vGPU on a GPU instance is not counted in addition to its instance.
    """
    if gpu.mig is not None and gpu.mig.enabled:
        return collections.Counter(
            spec.profile_name(gpu.mig, item.profile_id)
            for item in gpu.mig.instances)
    types = vgpu_type.by_id(gpu)
    return collections.Counter(
        vgpu_type.name(types, vgpu.type_id) for vgpu in gpu.vgpus)


def _facts(gpu, mode):
    yield 'address', str(gpu.address)
    yield 'pci_id', f'{gpu.vendor_id}:{gpu.device_id}'
    yield 'pci_class', gpu.class_code
    for name in ('model', 'architecture', 'uuid', 'serial', 'memory_mib',
                 'numa_node', 'iommu_group', 'driver'):
        yield name, output.Optional(getattr(gpu, name))
    yield 'mode', mode
    yield 'visible_to_nvml', gpu.visible_to_nvml
    yield 'recorded_at', output.Optional(
        gpu.recorded_at and moments.iso(gpu.recorded_at))
    yield 'processes', gpu.processes
    yield 'sriov_numvfs', gpu.sriov_numvfs
    yield 'sriov_totalvfs', gpu.sriov_totalvfs
    yield 'physical_function', output.Optional(
        str(gpu.physfn) if gpu.physfn else None)
    yield 'nvlink_peers', output.Names(map(str, gpu.nvlink_peers))
    yield from _mig_facts(gpu)
    yield from _vgpu_facts(gpu)
    yield 'partitions', output.Counts(partitions(gpu))
    yield 'health', condition.state(gpu)
    yield 'problems', output.Names(gpu.problems)


def _mig_facts(gpu):
    yield 'mig_mode', output.Optional(
        gpu.mig and ('enabled' if gpu.mig.enabled else 'disabled'))
    yield 'mig_mode_pending', output.Optional(
        gpu.mig and ('enabled' if gpu.mig.pending else 'disabled'))
    profiles = gpu.mig.profiles if gpu.mig else ()
    yield 'mig_profiles', output.Structure([
        {'id': item.profile_id, 'name': item.name,
         'slices': item.slices, 'memory_mib': item.memory_mib,
         'max_instances': item.max_instances,
         'placements': [{'start': place.start, 'size': place.size}
                        for place in item.placements]}
        for item in profiles])
    instances = gpu.mig.instances if gpu.mig else ()
    yield 'mig_instances', output.Structure([
        {'id': item.instance_id,
         'profile': spec.profile_name(gpu.mig, item.profile_id),
         'start': item.placement.start, 'size': item.placement.size,
         'mig_uuids': list(item.mig_uuids),
         **dict(_scheduler_state(item.scheduler))} for item in instances],
        lambda item: f"{item['id']} {item['profile']} at {item['start']}:"
                     f"{item['size']}")


def _vgpu_facts(gpu):
    yield 'vgpu_framework', gpu.framework.value
    yield 'vgpu_mixed_sizes', output.Optional(
        None if gpu.mixed_sizes is None
        else 'on' if gpu.mixed_sizes else 'off')
    yield from _scheduler_facts(gpu.scheduler)
    types = vgpu_type.by_id(gpu)
    yield 'vgpus', output.Structure([
        {'name': vgpu_type.name(types, vgpu.type_id), 'type': vgpu.type_id,
         'function': str(vgpu.function), 'uuid': vgpu.uuid,
         'gpu_instance_id': vgpu.instance_id} for vgpu in gpu.vgpus],
        lambda item: f"{item['function']} {item['name']}")
    yield 'mdevs', output.Structure([
        {'uuid': mdev.uuid, 'parent': str(mdev.parent),
         'type': mdev.type_id, 'name': vgpu_type.name(types, mdev.type_id)}
        for mdev in gpu.all_mdevs])
    yield 'virtual_functions', output.Structure([
        {'address': str(item.address), 'index': item.index,
         'driver': item.driver, 'iommu_group': item.iommu_group,
         'current_type': item.current_vgpu_type,
         'creatable_types': _creatable(item),
         'gpu_instance_id': item.gpu_instance_id,
         'placement_id': item.placement_id,
         **({'problem': item.problem} if item.problem else {})}
        for item in gpu.vfs])
    yield 'vgpu_types', output.Structure([
        {'type': item.mdev_type_id, 'name': item.name,
         'framebuffer_mib': item.framebuffer_mib,
         'max_instances': item.max_instances,
         'gi_profile_id': item.gi_profile_id,
         'per_instance': item.per_instance,
         'placement_size': item.placement_size,
         'placements': list(item.placements),
         'free_placements': None if item.free_placements is None
         else list(item.free_placements)} for item in gpu.vgpu_types])


def _scheduler_facts(scheduler):
    supported = scheduler.supported if scheduler else ()
    (name, policy), (slice_name, time_slice) = _scheduler_state(scheduler)
    yield name, output.Optional(policy)
    yield 'vgpu_schedulers', output.Names(item.value for item in supported)
    yield slice_name, output.Optional(time_slice)


def _scheduler_state(scheduler):
    """Yield the active scheduler of a GPU or GPU instance; None if unknown.
    """
    scheduler = scheduler or model.Scheduler(None)
    yield 'vgpu_scheduler', scheduler.policy and scheduler.policy.value
    yield 'vgpu_time_slice_ns', scheduler.time_slice


def _creatable(function):
    """Return the types that a function can create; None if unknown."""
    if function.creatable_types is not None:
        return list(function.creatable_types)
    if (not function.mdev_types
            or any(item.available is None for item in function.mdev_types)):
        return None
    return [int(item.type_id.rpartition('-')[2])
            for item in function.mdev_types if item.available]


# ``cyborg-gpu gpu map``.

class MapGpu(output.Lister):
    """List what is in use on all GPUs of this host, by whom, and what is free.

    A part is a GPU instance or vGPU, with the start of the attach handle
    that has it, or a range of memory units that is free or blocked: nothing
    can be created there now. Other formats have the handles in full.
    """

    brief = ('index', 'address', 'mode', 'parts')

    def take_action(self, parsed_args):
        view = self.app.view
        view.explain()
        return _MAP_NAMES, [_map_row(view, gpu) for gpu in view.host.gpus]


_MAP_NAMES = ('index', 'address', 'model', 'mode', 'roles', 'health', 'parts')
_SHORT = 8
"""Characters of an attach handle that people see."""


def _map_row(view, gpu):
    return (output.Optional(choice.index(view.host, gpu)), str(gpu.address),
            output.Optional(gpu.model), _mode(view, gpu), _roles(view, gpu),
            condition.state(gpu),
            output.Structure(parts(gpu, view.claims(gpu)), _part_line))


def parts(gpu: model.Gpu, claims) -> list[dict]:
    """Return the instances, vGPUs and free units of a GPU, by their place."""
    if gpu.mig is not None and gpu.mig.enabled:
        found = [_part('created', spec.profile_name(gpu.mig, item.profile_id),
                       (entry.handle for entry in claims
                        if entry.placement == item.placement),
                       item.placement, item.instance_id)
                 for item in gpu.mig.instances]
        return sorted([*found, *_gaps(gpu.mig)],
                      key=operator.itemgetter('start'))
    types = vgpu_type.by_id(gpu)
    return [_part('created', vgpu_type.name(types, vgpu.type_id), (
        entry.handle for entry in claims
        if (entry.handle == vgpu.uuid if vgpu.uuid is not None else
            entry.function == vgpu.function and entry.placement is None)))
        for vgpu in gpu.vgpus]


def _gaps(mig):
    """Yield the ranges of units of a GPU on which no instance is."""
    grid = geometry.Geometry(mig.profiles)
    occupancy = grid.occupancy_of(mig.instances)
    reachable = {unit for profile in grid.profiles
                 for place in grid.free_placements(occupancy, profile)
                 for unit in range(place.start, place.start + place.size)}
    states = ['' if occupancy.mask >> unit & 1
              else 'free' if unit in reachable else 'blocked'
              for unit in range(grid.units)]
    start = 0
    for state, units in itertools.groupby(states):
        size = len([*units])
        if state:
            yield _part(state, None, (), model.Placement(start, size))
        start += size


def _part(state, profile, handles, place=None, number=None):
    handles = [*handles]
    return {'start': place and place.start, 'size': place and place.size,
            'state': 'bound' if handles else state, 'profile': profile,
            'id': number, 'handles': handles}


def _part_line(item):
    place = ('' if item['start'] is None
             else f"{item['start']}:{item['size']} ")
    return ' '.join((place + (item['profile'] or item['state']), *(
        f'*{handle[:_SHORT]}' for handle in item['handles'])))
