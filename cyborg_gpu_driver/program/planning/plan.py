# SPDX-License-Identifier: Apache-2.0

"""Plan a bind before anything is touched. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy as policies
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.partition import vgpu_type
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.partition.offer import whole as offer_whole
from cyborg_gpu_driver.record import gpu as gpu_record


def group_states(host: model.Host, groups: Iterable[nvlink.Group],
                 policy_for: Callable[[model.Gpu], policies.Policy | None],
                 owners: Callable[[model.PciAddress], str]
                 ) -> tuple[offer_whole.State, ...]:
    """The groups with all facts that decide whether they are available.

    :param groups: the groups that one GPU is in.
    :param owners: returns the claims on a GPU as text; empty if none.
    """
    gpus = {gpu.address: gpu for gpu in host.gpus}

    def member(address: model.PciAddress, leader: policies.Policy | None
               ) -> offer_whole.Member:
        gpu = gpus.get(address)
        return offer_whole.Member(
            gpu, gpu is not None and policy_for(gpu) == leader,
            owners(address))

    found = []
    for group in groups:
        leader = gpus.get(group.leader)
        governing = None if leader is None else policy_for(leader)
        found.append(offer_whole.State(group, tuple(
            member(address, governing) for address in group.members)))
    return tuple(found)


# Check the arguments of Cyborg's RPC before they are used.

@dataclasses.dataclass(frozen=True)
class Request:
    """A bind or unbind that cyborg-conductor or cyborg-api requests.

    ``function`` is the handle's PCI function (the GPU or a VF of it).
    ``handle`` is the attach handle's UUID, which is also the mdev's UUID.
    """

    function: model.PciAddress
    mdev_type: str
    handle: str

    @property
    def is_group(self) -> bool:
        """Whether the request is for a group; ``function`` is its first GPU.
        """
        return vgpu_name.group_size(self.mdev_type) is not None

    @property
    def mdev(self) -> spec.VgpuSpec:
        """The mdev of the handle, if the GPU's framework makes mdevs."""
        return spec.VgpuSpec(self.function, self.mdev_type, self.handle)


def parse_request(pci_addr: str, asked_type: str, ah_uuid: str) -> Request:
    """Check three strings from RPC.

    :param asked_type: mdev type, ``nvidia-474``, or ``nvlink-2`` for a group
        of two GPUs.
    :param ah_uuid: the attach handle's UUID, lower case with dashes.
    """
    return Request(function=model.PciAddress.parse(pci_addr),
                   mdev_type=vgpu_name.asked_type(asked_type),
                   handle=vgpu_name.handle(ah_uuid))


def held(gpu: model.Gpu, claims: Sequence[gpu_record.Claim], boot: str
         ) -> tuple[offers.Held, ...]:
    """The vGPUs on the GPU instances that claims have.

    With vendor VFIO, the driver tells the instance of a vGPU. For an mdev it
    does not, and the claim's instance is used: the driver fills the
    instances of a profile in its own order, but the total of vGPUs on them
    does not change. The claim's instance is also used for a vGPU that
    the driver has put on an instance of another tool. That instance is gone
    after a reboot, and then the vGPU needs its own place.
    """
    ours = {instance.instance_id: spec.of(instance)
            for instance in _ours(gpu, claims, boot)}
    live = set(ours.values())
    told = {vgpu.function: offers.Held(ours[vgpu.instance_id], vgpu.type_id)
            for vgpu in gpu.vgpus if vgpu.instance_id in ours}
    return (
        *(offers.Held(claim.instance, claim.mdev_type, claim.instance in live)
          for claim in claims
          if claim.instance is not None and claim.function not in told),
        *told.values())


def begun(gpu: model.Gpu, claims: Iterable[gpu_record.Claim],
          running: Collection[str]) -> frozenset[str]:
    """Handles whose binds have not ended, but that take room already.

    Their servers have allocations in Placement, and the offers of ``gpu`` no
    longer contain their parts: see :func:`held`.

    :param running: handles of the binds that have not ended.
    """
    there = {vgpu.name for vgpu in gpu.vgpus}
    return frozenset(
        claim.handle for claim in claims
        if claim.handle in running
        and claim.phase is gpu_record.Phase.BINDING
        and (claim.instance is not None or claim.vgpu_name in there))


def find_offer(gpu: model.Gpu, available: tuple[offers.Offer, ...],
               asked: Request) -> offers.Offer:
    """Find the offer that a request asks for.

    :raises BindRefused: if no handle of this GPU has that function and
        type, or its offer cannot be served now.
    """
    for offer in available:
        if (offer.vgpu_type_id == asked.mdev_type
                and asked.function in offer.parents):
            if offer.problem:
                raise refusal(asked, offer.problem)
            return offer
    if gpu.problems and not gpu.visible_to_nvml:
        raise refusal(asked, f'the GPU at {gpu.address} cannot be read: '
                      + '; '.join(gpu.problems))
    types = sorted({offer.vgpu_type_id for offer in available
                    if offer.vgpu_type_id})
    raise refusal(asked, 'no handle was reported with that function and '
                  f'type; the GPU at {gpu.address} offers '
                  + (', '.join(types) or 'no vGPU types'))


