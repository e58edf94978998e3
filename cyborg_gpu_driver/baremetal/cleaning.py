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

"""Remove a tenant's traces from the GPUs of a node, and check for more."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.baremetal import faults
from cyborg_gpu_driver.baremetal import ramdisk as ramdisk_module
from cyborg_gpu_driver.baremetal.inventory import modes
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import modes as nvml_modes
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.host.nvml import traces as nvml_traces
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition.change import target
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.ready import apply

Evidence = list[dict[str, Any]]
"""What was done or found, one item per GPU; for JSON."""


class Cleaner:
    """Cleans the GPUs of one node."""

    def __init__(self, ramdisk: ramdisk_module.Ramdisk):
        self._ramdisk = ramdisk
        self._nvml = ramdisk.platform.nvml

    def reset(self) -> Evidence:
        """Reset every GPU and check it.

        :raises StepFailed: naming each GPU that was not reset, or is not
            clean.
        """
        return ramdisk_module.each(
            self._ramdisk.ours().gpus,
            lambda gpu: self._ramdisk.resetter.reset(gpu, lambda: None))

    def clear(self, properties: Mapping[str, Any]) -> Evidence:
        """Remove everything that partitions a GPU, in the driver's order.

        That is vGPUs, compute and GPU instances, virtual functions and MIG
        mode. It restores the MIG and ECC modes that the last inspection
        recorded. It does not touch anything in use.

        :param properties: the node's.
        :raises StepFailed: naming each GPU on which something is left.
        """
        wanted = faults.recorded_modes(properties)
        return ramdisk_module.each(
            self._ramdisk.ours().gpus,
            lambda gpu: {**self._clear(gpu, wanted.wants_mig(gpu.address)),
                         **self._set_ecc(gpu.address,
                                         wanted.ecc.get(gpu.address))})

    def verify(self, properties: Mapping[str, Any],
               has_tenant: bool = False) -> Evidence:
        """Check that the GPUs are the node's, healthy, idle and whole.

        They must also have the modes that the last inspection recorded.

        Without an NVML library it checks only the facts in sysfs.

        :param properties: the node's.
        :param has_tenant: whether a tenant has the node; then the modes are
            the tenant's and are not checked.
        :raises StepFailed: naming each GPU that fails, and why.
        """
        everything = self._ramdisk.snapshot()
        host = self._ramdisk.ours(everything)
        # First, because without a GPU NVIDIA's driver does not start, and
        # NVML blames the driver.
        reason = faults.boards(everything.gpus, properties)
        if not reason and not everything.gpus:
            reason = ('there is no NVIDIA GPU, and no inspection of the node '
                      'has found one, so nothing can be verified')
        if not reason and host.nvml_problem and not host.library_missing:
            reason = ('the ramdisk has NVML, but it does not work: '
                      + host.nvml_problem)
        if reason:
            raise exception.StepFailed(reason=reason)
        if host.nvml_problem:
            return ramdisk_module.each(host.gpus, lambda gpu: _unasked(host))
        wanted = None if has_tenant else faults.recorded_modes(properties)
        if wanted is not None:
            reason = modes.wrong_confidential_computing(
                wanted, nvml_modes.confidential_computing(self._nvml))
            if reason:
                raise exception.StepFailed(reason=reason)
        return ramdisk_module.each(
            host.gpus, lambda gpu: self._verify(gpu, wanted))

    def _set_ecc(self, address, wanted):
        """Set an ECC mode; it takes effect with the next reset or restart.

        :param wanted: None if either mode is fine.
        """
        found = nvml_modes.ecc(self._nvml, address)
        if wanted is None or found is None or found.pending == wanted:
            return {}
        with locks.gpu(self._ramdisk.state_path, address):
            privileged_gpu.set_ecc_mode(str(address), wanted)
        return {'ecc_mode': wanted}

    def _clear(self, gpu, mig):
        if gpu.problems or not gpu.visible_to_nvml:
            raise exception.StepFailed(reason='; '.join(gpu.problems) or (
                'NVML does not list it; its kernel driver is '
                f'{gpu.driver or "none"}'))
        before = _cut(gpu)
        for found in self._ramdisk.vgpus.found():
            if found.gpu.address == gpu.address:
                self._ramdisk.vgpus.remove(found, None)
        if gpu.sriov_numvfs:
            self._remove_functions(self._read(gpu))
        gpu = self._read(gpu)
        status = apply.Status.UNCHANGED
        if gpu.mig is not None:
            status = self._ramdisk.applier.apply(
                gpu, target.Wanted(mig), apply.Options(
                    may_reset=self._ramdisk.resetter.can_reset(gpu)))
        return {'before': before, 'after': _cut(self._read(gpu)),
                'status': status.value}

    def _remove_functions(self, gpu):
        """Remove a GPU's instances and then its virtual functions."""
        if gpu.mig is not None:
            self._ramdisk.applier.apply(
                gpu, target.Wanted(gpu.mig.enabled), apply.Options())
        with locks.gpu(self._ramdisk.state_path, gpu.address), \
                self._nvml.alone():
            privileged_gpu.set_virtual_functions(str(gpu.address), False)

    def _read(self, gpu):
        return self._ramdisk.snapshot().gpu(gpu.address)

    @gate.series
    def _verify(self, gpu, wanted):
        facts = self._ramdisk.health_reader.read(gpu.address)
        ecc = (nvml_modes.ecc(self._nvml, gpu.address)
               if gpu.visible_to_nvml else None)
        reasons = faults.of_gpu(gpu, health.seen((), facts, time.time()),
                                wanted, ecc.pending if ecc else None)
        if reasons:
            raise exception.StepFailed(reason='; '.join(reasons))
        traces = self._traces(gpu)
        used = cleaning.in_use(traces)
        if used:
            raise exception.StepFailed(reason=used)
        return {'model': gpu.model, 'mig_mode': gpu.mig and gpu.mig.enabled,
                'ecc_mode': ecc and dataclasses.asdict(ecc),
                'health': dataclasses.asdict(facts),
                'traces': dataclasses.asdict(traces)}

    def _traces(self, gpu: model.Gpu) -> cleaning.Traces:
        device = self._nvml.device(gpu.address)
        used, total = nvml_traces.memory_mib(
            self._nvml, device) or (None, None)
        return cleaning.Traces(
            driver=gpu.driver, uuid=gpu.uuid,
            processes=len(nvml_process.processes(self._nvml, device)),
            memory_used_mib=used, memory_mib=total)


def _cut(gpu):
    """Return the counts of what partitions a GPU."""
    return {'vgpus': len(gpu.vgpus), 'virtual_functions': gpu.sriov_numvfs,
            'gpu_instances': len(gpu.mig.instances) if gpu.mig else 0,
            'mig_mode': gpu.mig and gpu.mig.enabled}


def _unasked(host):
    return {'health': None, 'reason': host.nvml_problem}
