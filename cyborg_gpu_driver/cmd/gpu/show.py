# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu gpu list``, ``gpu show`` and ``gpu map``."""

from __future__ import annotations

import collections
import os

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import gpu_map
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
    """Show one GPU, with a picture of the slices in use.

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

    def produce_output(self, parsed_args, column_names, data):
        result = super().produce_output(parsed_args, column_names, data)
        if parsed_args.formatter == 'table':
            self._draw(self.app.view.gpu(parsed_args.gpu))
        return result

    def _draw(self, gpu):
        view = self.app.view
        self.app.stdout.write('\n'.join(gpu_map.lines(
            [_tile(view, gpu)],
            gpu_map.pens_for(getattr(self.app.stdout, 'encoding', None)),
            gpu_map.TILE)) + '\n')


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

_COLOURS = {'bound': '36', 'created': '33', 'free': '32',
            'passthrough': '32', 'blocked': '2', 'off': '2', 'unread': '31'}
"""Parameters of the escape sequence SGR (ECMA-48, 8.3.117)."""


class MapGpu(output.Lister):
    """Draw the layouts of all GPUs of this host side by side.

    A box is a GPU instance with its profile and the attach handle that has
    it, or a unit of memory that is free or in which nothing can be created
    now. GPUs without MIG are one box. Other formats and --long list the
    boxes, with the handles in full.
    """

    def take_action(self, parsed_args):
        view = self.app.view
        view.explain()
        self._tiles = [_tile(view, gpu) for gpu in view.host.gpus]
        return _MAP_NAMES, [row for tile in self._tiles for row in _rows(tile)]

    def produce_output(self, parsed_args, column_names, data):
        if (parsed_args.formatter != 'table' or parsed_args.long
                or parsed_args.columns):
            return super().produce_output(parsed_args, column_names, data)
        stdout = self.app.stdout
        pens = gpu_map.pens_for(getattr(stdout, 'encoding', None))
        # Any value of NO_COLOR disables colors: https://no-color.org
        coloured = stdout.isatty() and not os.environ.get('NO_COLOR')
        for line in gpu_map.lines(
                self._tiles, pens,
                output.line_width(parsed_args.max_width, stdout),
                (lambda text, state: f'\x1b[{_COLOURS[state]}m{text}\x1b[0m')
                if coloured else lambda text, _state: text):
            stdout.write(line + '\n')
        return 0


_MAP_NAMES = ('index', 'address', 'model', 'mode', 'roles', 'start', 'size',
              'state', 'profile', 'id', 'handles', 'health')


def _tile(view, gpu):
    return gpu_map.tile(
        gpu, choice.index(view.host, gpu), view.mode(gpu),
        [(entry.handle, entry.function, entry.placement)
         for entry in view.claims(gpu)],
        view.roles(gpu))


def _rows(tile):
    for box in tile.boxes:
        place = box.placement
        yield (output.Optional(tile.index), str(tile.gpu.address),
               output.Optional(tile.gpu.model),
               output.Optional(tile.mode and tile.mode.value),
               output.Names(role.value for role in tile.roles),
               output.Optional(place and place.start),
               output.Optional(place and place.size), box.state.value,
               output.Optional(box.name), output.Optional(box.instance_id),
               output.Names(box.handles), condition.state(tile.gpu))
