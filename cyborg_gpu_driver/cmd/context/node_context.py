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

"""What the commands that change GPUs work with."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import model


class NodeContext:
    """A host to be changed by a command.

    :param node: its parts. Privileged changes are made in this process from
        now on.
    :param links: whether the snapshot has NVLinks.
    """

    def __init__(self, node: cmd_machine.Machine, links: bool = True):
        node.act_here()
        self._node = node
        self._links = links
        self.state_path = node.state_path
        self.applier = node.applier
        self.transactions = node.transactions
        self.preparer = node.preparer
        self.fixed = node.fixed
        self.restorer = node.restorer

    @functools.cached_property
    def host(self) -> model.Host:
        """A snapshot.

        :raises HostUnusable: if NVML is not available.
        """
        host = self._node.reader.snapshot(links=self._links)
        if host.nvml_problem:
            raise exception.HostUnusable(reason=host.nvml_problem)
        return host

    @functools.cached_property
    def gpus(self) -> tuple[model.Gpu, ...]:
        """The GPUs in the order of their indices, see :mod:`.host.choice`.

        :raises HostUnusable: if NVML is not available, if there is no GPU, or
            if they cannot be numbered.
        """
        found = choice.gpus(self.host)
        if not found:
            raise exception.HostUnusable(reason='; '.join(
                ('it has no NVIDIA GPU', *self.host.problems)))
        return found

    def gpu(self, text: str) -> model.Gpu:
        """The GPU that a person typed.

        :raises InvalidValue, NoSuchGpu: as :func:`.choice.find`.
        """
        return choice.find(self.host, text)

    def name(self, gpu: model.Gpu) -> str:
        """A GPU's index and address, for people."""
        return choice.name(self.host, gpu)

    def reachable(self, gpus: Iterable[model.Gpu]) -> tuple[model.Gpu, ...]:
        """These GPUs, if NVML can work on all of them.

        :raises GpuUnreachable: naming each that it cannot work on.
        """
        gpus = tuple(gpus)
        reasons = [reason for gpu in gpus
                   if (reason := choice.obstacle(self.host, gpu))]
        if reasons:
            raise exception.GpuUnreachable(reason='; '.join(reasons))
        return gpus

    def read(self, address: model.PciAddress) -> model.Gpu:
        """A GPU in a new snapshot.

        :raises UnknownGpu: if it is gone.
        """
        return self._node.reader.gpu(address)

    def ignores(self, gpu: model.Gpu) -> bool:
        """Whether the operator wants the GPU left alone."""
        return self._node.ignores(gpu)

    def current(self, gpu: model.Gpu) -> model.Gpu:
        """A GPU as it is now, with compute instances.

        :raises ChangeRefused, NvmlError: if it cannot be read.
        """
        return self.transactions.read(gpu)

    def check_privileges(self) -> None:
        """Before anything is changed.

        :raises HostUnusable: if this user may change nothing.
        """
        cmd_machine.check_root(self._node.platform, 'change its GPUs')
