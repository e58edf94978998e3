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

"""``cyborg-gpu gpu list`` and ``gpu show``."""

from __future__ import annotations

import collections

from cliff import columns as cliff_columns

from cyborg_gpu_driver import moments
from cyborg_gpu_driver.cmd.output import columns
from cyborg_gpu_driver.cmd.output import table
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import picture
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.vgpu import types as vgpu_types


class Vgpus(cliff_columns.FormattableColumn):
    """vGPUs: one per line for people, with all known fields for programs."""

    def human_readable(self) -> str:
        return '\n'.join(f"{item['function']} {item['name']}"
                         for item in self._value)

    def machine_readable(self) -> list[dict]:
        return self._value


class ListGpu(table.Lister):
    """List the NVIDIA GPUs of this host."""

    brief = ('address', 'model', 'mode', 'partitions', 'health')

    def take_action(self, parsed_args):
        view = self.app.view
        view.explain()
        return _NAMES, [_row(view, gpu) for gpu in view.host.gpus]


_NAMES = ('index', 'address', 'uuid', 'model', 'mode', 'roles', 'numa_node',
          'memory_mib', 'driver', 'vgpu_framework', 'partitions', 'health',
          'cordons')


def _row(view, gpu):
    return (
        columns.Optional(choice.index(view.host, gpu)), str(gpu.address),
        columns.Optional(gpu.uuid), columns.Optional(gpu.model),
        _mode(view, gpu), _roles(view, gpu), columns.Optional(gpu.numa_node),
        columns.Optional(gpu.memory_mib), columns.Optional(gpu.driver),
        gpu.framework.value, columns.Counts(partitions(gpu)),
        condition.state(gpu), _cordons(view, gpu))


def _cordons(view, gpu):
    """Return the cordons: who cordoned the GPU, since when and why."""
    return columns.Names(map(str, view.cordons_of(gpu)))


def _mode(view, gpu):
    mode = view.mode(gpu)
    return columns.Optional(mode and mode.value)


def _roles(view, gpu):
    """Return the roles that a GPU in mode auto can have."""
    return columns.Names(role.value for role in view.roles(gpu))


