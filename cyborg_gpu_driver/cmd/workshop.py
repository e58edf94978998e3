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
import warnings

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import machine as cmd_machine
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.report import claims

with warnings.catch_warnings():
    # oslo.privsep imports eventlet, which complains of itself; that is no
    # business of who runs a command.
    warnings.simplefilter('ignore')
    from cyborg_gpu_driver.program import apply
    from cyborg_gpu_driver.program import fixed
    from cyborg_gpu_driver.program import prepare
    from cyborg_gpu_driver.program import privileged
    from cyborg_gpu_driver.program import restore


class Workshop:
    """This machine, or a simulated one, to be changed.

    :param conf: with ``[gpu]`` registered.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._settings = policies.read(conf)
        self.state_path = gpu_conf.state_path(conf)
        self._machine = platform.from_conf(conf)
        self._reader = reader.HostReader(self._machine)
        privileged.run_here(self._machine)
        self.applier = apply.Applier(self._machine, self.state_path)
        taker = prepare.StepTaker(self._machine, self._reader)
        self.preparer = prepare.Preparer(
            self._machine, taker, self.state_path, self._settings,
            self._claims)
        self.fixed = fixed.FixedVgpus(self._machine, taker, self.state_path,
                                      self._settings)
        self.restorer = restore.Restorer(
            self._machine, self.applier, self.state_path, self._settings,
            self._claims)

    @functools.cached_property
    def host(self) -> model.Host:
        """A snapshot.

        :raises HostUnusable: if NVML takes no part.
        """
        host = self._reader.snapshot()
        if host.nvml_problem:
            raise exception.HostUnusable(reason=host.nvml_problem)
        return host

    @functools.cached_property
    def gpus(self) -> tuple[model.Gpu, ...]:
        """GPUs in NVML's order, so that indices mean what they mean there.

        GPUs that NVML does not see (given away whole) have none.

        :raises HostUnusable: if NVML takes no part or there is none.
        """
        found = tuple(gpu for gpu in self.host.gpus if gpu.visible_to_nvml)
        if not found:
            raise exception.HostUnusable(
                reason='NVML sees no GPU; ' + ('; '.join(
                    f'{gpu.address} is bound to {gpu.driver}'
                    for gpu in self.host.gpus) or 'there is none'))
        return found

    def gpu(self, address: str) -> model.Gpu:
        """The GPU at an address, or of an index, that a person typed.

        :raises InvalidPciAddress, UnknownGpu: if there is none.
        """
        if address.isdigit() and int(address) < len(self.gpus):
            return self.gpus[int(address)]
        return self.host.gpu(model.PciAddress.parse(address))

    def read(self, address: model.PciAddress) -> model.Gpu:
        """A GPU in a new snapshot.

        :raises UnknownGpu: if it is gone.
        """
        return self._reader.snapshot().gpu(address)

    def ignores(self, gpu: model.Gpu) -> bool:
        """Whether the operator wants the GPU left alone."""
        return self._settings.ignores(gpu)

    def current(self, gpu: model.Gpu) -> model.Gpu:
        """A GPU as it is now, with compute instances.

        :raises ChangeRefused, NvmlError: if it cannot be read.
        """
        return self.applier.read(gpu)

    def _claims(self, address):
        return claims.of_reports(self.state_path, address)

    def check_privileges(self) -> None:
        """Before anything is changed.

        :raises HostUnusable: if this user may change nothing.
        """
        cmd_machine.check_root(self._machine, 'change its GPUs')
