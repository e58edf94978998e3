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

"""One reset of a whole GPU, and what can be told of it before and after.

The kernel resets a function whoever uses it (pci_reset_function), so that
it is asked before who does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import time
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import drivers
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import nvml_process
from cyborg_gpu_driver.host import nvml_traces
from cyborg_gpu_driver.host import open_files
from cyborg_gpu_driver.host import pci
from cyborg_gpu_driver.host import pci_health
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.program import privileged_driver
from cyborg_gpu_driver.program import privileged_vgpu
from cyborg_gpu_driver.program import whole

LOG = logging.getLogger(__name__)

_BUSY = frozenset({errno.EBUSY, errno.EAGAIN})


class Resetter:
    """Resets GPUs of one machine that nobody uses.

    :param on_reset: called with the address of a GPU that was reset.
    :param quiet: makes the block in which a GPU is reset; nothing else of
        this process may have it open meanwhile.
    """

    def __init__(self, machine: platform.Platform,
                 on_reset: Callable[[model.PciAddress], None] | None = None,
                 quiet: Callable[[], contextlib.AbstractContextManager]
                 = contextlib.nullcontext):
        self._machine = machine
        self._quiet = quiet
        self._on_reset = on_reset or (lambda address: None)

    def can_reset(self, address: model.PciAddress) -> bool:
        """Whether the kernel knows a way to reset the GPU."""
        return self._machine.sysfs.exists(*pci.DEVICES, str(address),
                                          'reset')

    def reset(self, gpu: model.Gpu,
              begin: Callable[[], None]) -> dict[str, Any]:
        """Reset a GPU and look at it. The caller holds its lock.

        :param gpu: of a recent snapshot.
        :param begin: called before the GPU is touched.
        :returns: what shows that it was reset and is clean, for JSON.
        :raises GpuInUse: if somebody uses it; it was not reset.
        :raises StepFailed: if it cannot be reset, or is not clean.
        :raises NvmlError, SysfsError, UsageUnknown: as the machine answers.
        """
        address = gpu.address
        self._check_possible(address)
        self._open(gpu, begin)
        before = self._check_idle(address)
        if before.uuid is not None and gpu.uuid not in (None, before.uuid):
            raise exception.StepFailed(
                reason=f'NVML shows {before.uuid} where {gpu.uuid} was')
        begin()
        began = time.monotonic()
        self._write(address)
        seconds = round(time.monotonic() - began, 3)
        after = self._traces_after(address)
        reason = cleaning.remains(before, after)
        if reason:
            raise exception.StepFailed(reason=reason)
        if pci_health.read(self._machine.sysfs, address).reachable is False:
            raise exception.StepFailed(
                reason='its PCI configuration space cannot be read after '
                'the reset')
        return {'method': self._machine.sysfs.read_optional(
                    *pci.DEVICES, str(address), 'reset_method'),
                'seconds': seconds, 'before': dataclasses.asdict(before),
                'after': dataclasses.asdict(after)}

    def _open(self, gpu, begin):
        """Let NVML see a GPU that this library took from nvidia.

        One that the operator bound to vfio-pci stays there: the nvidia
        driver may not be meant to have it at all.
        """
        if gpu.bound_from == drivers.NVIDIA:
            begin()
            with self._quiet():
                whole.bind(self._machine, gpu.address, drivers.NVIDIA)
        elif gpu.released:
            whole.reopen(self._machine, gpu)

    def _check_possible(self, address):
        if not self.can_reset(address):
            raise exception.StepFailed(
                reason='the kernel has no way to reset it (no file "reset" '
                'in sysfs); [gpu] clean_whole_gpus = false offers it all '
                'the same')

    def _check_idle(self, address):
        """The traces of a GPU that nobody uses."""
        traces = self._traces(address)
        if traces.processes:
            raise exception.GpuInUse(
                gpu=address, reason=f'{traces.processes} process(es) of '
                'this machine use it')
        if drivers.is_vfio(traces.driver):
            holders = privileged_vgpu.vfio_holders(str(address))
            if holders:
                raise exception.GpuInUse(
                    gpu=address, reason='held by ' + ', '.join(
                        f'process {pid} ({open_files.process_name(pid)})'
                        for pid in holders))
        return traces

    def _write(self, address):
        LOG.info('Resetting GPU %s for its next tenant', address)
        try:
            with self._quiet():
                self._machine.nvml.reset()
                privileged_driver.reset(str(address))
        except exception.SysfsError as error:
            if error.errno in _BUSY:
                raise exception.GpuInUse(
                    gpu=address, reason=str(error)) from error
            raise
        finally:
            self._machine.nvml.forget(address)
        self._on_reset(address)

    def _traces_after(self, address):
        """The traces of a GPU that was reset just now."""
        try:
            return self._traces(address)
        except exception.NvmlError as error:
            LOG.info('Opening NVML anew after the reset of GPU %(gpu)s: '
                     '%(error)s', {'gpu': address, 'error': error})
        self._machine.nvml.reset()
        return self._traces(address)

    def _traces(self, address):
        """What a GPU shows of who used it.

        :raises StepFailed: if its driver is none that tells who uses it.
        :raises NvmlError, SysfsError: if it cannot be looked at.
        """
        driver = pci.PciBus(self._machine.sysfs).driver(address)
        if driver is None or drivers.is_vfio(driver):
            return cleaning.Traces(driver)
        if driver != drivers.NVIDIA:
            raise exception.StepFailed(
                reason=f'it is bound to {driver}, of which it is not known '
                'who uses it')
        nvml = self._machine.nvml
        device = nvml.device(address)
        used, total = nvml_traces.memory_mib(nvml, device) or (None, None)
        return cleaning.Traces(
            driver=driver, uuid=nvml_traces.uuid(nvml, device),
            processes=len(nvml_process.processes(nvml, device)),
            memory_used_mib=used, memory_mib=total,
            ecc_uncorrected=nvml_traces.uncorrected_errors(nvml, device))