def plan(gpu: model.Gpu, available: Sequence[offers.Offer],
         offer: offers.Offer, asked: Request,
         claims: Sequence[gpu_record.Claim], boot: str, share: bool = True
         ) -> gpu_record.Claim:
    """Plan the bind of a request on ``gpu`` in its current state.

    :param available: all offers of the GPU, including ``offer``.
    :param share: whether the vGPU may use an existing instance.
    :returns: what the bind claims. Without an instance id, the instance is
        yet to be created.
    :raises BindRefused: if there is no room, naming what occupies it.
    """
    _check_empty(gpu, asked, claims)
    claim = gpu_record.Claim(
        handle=asked.handle, gpu=gpu.address, function=asked.function,
        mdev_type=asked.mdev_type, profile=offer.profile,
        phase=gpu_record.Phase.BINDING, boot=boot,
        vfio=gpu.framework is model.Framework.VENDOR_VFIO)
    if offer.mode is not policies.Mode.MIG:
        return dataclasses.replace(claim, vgpu_placement=_placement_id(
            gpu, available, offer, asked, claims))
    shared = _shared(gpu, offer, claims, boot) if share else None
    if shared is not None:
        return dataclasses.replace(
            claim, profile_id=shared.profile_id, placement=shared.placement,
            instance_id=shared.instance_id)
    mig = gpu.mig
    profile = spec.profile(gpu, offer.gi_profile_id)
    if mig is None or profile is None:
        raise refusal(asked, 'the GPU has no such profile now')
    grid = geometry.Geometry(mig.profiles)
    taken: tuple[model.GpuInstance | spec.MigInstanceSpec, ...] = (
        *mig.instances, *spec.missing(mig, filter(None, (
            claim.instance for claim in claims))))
    start = geometry.choose_start(grid, grid.occupancy_of(taken), profile)
    if start is None:
        names = ', '.join(
            f'{spec.profile_name(mig, item.profile_id)}@'
            f'{item.placement.start}' for item in taken)
        raise refusal(asked, f'no room for {offer.profile} next to '
                      + (names or 'nothing (the profile fits nowhere)'))
    return dataclasses.replace(claim, profile_id=profile.profile_id,
                               placement=start)


def refusal(asked: Request, reason: str) -> exception.BindRefused:
    """Make the exception that refuses a bind for a reason."""
    return exception.BindRefused(
        handle=asked.handle, asked_type=asked.mdev_type,
        address=asked.function, reason=reason)


def _check_empty(gpu: model.Gpu, asked: Request,
                 claims: Iterable[gpu_record.Claim]) -> None:
    """Refuse a virtual function that has a vGPU.

    Nova looks for the vGPU only on that function
    (:mod:`cyborg_gpu_driver.partition.vgpu_type`). A virtual function
    holds one vGPU. If a guest did not release its vGPU at the unbind, the
    record still has the claim of that vGPU's handle.
    """
    if asked.function == gpu.address:
        return
    owner = next((claim.handle for claim in claims
                  if claim.function == asked.function), None)
    if owner is not None:
        raise refusal(asked, 'that virtual function carries a vGPU of handle '
                      f'{owner}')
    there = [vgpu.name for vgpu in gpu.vgpus
             if vgpu.function == asked.function]
    if there:
        raise refusal(asked, f'that virtual function carries vGPU {there[0]} '
                      'that this driver did not create')


def _shared(gpu: model.Gpu, offer: offers.Offer,
            claims: Sequence[gpu_record.Claim], boot: str
            ) -> model.GpuInstance | None:
    """The fullest instance of claims with room for one more vGPU.

    An instance takes vGPUs of one framebuffer size. Instances that another
    tool created are not used.
    """
    if offer.per_instance < 2:
        return None
    sizes = {kind.mdev_type_id: kind.framebuffer_mib
             for kind in vgpu_type.types_of(gpu)}
    there = collections.defaultdict(list)
    for vgpu in held(gpu, claims, boot):
        there[vgpu.instance.placement].append(sizes.get(vgpu.type_id))
    return max(
        (instance for instance in _ours(gpu, claims, boot)
         if instance.profile_id == offer.gi_profile_id
         and len(there[instance.placement]) < offer.per_instance
         and set(there[instance.placement]) <= {offer.framebuffer_mib}),
        key=lambda instance: (len(there[instance.placement]),
                              instance.placement), default=None)


def _ours(gpu: model.Gpu, claims: Iterable[gpu_record.Claim], boot: str
          ) -> list[model.GpuInstance]:
    """The live instances that claims have."""
    return [instance for instance in (gpu.mig.instances if gpu.mig else ())
            if any(claim.is_on(instance, boot) for claim in claims)]


def _placement_id(gpu: model.Gpu, available: Iterable[offers.Offer],
                  offer: offers.Offer, asked: Request,
                  claims: Iterable[gpu_record.Claim]) -> int | None:
    """The vGPU's placement on a GPU of mixed sizes; None on another GPU.

    On other GPUs the driver chooses it. The placements of earlier binds are
    taken, even while no guest runs and NVML may call them free.
    """
    if not gpu.mixed_sizes:
        return None
    known = {kind.mdev_type_id: kind for kind in gpu.vgpu_types}
    taken = [model.Placement(claim.vgpu_placement,
                             known[claim.mdev_type].placement_size or 0)
             for claim in claims
             if claim.vgpu_placement is not None
             and claim.mdev_type in known]
    chosen = vgpu_type.choose(
        [known[other.vgpu_type_id] for other in available
         if other.vgpu_type_id in known and not other.problem],
        known[offer.vgpu_type_id or ''], taken)
    if chosen is None:
        raise refusal(asked, f'no placement is left for {offer.profile} '
                      f'among {len(gpu.vgpus)} vGPUs of mixed sizes')
    return chosen
