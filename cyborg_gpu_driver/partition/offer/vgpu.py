# SPDX-License-Identifier: Apache-2.0

"""What a GPU offers as time-sliced vGPUs. Pure.

Without mixed sizes the types of one GPU exclude each other. On a GPU that is
its own parent (Turing), a vGPU leaves room only for its own type. On virtual
functions it leaves room for all types of its framebuffer size, which then
share the number that fits. With mixed sizes a type fits wherever one of its
placements is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import vgpu_type
from cyborg_gpu_driver.partition.offer import offer


def offers(gpu: model.Gpu, policy: policies.Policy
           ) -> Iterator[offer.Offer]:
    """Yield one offer for each type that the policy names."""
    names = policy.vgpu_types
    if not names:
        yield offer.nothing(gpu, policy, policy.mode.value,
                            f'policy {policy.name} has no vgpu_types')
        return
    types = vgpu_type.of_mode(gpu, policy.mode)
    enabled = [entry for entry in types if any(map(entry.is_called, names))]
    demands = [vgpu_type.Demand(_most(policy, entry),
                                _group(policy, entry, enabled))
               for entry in enabled]
    parents = vgpu_type.assign(gpu.vfs, demands)
    for entry, demand, own in zip(enabled, demands, parents, strict=True):
        # The total never depends on what is in use.
        total = len(own) if gpu.vfs else demand.total
        in_use = sum(vgpu.type_id == entry.mdev_type_id for vgpu in gpu.vgpus)
        yield offer.Offer(
            gpu=gpu.address, policy=policy.name, mode=policy.mode,
            profile=entry.name, total=total, in_use=in_use,
            creatable=max(0, min(total - in_use,
                                 _available(gpu, policy, entry, own))),
            vgpu_type_id=entry.mdev_type_id,
            parents=(gpu.address,) if _is_parent(gpu) else own,
            framework=gpu.framework, framebuffer_mib=entry.framebuffer_mib,
            isolated=policy.isolated,
            problem=_problem(gpu, policy, entry)
            or ('' if total else offer.no_function_left(policy)))
    for text in dict.fromkeys(names):
        if not any(entry.is_called(text) for entry in enabled):
            yield offer.nothing(gpu, policy, text,
                                vgpu_type.unknown(types, text))


def _is_parent(gpu: model.Gpu) -> bool:
    return gpu.framework is model.Framework.MDEV_PF


def _group(policy: policies.Policy, entry: model.VgpuType,
           enabled: Iterable[model.VgpuType]) -> str | None:
    """Return a key that the types that can be together on the GPU share.

    With mixed sizes these are all types, otherwise those of one
    framebuffer size.
    """
    if policy.mixed_sizes:
        return None
    return next(other.mdev_type_id for other in enabled
                if other is entry or other.is_as_large_as(entry))


def _most(policy: policies.Policy, entry: model.VgpuType) -> int:
    """Return how many fit on the GPU; 0 if no source says."""
    told = [vgpu_type.most(entry, policy)]
    if policy.mixed_sizes:
        told.append(len(entry.placements))
    return min(filter(None, told), default=0)


def _problem(gpu: model.Gpu, policy: policies.Policy, entry: model.VgpuType
             ) -> str:
    if gpu.mig is not None and gpu.mig.enabled:
        return 'MIG mode is on: time-sliced vGPUs need it off'
    found = offer.unreported(gpu, policy)
    if found:
        return found
    if not _most(policy, entry):
        return (f'neither NVML nor sysfs says how many {entry.name} fit: add '
                f'it to max_instances of policy {policy.name}')
    if policy.mixed_sizes and gpu.mixed_sizes is None:
        return ('this GPU does not support mixed sizes: set mixed_sizes to '
                'false')
    if policy.mixed_sizes and not gpu.mixed_sizes:
        return ('mixed-size mode is off; it will be turned on when the GPU is '
                'idle')
    if gpu.mixed_sizes and not policy.mixed_sizes:
        return ('mixed-size mode is on; it will be turned off when the GPU is '
                'idle')
    if policy.mixed_sizes and not entry.placements:
        return f'{entry.name} does not support other sizes on the same GPU'
    return ''


def _available(gpu: model.Gpu, policy: policies.Policy, entry: model.VgpuType,
               own: Sequence[model.PciAddress]) -> int:
    """Return how many more could be created beside the existing vGPUs."""
    if _is_parent(gpu):
        return _available_on_gpu(gpu, policy, entry)
    room = len(vgpu_type.empty(gpu, own, entry.mdev_type_id))
    if policy.mixed_sizes:
        return min(room, _free_places(gpu, entry))
    alike = {other.mdev_type_id for other in vgpu_type.types_of(gpu)
             if other.is_as_large_as(entry)}
    if any(vgpu.type_id not in alike for vgpu in gpu.vgpus):
        return 0
    fitting = entry.max_instances or _most(policy, entry)
    return min(room, fitting - len(gpu.vgpus))


def _available_on_gpu(gpu: model.Gpu, policy: policies.Policy,
                      entry: model.VgpuType) -> int:
    """Return what the kernel reports as available, or all if it was not read.

    Types exclude each other. This function checks that too, because the
    value that was read may be older than the mdevs.
    """
    if any(mdev.type_id != entry.mdev_type_id for mdev in gpu.all_mdevs):
        return 0
    known = next((mdev_type.available for mdev_type in gpu.mdev_types
                  if mdev_type.type_id == entry.mdev_type_id), None)
    return _most(policy, entry) if known is None else known


def _free_places(gpu: model.Gpu, entry: model.VgpuType) -> int:
    """Return how many placements are free; unread ones count as taken."""
    if entry.free_placements is not None:
        return len(entry.free_placements)
    return 0 if gpu.vgpus else len(entry.placements)
