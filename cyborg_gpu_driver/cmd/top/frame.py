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


"""The data that ``cyborg-gpu top`` shows at one moment. Pure.

The functions convert snapshots and records to rows. The records hold the
owner of each part, so a GPU that cannot be read still shows its servers.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from cyborg_gpu_driver.cmd.top import load as loads
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import look
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition.vgpu import types as vgpu_types
from cyborg_gpu_driver.record import gpu as gpu_record


class Kind(enum.Enum):
    """What a row is about."""

    GPU = 'gpu'
    INSTANCE = 'gpu_instance'
    """A GPU instance, and the vGPU on it."""
    VGPU = 'vgpu'
    """A time-sliced vGPU."""
    PASSTHROUGH = 'passthrough'
    """A whole GPU that a server has."""


class Order(enum.Enum):
    """What the rows are sorted by."""

    GPU = 'gpu'
    SERVER = 'server'
    NAME = 'name'
    UTILIZATION = 'utilization'
    MEMORY = 'memory'

    @property
    def next(self) -> Order:
        """The order after this one; the first after the last."""
        known = list(Order)
        return known[(known.index(self) + 1) % len(known)]


@dataclasses.dataclass(frozen=True)
class Part:
    """A GPU instance, a vGPU or a whole GPU, with its holder."""

    kind: Kind
    name: str
    """Profile, vGPU type, or ``passthrough``."""
    state: str
    """``bound``, ``binding`` or ``unbinding`` for an attach handle;
    ``fixed`` for a fixed vGPU, and ``created`` if the records have no
    holder."""
    memory_mib: int | None = None
    placement: model.Placement | None = None
    instance_id: int | None = None
    function: model.PciAddress | None = None
    """PCI function that carries the vGPU."""
    handle: str | None = None
    """UUID of the attach handle."""
    server: str | None = None
    """UUID of the server, if this host knows it."""
    arq: str | None = None
    """UUID of the accelerator request, if this host knows it."""
    mdev: str | None = None
    """UUID of the mdev, if the vGPU is an mdev."""
    load: loads.Load = loads.UNKNOWN


@dataclasses.dataclass(frozen=True)
class Block:
    """One GPU and its parts."""

    gpu: model.Gpu
    index: int | None
    """Its number on this host; None if it has none."""
    mode: policy.Mode | None
    """Its mode under the policies; None if it has none now."""
    remarks: tuple[str, ...]
    """Other facts for the operator, in a few words each."""
    parts: tuple[Part, ...]
    load: loads.Load = loads.UNKNOWN


@dataclasses.dataclass(frozen=True)
class Frame:
    """The host at one moment."""

    hostname: str
    time: float
    """When the host was read, in seconds of the epoch."""
    blocks: tuple[Block, ...]
    messages: tuple[str, ...] = ()
    """Errors in reading the host, as text for the operator."""


def block(gpu: model.Gpu, index: int | None, mode: policy.Mode | None,
          record: gpu_record.GpuRecord, owners: Mapping[str, state.Owner],
          found: loads.Loads) -> Block:
    """Return the block of one GPU.

    :param owners: the known owners by attach handle.
    :param found: the loads of the GPU and its parts.
    """
    return Block(gpu, index, mode, tuple(_remarks(gpu, mode, record)),
                 tuple(_loaded(part, found)
                       for part in _parts(gpu, record, owners)), found.gpu())


def _loaded(part: Part, found: loads.Loads) -> Part:
    """Return a part with its load, and with the server that NVML knows."""
    load = found.mdev(part.mdev) if part.mdev else loads.UNKNOWN
    if load == loads.UNKNOWN and part.instance_id is not None:
        load = found.instance(part.instance_id)
    if load == loads.UNKNOWN and part.server:
        load = found.server(part.server)
    return dataclasses.replace(part, load=load,
                               server=part.server or load.server)


def ordered(blocks: Iterable[Block], order: Order) -> tuple[Block, ...]:
    """Sort the parts of each GPU, and the GPUs by their own value or by that
    of their first part.

    The busiest come first. Those without a value for the order come last.
    """
    if order is Order.GPU:
        return tuple(blocks)
    found = [dataclasses.replace(item, parts=tuple(sorted(
        item.parts, key=lambda part: _rank(part, order))))
        for item in blocks]
    return tuple(sorted(found, key=lambda item: min(
        _rank(part, order) for part in (item, *item.parts))))


def _rank(item: Block | Part, order: Order) -> tuple[bool, str | int]:
    """Return the sort key of a GPU or a part in an order."""
    if order in (Order.UTILIZATION, Order.MEMORY):
        busy = (item.load.percent if order is Order.UTILIZATION
                else item.load.memory_used_mib)
        return busy is None, -(busy or 0)
    if isinstance(item, Block):
        return True, ''
    value = (item.name if order is Order.NAME
             else item.server or item.handle)
    return value is None, value or ''


def _remarks(gpu: model.Gpu, mode: policy.Mode | None,
             record: gpu_record.GpuRecord) -> Iterator[str]:
    known = condition.state(gpu)
    if known not in (condition.OK, mode and mode.value):
        yield known
    if record.health and health.judge(record.health.conditions).is_unhealthy:
        yield 'unhealthy'
    if record.cordons:
        yield 'cordoned'
    if record.awaits_reset:
        yield 'waits for a reset'
    if record.change is not None:
        yield 'layout changes'
    free, _largest = look.slices(gpu.mig)
    if free:
        yield f'{free} slice{"s" if free > 1 else ""} free'
    if gpu.processes:
        yield f'{gpu.processes} process{"es" if gpu.processes > 1 else ""}'


def _parts(gpu: model.Gpu, record: gpu_record.GpuRecord,
           owners: Mapping[str, state.Owner]) -> Iterator[Part]:
    left = {claim.handle: claim for claim in record.claims}
    for live, claims in _live(gpu, record):
        for claim in claims:
            left.pop(claim.handle, None)
            yield _owned(live, claim, owners)
        if not claims:
            yield live
    for claim in left.values():
        # Not created yet, or on a GPU that cannot be read.
        kind = Kind.VGPU if claim.instance is None else Kind.INSTANCE
        yield _owned(Part(
            Kind.PASSTHROUGH if claim.members else kind, claim.profile, '',
            gpu.memory_mib if claim.members else None,
            placement=claim.placement, function=claim.function),
            claim, owners)
    tenancy = record.tenancy
    if tenancy is not None and tenancy.state is cleaning.State.USED:
        for server in tenancy.tenants:
            yield Part(Kind.PASSTHROUGH, policy.Mode.PASSTHROUGH.value,
                       gpu_record.Phase.BOUND.value, gpu.memory_mib,
                       function=gpu.address, server=server)


def _owned(part: Part, claim: gpu_record.Claim,
           owners: Mapping[str, state.Owner]) -> Part:
    owner = state.owner_of(claim, owners)
    return dataclasses.replace(
        part, state=claim.phase.value, function=claim.function,
        mdev=claim.vgpu.uuid, handle=claim.handle,
        server=owner.server if owner else None,
        arq=owner.arq if owner else None)


def _live(gpu: model.Gpu, record: gpu_record.GpuRecord
          ) -> Iterator[tuple[Part, list[gpu_record.Claim]]]:
    """Yield each part that exists on the GPU, with the claims on it."""
    if gpu.mig is not None and gpu.mig.enabled:
        for item in gpu.mig.instances:
            profile = gpu.mig.profile_by_id(item.profile_id)
            yield Part(
                Kind.INSTANCE,
                spec.profile_name(gpu.mig, item.profile_id),
                _state(spec.of(item) in record.fixed.instances),
                profile and profile.memory_mib, item.placement,
                item.instance_id), [
                    claim for claim in record.claims
                    if claim.instance == spec.of(item)]
        return
    types = vgpu_types.by_id(gpu)
    for vgpu in gpu.vgpus:
        known = types.get(vgpu.type_id)
        yield Part(
            Kind.VGPU, vgpu_types.name(types, vgpu.type_id),
            _state(vgpu.function in record.fixed.types),
            known and known.framebuffer_mib or None, function=vgpu.function,
            mdev=vgpu.uuid), [
                claim for claim in record.claims
                if claim.instance is None and vgpu == claim.live(
                    vgpu.instance_id)]


def _state(fixed: bool) -> str:
    return 'fixed' if fixed else 'created'
