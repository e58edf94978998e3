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

"""What the commands that only read look at: one snapshot of the host."""

from __future__ import annotations

import collections
import functools

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import host_parts
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.cmd.output import terminal
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cordon
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition.elastic import role as roles
from cyborg_gpu_driver.partition.offer import offers
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.record import store


class HostView(host_parts.HostParts):
    """The host of a command, read once.

    :param conf: with ``[gpu]`` registered.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        super().__init__(conf)
        self._said = log_once.LogOnce()

    @functools.cached_property
    def host(self) -> model.Host:
        """The snapshot, with what takes longer to read."""
        return self.reader.snapshot(detail=True)

    def gpu(self, text: str) -> model.Gpu:
        """The GPU that a person typed.

        :raises InvalidValue, NoSuchGpu: as :func:`.choice.find`.
        """
        return choice.find(self.host, text)

    def mode(self, gpu: model.Gpu) -> policy.Mode | None:
        """The GPU's mode under the policies.

        Of a GPU in mode auto it is the role that it has, if it has one.

        :returns: None where the GPU is nothing of the kind now: NVIDIA's
            driver has it and it cannot be read, or it is in MIG mode and
            its policy would give it away as one.
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
        """What a GPU in mode auto can be; nothing for another one."""
        governing = self.settings.policy_for(gpu)
        known = self.situation(gpu).by_role
        return tuple(role for role in (governing.roles if governing else ())
                     if role.value not in known
                     or not known[role.value].problem)

    def situation(self, gpu: model.Gpu) -> offers.Situation:
        """What the record says of a GPU in mode auto; a bad one is said."""
        try:
            return self.journal.situation(gpu.address)
        except exception.JournalError as error:
            self._say_once(error)
            return offers.UNKNOWN

    def _role(self, gpu: model.Gpu) -> policy.Mode | None:
        """The role that a GPU in mode auto has; None for an idle one."""
        found = roles.in_force(gpu, self.situation(gpu).claimed)
        tenancy = store.of(self.state_path).peek(gpu.address).tenancy
        if found is None and tenancy is not None and tenancy.withheld:
            return policy.Mode.PASSTHROUGH
        return found

    def entries(self, gpu: model.Gpu) -> tuple[journal.Entry, ...]:
        """What the journal has of a GPU; a bad journal is only said."""
        try:
            return self.journal.entries(gpu.address)
        except exception.JournalError as error:
            self._say_once(error)
            return ()

    def cordons_of(self, gpu: model.Gpu) -> cordon.Cordons:
        """Why a GPU gets no new server; a bad record is only said."""
        try:
            return store.of(self.state_path).read(gpu.address).cordons
        except exception.JournalError as error:
            self._say_once(error)
            return ()

    def _say_once(self, error):
        if self._said.is_new(str(error), about=str(error)):
            terminal.say(str(error))

    def owned(self, gpu: model.Gpu) -> collections.Counter:
        """How many of each profile are bound, as the journal has it."""
        return journal.owned(self.entries(gpu))

    def explain(self) -> None:
        """Say on standard error what a table cannot show."""
        if not self.host.gpus:
            terminal.say('No NVIDIA GPU was found on this machine.')
        if self.host.nvml_problem:
            terminal.say(f'NVML: {self.host.nvml_problem}')
        for problem in self.host.problems:
            terminal.say(problem)
        for gpu in self.host.gpus:
            if condition.is_failed(gpu):
                terminal.say(': '.join(filter(None, (
                    choice.name(self.host, gpu), condition.state(gpu),
                    '; '.join(gpu.problems)))))
            if known := self.cordons_of(gpu):
                terminal.say(f'{choice.name(self.host, gpu)} gets no new '
                             f'server: {cordon.text(known)}')
            governing = self.settings.policy_for(gpu)
            if governing is not None:
                for complaint in offers.check_policy(
                        gpu, governing, self.situation(gpu).by_role):
                    terminal.say(complaint)
