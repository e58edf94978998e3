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

"""The host parts that commands use to change GPUs."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.context import machine as cmd_machine
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import model


class NodeContext:
    """A host that a command changes.

    :param node: the parts of the host. From now on, this process itself makes
        privileged changes.
    :param links: whether the snapshot includes NVLinks.
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
        """The snapshot of the host.

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
        """Return the GPU that the operator named.

        :raises InvalidValue, NoSuchGpu: as :func:`.choice.find`.
        """
        return choice.find(self.host, text)

    def name(self, gpu: model.Gpu) -> str:
        """Return a GPU's index and address as text for the operator."""
        return choice.name(self.host, gpu)

    def reachable(self, gpus: Iterable[model.Gpu]) -> tuple[model.Gpu, ...]:
        """Return these GPUs if NVML can work on all of them.

        :raises GpuUnreachable: names each GPU that NVML cannot work on.
        """
        gpus = tuple(gpus)
        reasons = [reason for gpu in gpus
                   if (reason := choice.obstacle(self.host, gpu))]
        if reasons:
            raise exception.GpuUnreachable(reason='; '.join(reasons))
        return gpus

    def read(self, address: model.PciAddress) -> model.Gpu:
        """Return a GPU from a new snapshot.

        :raises UnknownGpu: if the GPU no longer exists.
        """
        return self._node.reader.gpu(address)

    def ignores(self, gpu: model.Gpu) -> bool:
        """Whether the operator excluded the GPU."""
        return self._node.ignores(gpu)

    def current(self, gpu: model.Gpu) -> model.Gpu:
        """Return the current state of a GPU, with compute instances.

        :raises ChangeRefused, NvmlError: if the GPU cannot be read.
        """
        return self.transactions.read(gpu)

    def check_privileges(self) -> None:
        """Check that this user may change GPUs, before anything changes.

        :raises HostUnusable: if the user is not root.
        """
        cmd_machine.check_root(self._node.platform, 'change its GPUs')
