# SPDX-License-Identifier: Apache-2.0

"""Rebuilding lost claims from the hardware and from Cyborg's records.

A record that is damaged is set aside. The UUID of an mdev is that of
its handle, so the mdevs reveal most of the lost claims. The owners of vGPUs
without mdev are known only from the accelerator requests.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import vgpu_name
from cyborg_gpu_driver.partition.offer import offers as partition_offers
from cyborg_gpu_driver.program import services
from cyborg_gpu_driver.program.bind import live
from cyborg_gpu_driver.program.planning import desired
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store

LOG = logging.getLogger(__name__)


class Rebuilder:
    """Writes the claims of handles that are missing in the records."""

    def __init__(self, machine: platform.Platform, host: live.LiveHost,
                 records: store.Store, cloud: services.Services):
        self._machine = machine
        self._host = host
        self._records = records
        self._cloud = cloud
        self._said = log_once.LogOnce()

    def rebuild(self) -> list[model.PciAddress]:
        """Find the handles bound on the GPUs whose claims are lost.

        If Cyborg's requests are known, only handles that Cyborg has are
        recorded. A problem with one GPU is logged once, and the others are
        rebuilt.
        """
        lost = [gpu for gpu in self._host.host().gpus
                if self._records.peek(gpu.address).claims_lost]
        requests = self._cloud.requests() if lost else None
        rebuilt = []
        for gpu in lost:
            with (self._said.noted(
                    LOG.warning, f'The claims on GPU {gpu.address} are not '
                    'rebuilt', gpu.address),
                  locks.gpu(self._records.state_path, gpu.address)):
                if not self._records.peek(gpu.address).claims_lost:
                    continue
                now = self._host.gpu(gpu.address)
                claims = self._found(now, requests)
                if self._host.is_linked(now):
                    claims += self._whole(now, requests)
                self._records.rebuilt(gpu.address, claims)
                rebuilt.append(gpu.address)
                LOG.warning(
                    'GPU %(gpu)s: the lost claims of these handles were '
                    'recovered: %(handles)s. If a GPU instance is unknown, '
                    'it is kept when its handle is unbound.',
                    {'gpu': gpu.address, 'handles': ', '.join(
                        f'{claim.handle} ({claim.profile}, '
                        f'{claim.placement or "no or an unknown instance"})'
                        for claim in claims) or 'none'})
        return rebuilt

    def adopt(self, gpu: model.Gpu, request: reconcile.Request
              ) -> gpu_record.Claim:
        """Write the claim of one request whose vGPU exists.

        The caller holds the GPU's lock.

        :raises StepFailed: if the vGPU does not exist, or is not of a type
            that the GPU offers.
        """
        claims = self._found(gpu, reconcile.Requests((request,)))
        if not claims:
            raise exception.StepFailed(
                reason=f'handle {request.handle} has no vGPU on GPU '
                f'{gpu.address} that this driver offers')
        self._records.put_claims(*claims)
        return claims[0]

    def _found(self, gpu: model.Gpu, requests: reconcile.Requests | None
               ) -> list[gpu_record.Claim]:
        record = self._records.read(gpu.address)
        try:
            running = usage.guests(self._machine, gpu)
        except exception.NvmlError as error:
            LOG.info('Cannot find out which GPU instances the virtual '
                     'machines on GPU %(gpu)s use: %(error)s',
                     {'gpu': gpu.address, 'error': error})
            running = ()
        bare = bare_claims(
            gpu, self._host.offers(gpu), requests,
            {claim.handle for claim in record.claims}, record.fixed.types,
            running)
        boot = self._machine.boot_id()
        return [dataclasses.replace(claim, boot=boot) for claim in placed(
            gpu, bare, self._host.offers(gpu), running,
            record.owned_instances)]

    def _whole(self, gpu: model.Gpu, requests: reconcile.Requests | None
               ) -> list[gpu_record.Claim]:
        """The claims of groups on a GPU whose own claims are lost.

        A server that is shut off leaves no trace on the hardware, so only
        Cyborg knows these claims.
        """
        if requests is None:
            raise exception.StepFailed(
                reason='Cyborg does not say which server has the GPU; set '
                '[gpu_cloud]. The GPU is not offered until this is known')
        groups = {(group.leader, group.profile): group for group
                  in self._host.groups(item.address for item
                                       in self._host.host().gpus)}
        known = {claim.handle for claim in self._records.claims(gpu.address)}
        found = []
        for request in requests.bound:
            if (vgpu_name.group_size(request.type_id) is None
                    or request.handle in known):
                continue
            group = groups.get((request.function, request.type_id))
            if group is None:
                raise exception.StepFailed(
                    reason='it is not known which GPUs handle '
                    f'{request.handle} has. The GPU is not offered until '
                    'this is known')
            if gpu.address in group.members:
                found.append(gpu_record.Claim(
                    handle=request.handle, gpu=gpu.address,
                    function=request.function, mdev_type=request.type_id,
                    profile=group.profile, phase=gpu_record.Phase.BOUND,
                    fabric_partition=group.partition, members=group.members))
        return found


def bare_claims(gpu: model.Gpu, offers: Sequence[partition_offers.Offer],
                requests: reconcile.Requests | None, known: Collection[str],
                fixed: Collection[model.PciAddress],
                running: Sequence[usage.GuestVgpu] = ()
                ) -> list[gpu_record.Claim]:
    """The claims of a GPU, without the GPU instances below. Pure.

    The placement id of an mdev without a virtual machine is unknown. NVML
    does not know it either, and may give that placement to another vGPU.

    :param known: handles that have a claim already.
    :param fixed: functions whose vGPUs are left to Nova.
    """
    by_type = {offer.vgpu_type_id: offer for offer in offers}
    requested = {} if requests is None else {
        request.handle: request for request in requests.bound}
    vfio = gpu.framework is model.Framework.VENDOR_VFIO
    there: list[tuple[str, model.Vgpu | None]]
    if vfio:
        there = [(request.handle, desired.requested_vgpu(gpu, request))
                 for request in requested.values()]
    else:
        there = [(vgpu.uuid, vgpu) for vgpu in gpu.vgpus
                 if vgpu.uuid is not None
                 and (requests is None or vgpu.uuid in requested)]
    # Without mixed sizes, the driver chooses the placements.
    places: dict[str | None, int | None] = {
        **{str(vf.address): vf.placement_id for vf in gpu.vfs},
        **{guest.uuid: guest.placement_id for guest in running}
    } if gpu.mixed_sizes else {}
    return [
        gpu_record.Claim(
            handle=handle, gpu=gpu.address, function=vgpu.function,
            mdev_type=vgpu.type_id, phase=gpu_record.Phase.BOUND, vfio=vfio,
            profile=by_type[vgpu.type_id].profile,
            vgpu_placement=places.get(vgpu.name))
        for handle, vgpu in there
        if vgpu is not None and vgpu.type_id in by_type
        and handle not in known and vgpu.function not in fixed]


def placed(gpu: model.Gpu, bare: Iterable[gpu_record.Claim],
           offers: Sequence[partition_offers.Offer],
           running: Sequence[usage.GuestVgpu],
           taken: Collection[spec.MigInstanceSpec]) -> list[gpu_record.Claim]:
    """Claims with the GPU instances below them. Pure.

    The driver reports the instances of vendor VFIO vGPUs, and NVML those of
    running vGPUs. The others are guessed, if they need all the instances
    that are left. An unbind corrects a wrong guess, because it does not
    destroy an instance in use.

    :param taken: instances that have another owner.
    """
    bare = tuple(bare)
    by_type = {offer.vgpu_type_id: offer for offer in offers
               if offer.vgpu_type_id is not None
               and offer.gi_profile_id is not None}
    told = {vgpu.name: vgpu.instance_id for vgpu in gpu.vgpus}
    told.update((vgpu.uuid, vgpu.instance_id) for vgpu in running
                if vgpu.uuid is not None)
    free = {instance.instance_id: instance
            for instance in (gpu.mig.instances if gpu.mig else ())
            if spec.of(instance) not in taken}
    below = {}
    for claim in bare:
        number = told.get(claim.vgpu_name)
        if number is not None and number in free:
            below[claim.handle] = free[number]
    pending = collections.defaultdict(list)
    for claim in bare:
        if claim.handle not in below and claim.mdev_type in by_type:
            pending[by_type[claim.mdev_type].gi_profile_id].append(claim)
    for profile_id, waiting in pending.items():
        below.update(_guessed(
            [instance for instance in free.values()
             if instance.profile_id == profile_id
             and instance not in below.values()], waiting, by_type))
    return [dataclasses.replace(
        claim, profile_id=below[claim.handle].profile_id,
        placement=below[claim.handle].placement,
        instance_id=below[claim.handle].instance_id)
        if claim.handle in below else claim for claim in bare]


def _guessed(instances: Sequence[model.GpuInstance],
             waiting: Sequence[gpu_record.Claim],
             by_type: Mapping[str, partition_offers.Offer]
             ) -> dict[str, model.GpuInstance]:
    """Instances by handle, in order; empty if the guess is not safe.

    An instance holds vGPUs of one framebuffer size. Each instance must get
    at least one vGPU.
    """
    kinds = [by_type[claim.mdev_type] for claim in waiting]
    room = len(instances) * min(kind.per_instance for kind in kinds)
    if (len({kind.framebuffer_mib for kind in kinds}) > 1
            or not len(instances) <= len(waiting) <= room):
        return {}
    return {claim.handle: instances[number % len(instances)]
            for number, claim in enumerate(waiting)}
