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

"""One GPU's MIG state as it is at this moment, compute instances included."""

from __future__ import annotations

import dataclasses
import functools

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import compute
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci


class StateReader:
    """Reads the MIG state of a GPU that a snapshot has described.

    :param machine: the machine of the GPU.
    """

    def __init__(self, machine: platform.Platform):
        self._nvml = machine.nvml
        self._compute = compute.ComputeReader(
            machine.nvml, functools.partial(pci.board, machine.sysfs))

    def read(self, gpu: model.Gpu) -> model.Gpu:
        """``gpu`` with its MIG mode, instances and compute instances.

        :param gpu: of any snapshot, from which the profiles are taken.
        :raises NvmlError: if NVML cannot read them, even with a new handle
            of the GPU.
        """
        if gpu.mig is None:
            return gpu
        try:
            return self._read(gpu, gpu.mig)
        except exception.NvmlError as error:
            if error.symbol in ('NO_PERMISSION', 'NOT_SUPPORTED'):
                raise
            self._nvml.forget(gpu.address)
        return self._read(gpu, gpu.mig)

    @gate.series
    def _read(self, gpu: model.Gpu, known: model.Mig) -> model.Gpu:
        device = self._nvml.device(gpu.address)
        enabled, pending = self._nvml.mig_mode(device)
        found: tuple[model.GpuInstance, ...] = ()
        if enabled:
            found = tuple(
                dataclasses.replace(instance, compute=self._compute.instances(
                    gpu.address, instance, handle))
                for instance, handle in self._nvml.live_handles(
                    device, known.profiles))
        return dataclasses.replace(gpu, mig=dataclasses.replace(
            known, enabled=enabled, pending=pending, instances=found))
