# SPDX-License-Identifier: Apache-2.0

"""The newest snapshot, in which binds and unbinds read their GPU again."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Iterable
from collections.abc import Sequence

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import nvlink
from cyborg_gpu_driver.partition import policy as policy_module
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition.offer import offers as partition_offers
from cyborg_gpu_driver.program.planning import plan
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store


class LiveHost:
    """The state of the machine as this process knows it.

    A snapshot takes a while. If a bind or unbind changes a GPU meanwhile,
    the GPU keeps the state that was read after that.
    """

    def __init__(self, host_reader: reader.HostReader,
                 settings: policies.Settings,
                 records: store.Store):
        self._reader = host_reader
        self.settings = settings
        self._records = records
        self._mutex = threading.Lock()
        self._host: model.Host | None = None
        self._changes: collections.Counter = collections.Counter()
        self._owner: dict[model.PciAddress, model.PciAddress] = {}
        self._offers: dict[model.PciAddress, tuple[
            tuple, tuple[partition_offers.Offer, ...]]] = {}
        """The latest offers of each GPU, after all that they depend on."""

    def refresh(self) -> model.Host:
        """Take a snapshot. Never raises for hardware errors."""
        with self._mutex:
            before = dict(self._changes)
        host = self._reader.snapshot()
        with self._mutex:
            known = {gpu.address: gpu for gpu in
                     (self._host.gpus if self._host else ())}
            gpus = tuple(
                gpu if self._changes[gpu.address] == before.get(
                    gpu.address, 0)
                else known.get(gpu.address, gpu) for gpu in host.gpus)
            return self._set(dataclasses.replace(host, gpus=gpus))

    def refresh_gpu(self, address: model.PciAddress) -> model.Gpu:
        """Read only one GPU again; the caller holds its lock.

        Another GPU may not answer, and a bind must not wait for it.
        """
        first = self.host()
        with self._mutex:
            before = self._changes[address]
        gpu = self._reader.gpu(address)
        with self._mutex:
            host = self._host or first
            if self._changes[address] != before:
                return host.gpu(address)
            # A snapshot that began earlier must not replace this state.
            self._changes[address] += 1
            others = (other for other in host.gpus
                      if other.address != address)
            self._set(dataclasses.replace(host, gpus=tuple(sorted(
                (*others, gpu), key=lambda item: item.address))))
            return gpu

    def host(self) -> model.Host:
        """The state of the machine; read now if it was never read."""
        with self._mutex:
            host = self._host
        return host or self.refresh()

    def gpu(self, address: model.PciAddress) -> model.Gpu:
        """One GPU."""
        return self.host().gpu(address)

    def owner(self, function: model.PciAddress) -> model.PciAddress:
        """The GPU that ``function`` is, or is a VF of."""
        self.host()
        owner = self._owner.get(function)
        if owner is None:
            gpu = self._reader.owner(function)
            if gpu is not None:
                self.refresh_gpu(gpu)
                owner = self._owner.get(function)
        if owner is None:
            with contextlib.suppress(exception.JournalUnreadable):
                owner = next((
                    address for address, record
                    in self._records.records().items()
                    for facts in record.by_role.values()
                    if function in facts.functions), None)
        if owner is None:
            raise exception.UnknownGpu(address=function)
        return owner

    def offers(self, gpu: model.Gpu,
               claims: Sequence[gpu_record.Claim] | None = None
               ) -> tuple[partition_offers.Offer, ...]:
        """The offers of the GPU's policy; empty without a policy.

        :param claims: the claims on the GPU; None reads them.
        :raises JournalError: if the record cannot be read.
        """
        if claims is None:
            claims = self._records.claims(gpu.address)
        held = plan.held(gpu, claims, self._reader.boot_id())
        situation = self._records.read(gpu.address).situation
        policy = self.settings.policy_for(gpu)
        states = plan.group_states(
            self.host(), self.groups([gpu.address]),
            self.settings.policy_for, self._records.owners
        ) if self.is_linked(gpu) else ()
        # Compared by value, because each snapshot has new objects even for
        # what has not changed.
        inputs = gpu, held, situation, states
        known = self._offers.get(gpu.address)
        if known is None or known[0] != inputs:
            known = inputs, () if policy is None else partition_offers.offers(
                gpu, policy, held, must_be_bound=True, situation=situation,
                groups=states)
            self._offers[gpu.address] = known
        return known[1]

    def board(self, address: model.PciAddress
              ) -> tuple[model.PciAddress, ...]:
        """The GPUs whose offers depend on a GPU: the GPU itself, and all
        that are in a group with it.
        """
        return tuple(sorted({address, *(
            member for group in self.groups([address])
            for member in group.members)}))

    def group(self, leader: model.PciAddress, profile: str
              ) -> nvlink.Group | None:
        """The group with a profile that a GPU leads; None if none."""
        return next((
            group for group in self.groups([leader])
            if group.leader == leader and group.profile == profile), None)

    def changed_by(self, address: model.PciAddress, asked: plan.Request
                   ) -> frozenset[model.PciAddress]:
        """All GPUs that a bind on a GPU may change."""
        if not asked.is_group:
            return frozenset({address})
        group = self.group(address, asked.mdev_type)
        claim = self._records.claim(asked.handle, address)
        return frozenset({address, *(group.members if group else ()),
                          *(claim.gpus if claim else ())})

    def groups(self, gpus: Iterable[model.PciAddress]
               ) -> tuple[nvlink.Group, ...]:
        """All groups that contain any of the GPUs, without duplicates."""
        return tuple(sorted({
            group for address in gpus
            if (known := self._records.peek(address).nvlink) is not None
            for group in known.groups}))

    def is_linked(self, gpu: model.Gpu) -> bool:
        """Whether a GPU is in mode nvlink."""
        policy = self.settings.policy_for(gpu)
        return (policy is not None
                and policy.mode is policy_module.Mode.NVLINK)

    def role(self, gpu: model.Gpu) -> policy_module.Mode | None:
        """The role that a GPU of mode auto has; None if it is idle."""
        return roles.in_force(
            gpu, self._records.read(gpu.address).situation.claimed)

    def complaints(self, gpu: model.Gpu) -> tuple[str, ...]:
        """The problems that the GPU's policy has on this GPU."""
        policy = self.settings.policy_for(gpu)
        by_role = self._records.read(gpu.address).by_role
        return () if policy is None else tuple(
            partition_offers.check_policy(gpu, policy, by_role))

    def mark(self, address: model.PciAddress) -> int:
        """A counter that increases with every change to the GPU."""
        with self._mutex:
            return self._changes[address]

    def _set(self, host: model.Host) -> model.Host:
        self._host = host
        self._owner = {
            address: gpu.address for gpu in host.gpus
            for address in (gpu.address,
                            *(function.address for function in gpu.vfs))}
        return host
