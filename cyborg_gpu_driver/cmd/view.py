# SPDX-License-Identifier: Apache-2.0

"""The snapshot of the host that read-only commands use."""

from __future__ import annotations

import collections
import functools

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import host_parts
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import roles
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.record import gpu as gpu_record


class HostView(host_parts.HostParts):
    """The host of a command, read once."""

    detail = True
    """Whether NVLinks and the UUIDs of MIG devices are read: many calls."""

    def __init__(self, conf: cfg.ConfigOpts):
        super().__init__(conf)
        self._said = log_once.LogOnce()

    @functools.cached_property
    def host(self) -> model.Host:
        """The snapshot of the host."""
        return self._snapshot()

    def _snapshot(self) -> model.Host:
        return self.reader.snapshot(detail=self.detail, links=self.detail)

    def gpu(self, text: str) -> model.Gpu:
        """Return the GPU that the operator named.

        :raises InvalidValue, UnknownGpu: as :func:`.choice.find`.
        """
        return choice.find(self.host, text)

    def name(self, gpu: model.Gpu) -> str:
        """Return a GPU's index and address as text for the operator."""
        return choice.name(self.host, gpu)

    def mode(self, gpu: model.Gpu) -> policy.Mode | None:
        """Return the GPU's mode under the policies.

        For a GPU in mode auto, this is its current role, if it has one.

        :returns: None if the GPU cannot be in that mode now: it is bound to
            NVIDIA's driver and cannot be read, or it is in MIG mode and its
            policy offers it whole.
        """
        governing = self.settings.policy_for(gpu)
        mode = governing.mode if governing else policy.Mode.OFF
        if condition.is_failed(gpu) or (
                mode in policy.WHOLE
                and gpu.mig is not None and gpu.mig.enabled):
            return None
        if mode is policy.Mode.AUTO:
            return self._role(gpu) or mode
        return mode

    def roles(self, gpu: model.Gpu) -> tuple[policy.Mode, ...]:
        """Return the roles that a GPU in mode auto can have; else none."""
        governing = self.settings.policy_for(gpu)
        known = self.situation(gpu).by_role
        return tuple(role for role in (governing.roles if governing else ())
                     if role.value not in known
                     or not known[role.value].problem)

    def situation(self, gpu: model.Gpu) -> offers.Situation:
        """Return the recorded situation of a GPU in mode auto."""
        record = self._record(gpu.address)
        return offers.UNKNOWN if record is None else record.situation

    def _role(self, gpu: model.Gpu) -> policy.Mode | None:
        """Return the role of a GPU in mode auto; None if it is idle."""
        found = roles.in_force(gpu, self.situation(gpu).claimed)
        tenancy = self.records.peek(gpu.address).tenancy
        if found is None and tenancy is not None and tenancy.withheld:
            return policy.Mode.PASSTHROUGH
        return found

    def claims(self, gpu: model.Gpu) -> tuple[gpu_record.Claim, ...]:
        """Return the claims on a GPU; none if its record is bad."""
        record = self._record(gpu.address)
        return () if record is None else record.claims

    def cordons_of(self, gpu: model.Gpu) -> cordon.Cordons:
        """Return the cordons of a GPU; none if its record is bad."""
        record = self._record(gpu.address)
        return () if record is None else record.cordons

    def _record(self, address: model.PciAddress
                ) -> gpu_record.GpuRecord | None:
        """Return a GPU's record. If it is bad, print the error once."""
        try:
            return self.records.read(address)
        except exception.JournalError as error:
            self._say_once(error)
            return None

    def _say_once(self, error):
        if self._said.is_new(str(error), about=str(error)):
            output.say(str(error))

    def owned(self, gpu: model.Gpu) -> collections.Counter:
        """Return the number of bound instances per profile, by the records."""
        return gpu_record.owned(self.claims(gpu))

    def explain(self) -> None:
        """Print to standard error what a table cannot show."""
        if not self.host.gpus:
            output.say('No NVIDIA GPU was found on this machine.')
        if self.host.nvml_problem:
            output.say(f'NVML: {self.host.nvml_problem}')
        for problem in self.host.problems:
            output.say(problem)
        for gpu in self.host.gpus:
            if condition.is_failed(gpu):
                output.say(': '.join(filter(None, (
                    self.name(gpu), condition.state(gpu),
                    '; '.join(gpu.problems)))))
            if known := self.cordons_of(gpu):
                output.say(f'{self.name(gpu)} gets no new server: '
                           f'{cordon.text(known)}')
            governing = self.settings.policy_for(gpu)
            if governing is not None:
                for complaint in offers.check_policy(
                        gpu, governing, self.situation(gpu).by_role):
                    output.say(complaint)