class ShowGpu(table.ShowOne):
    """Show one GPU, with a picture of the slices in use."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument('gpu', metavar='GPU',
                            help=f'the GPU, by {choice.WAYS}')
        return parser

    def take_action(self, parsed_args):
        view = self.app.view
        gpu = view.gpu(parsed_args.gpu)
        names, values = zip(*_facts(gpu, _mode(view, gpu)),
                            ('roles', _roles(view, gpu)),
                            ('cordons', _cordons(view, gpu)))
        return names, values

    def produce_output(self, parsed_args, column_names, data):
        result = super().produce_output(parsed_args, column_names, data)
        if parsed_args.formatter == 'table':
            self._draw(self.app.view.gpu(parsed_args.gpu))
        return result

    def _draw(self, gpu):
        stdout = self.app.stdout
        pens = picture.pens_for(getattr(stdout, 'encoding', None))
        owners = {entry.placement: entry.handle
                  for entry in self.app.view.entries(gpu)
                  if entry.placement is not None}
        for line in picture.lines(gpu, owners, pens):
            stdout.write(line + '\n')


def partitions(gpu: model.Gpu) -> collections.Counter:
    """Return the number of instances or vGPUs of each kind on the GPU.

    A vGPU on a GPU instance is not counted in addition to its instance.
    """
    if gpu.mig is not None and gpu.mig.enabled:
        return collections.Counter(
            spec.profile_name(gpu.mig, item.profile_id)
            for item in gpu.mig.instances)
    types = vgpu_types.by_id(gpu)
    return collections.Counter(
        vgpu_types.name(types, vgpu.type_id) for vgpu in gpu.vgpus)


def _facts(gpu, mode):
    yield 'address', str(gpu.address)
    yield 'pci_id', f'{gpu.vendor_id}:{gpu.device_id}'
    yield 'pci_class', gpu.class_code
    for name in ('model', 'architecture', 'uuid', 'serial', 'memory_mib',
                 'numa_node', 'iommu_group', 'driver'):
        yield name, columns.Optional(getattr(gpu, name))
    yield 'mode', mode
    yield 'visible_to_nvml', gpu.visible_to_nvml
    yield 'told_at', columns.Optional(
        gpu.told_at and moments.iso(gpu.told_at))
    yield 'processes', gpu.processes
    yield 'sriov_numvfs', gpu.sriov_numvfs
    yield 'sriov_totalvfs', gpu.sriov_totalvfs
    yield 'physical_function', columns.Optional(
        str(gpu.physfn) if gpu.physfn else None)
    yield 'nvlink_peers', columns.Names(map(str, gpu.nvlink_peers))
    yield from _mig_facts(gpu)
    yield from _vgpu_facts(gpu)
    yield 'partitions', columns.Counts(partitions(gpu))
    yield 'health', condition.state(gpu)
    yield 'problems', columns.Names(gpu.problems)


def _mig_facts(gpu):
    yield 'mig_mode', columns.Optional(
        gpu.mig and ('enabled' if gpu.mig.enabled else 'disabled'))
    yield 'mig_mode_pending', columns.Optional(
        gpu.mig and ('enabled' if gpu.mig.pending else 'disabled'))
    profiles = gpu.mig.profiles if gpu.mig else ()
    yield 'mig_profiles', columns.Structure([
        {'id': item.profile_id, 'name': item.name,
         'slices': item.slices, 'memory_mib': item.memory_mib,
         'max_instances': item.max_instances,
         'placements': [{'start': place.start, 'size': place.size}
                        for place in item.placements]}
        for item in profiles])
    instances = gpu.mig.instances if gpu.mig else ()
    yield 'mig_instances', columns.Structure([
        {'id': item.instance_id,
         'profile': spec.profile_name(gpu.mig, item.profile_id),
         'start': item.placement.start, 'size': item.placement.size,
         'mig_uuids': list(item.mig_uuids),
         **dict(_scheduler_state(item.scheduler))} for item in instances])


def _vgpu_facts(gpu):
    yield 'vgpu_framework', gpu.framework.value
    yield 'vgpu_mixed_sizes', columns.Optional(
        None if gpu.mixed_sizes is None
        else 'on' if gpu.mixed_sizes else 'off')
    yield from _scheduler_facts(gpu.scheduler)
    types = vgpu_types.by_id(gpu)
    yield 'vgpus', Vgpus([
        {'name': vgpu_types.name(types, vgpu.type_id), 'type': vgpu.type_id,
         'function': str(vgpu.function), 'uuid': vgpu.uuid,
         'gpu_instance_id': vgpu.instance_id} for vgpu in gpu.vgpus])
    yield 'mdevs', columns.Structure([
        {'uuid': mdev.uuid, 'parent': str(mdev.parent),
         'type': mdev.type_id, 'name': vgpu_types.name(types, mdev.type_id)}
        for mdev in gpu.all_mdevs])
    yield 'virtual_functions', columns.Structure([
        {'address': str(item.address), 'index': item.index,
         'driver': item.driver, 'iommu_group': item.iommu_group,
         'current_type': item.current_vgpu_type,
         'creatable_types': _creatable(item),
         'gpu_instance_id': item.gpu_instance_id,
         'placement_id': item.placement_id,
         **({'problem': item.problem} if item.problem else {})}
        for item in gpu.vfs])
    yield 'vgpu_types', columns.Structure([
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
    yield name, columns.Optional(policy)
    yield 'vgpu_schedulers', columns.Names(item.value for item in supported)
    yield slice_name, columns.Optional(time_slice)


def _scheduler_state(scheduler):
    """Yield the active scheduler of a GPU or GPU instance; None if unknown.
    """
    scheduler = scheduler or model.Scheduler(None)
    yield 'vgpu_scheduler', scheduler.policy and scheduler.policy.value
    yield 'vgpu_time_slice_ns', scheduler.time_slice


def _creatable(function):
    """Return the numbers of the types that a function can create.

    None if they are unknown.
    """
    if function.creatable_types is not None:
        return list(function.creatable_types)
    if (not function.mdev_types
            or any(item.available is None for item in function.mdev_types)):
        return None
    return [int(item.type_id.rpartition('-')[2])
            for item in function.mdev_types if item.available]
