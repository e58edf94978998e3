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

"""What the commands look at: one snapshot, its policies and its offers."""

from __future__ import annotations

import collections
import functools
import sys

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import choice
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.partition import offers
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import plan


def check_root(machine: platform.Platform, what: str) -> None:
    """Before anything is changed.

    :param what: what only root may do, as a sentence goes on.
    :raises HostUnusable: if this user may not.
    """
    if not machine.simulated and not machine.is_root():
        raise exception.HostUnusable(reason=f'only root may {what}')


class Machine:
    """This machine, or a simulated one, read once and changed never.

    :param conf: with ``[gpu]`` registered.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._conf = conf
        self._journal = journal.Journal(gpu_conf.state_path(conf))

    @functools.cached_property
    def settings(self) -> policies.Settings:
        """The operator's policies.

        :raises InvalidConfiguration: naming what is wrong.
        """
        return capability.completed(policies.read(self._conf))

    @functools.cached_property
    def host(self) -> model.Host:
        """The snapshot, with what takes longer to read."""
        return reader.HostReader(
            platform.from_conf(self._conf)).snapshot(detail=True)

    @property
    def conf(self) -> cfg.ConfigOpts:
        """The options, with ``[gpu]`` registered."""
        return self._conf

    @property
    def hostname(self) -> str:
        return self._conf.host

    def gpu(self, text: str) -> model.Gpu:
        """The GPU that a person typed.

        :raises InvalidValue, NoSuchGpu: as :func:`.choice.find`.
        """
        return choice.find(self.host, text)

    def mode(self, gpu: model.Gpu) -> policy.Mode:
        """The GPU's mode under the policies."""
        governing = self.settings.policy_for(gpu)
        return governing.mode if governing else policy.Mode.OFF

    def offers(self, gpu: model.Gpu, everything: bool = False
               ) -> tuple[offers.Offer, ...]:
        """What the GPU's policy offers, or all that the GPU could do."""
        if everything:
            return offers.possible_offers(gpu)
        governing = self.settings.policy_for(gpu)
        if governing is None:
            return ()
        return offers.offers(gpu, governing,
                             plan.held(gpu, self.entries(gpu)),
                             self.settings.vfio_handles,
                             self.settings.managed_handles,
                             self.settings.passthrough_driver)

    def entries(self, gpu: model.Gpu) -> tuple[journal.Entry, ...]:
        """What the journal has of a GPU; a bad journal is only said."""
        try:
            return self._journal.entries(gpu.address)
        except exception.JournalError as error:
            say(str(error))
            return ()

    def owned(self, gpu: model.Gpu) -> collections.Counter:
        """How many of each profile are bound, as the journal has it."""
        return journal.owned(self.entries(gpu))

    def explain(self) -> None:
        """Say on standard error what a table cannot show."""
        if not self.host.gpus:
            say('No NVIDIA GPU was found on this machine.')
        if self.host.nvml_problem:
            say(f'NVML: {self.host.nvml_problem}')
        for problem in self.host.problems:
            say(problem)
        for gpu in self.host.gpus:
            governing = self.settings.policy_for(gpu)
            if governing is not None:
                for complaint in offers.check_policy(gpu, governing):
                    say(complaint)


def say(message: str) -> None:
    """One line for people, apart from the answer for programs."""
    print(message, file=sys.stderr)
