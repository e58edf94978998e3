# SPDX-License-Identifier: Apache-2.0

"""Reads GPUs through NVML: static facts once, the rest each time."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.nvml import static as nvml_static
from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.host.snapshot import model

LOG = logging.getLogger(__name__)

Links = tuple[tuple[model.PciAddress, ...], bool]
"""Other ends of NVLinks, and whether one of them is an NVSwitch."""

_GRAPHICS = '+gfx'
_FINAL = frozenset({'NO_PERMISSION', 'NOT_SUPPORTED', 'FUNCTION_NOT_FOUND',
                    exception.NvmlNotAnswering.symbol})
"""Errors that a new handle does not cure."""


@dataclasses.dataclass(frozen=True)
class _Known:
    """Static facts, and the state for which they are valid."""

    valid: tuple
    facts: nvml_static.Facts
    links: Links | None = None
    """None until they are requested."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """A GPU as far as NVML reported it, and why something is missing."""

    gpu: model.Gpu
    reasons: tuple[str, ...] = ()
    """Why something is missing, as text for users."""
    error: exception.NvmlError | None = None
    """Why nothing could be read."""

    @property
    def is_to_be_repeated(self) -> bool:
        """Whether nothing could be read and a new handle may help."""
        return self.error is not None and self.error.symbol not in _FINAL


class GpuReader:
    """Reads GPUs through one session and caches static facts.

    Static facts are read again when the session was opened again, and when
    the GPU's driver, number of virtual functions or MIG mode has changed.
    """

    def __init__(self, nvml: nvml_module.NvmlSession):
        self._nvml = nvml
        self._static = nvml_static.StaticReader(nvml)
        self._known: dict[model.PciAddress, _Known] = {}
        self._failures: dict[model.PciAddress, str] = {}

    def complete(self, gpus: Iterable[model.Gpu], detail: bool = False
                 ) -> list[Reading]:
        """Return the GPUs with all that NVML knows, read in parallel.

        If the MIG state of a GPU cannot be read, this is a problem of that
        GPU and its ``mig`` is None. A handle that has become invalid (reset,
        new driver) is requested again. If that does not help, the session is
        opened again, once for each new failure.
        """
        gpus = list(gpus)
        if not gpus:
            return []
        session = self._nvml.generation
        read = deadline.each(lambda gpu: self._attempt(gpu, detail), gpus)
        hopeful = [item for item in read if self._may_heal(item)]
        if hopeful and self._nvml.reset():
            LOG.info('Opening NVML again because of %s', '; '.join(
                f'GPU {item.gpu.address}: {item.error}' for item in hopeful))
        if self._nvml.problem() is None and self._nvml.generation != session:
            # The end of a session breaks what other threads were reading.
            # Read one GPU after the other now, so that no reading breaks.
            read = [self._attempt(gpu, detail)
                    if item.reasons or item.is_to_be_repeated else item
                    for gpu, item in zip(gpus, read, strict=True)]
        return [self._noted(item) for item in read]

    def _attempt(self, gpu: model.Gpu, detail: bool) -> Reading:
        """Read a GPU, and once more with another handle if that may help."""
        for is_last in (False, True):
            try:
                return self._nvml.in_turn(gpu.address, self._read_once, gpu,
                                          detail)
            except exception.NvmlError as error:
                found = error
                if is_last or error.symbol in _FINAL:
                    break
                self._nvml.forget(gpu.address)
        return Reading(gpu, error=found)

    def _read_once(self, gpu: model.Gpu, detail: bool) -> Reading:
        problems = problems_module.Problems()
        complete = self._read(gpu, problems, detail)
        return Reading(complete, problems.all())

    def _may_heal(self, reading: Reading) -> bool:
        """Whether a new session may help and has not been tried yet."""
        error = reading.error
        return (error is not None and reading.is_to_be_repeated
                and error.call != nvml_module.INIT
                and self._failures.get(reading.gpu.address) != error.symbol)

    def _noted(self, reading: Reading) -> Reading:
        address = reading.gpu.address
        if reading.error is None:
            self._failures.pop(address, None)
            return reading
        self._known.pop(address, None)
        self._failures[address] = reading.error.symbol
        return Reading(
            dataclasses.replace(reading.gpu,
                                nvml_failure=reading.error.symbol),
            (f'NVML: {reading.error}',))

    def _read(self, gpu: model.Gpu, problems: problems_module.Problems,
              detail: bool) -> model.Gpu:
        device = self._nvml.device(gpu.address)
        mode = self._mode(device)
        facts = self._facts(gpu, device, mode, problems)
        mig_state = self._mig(device, mode, facts, problems, detail)
        return dataclasses.replace(
            gpu, visible_to_nvml=True, model=facts.model,
            architecture=facts.architecture, uuid=facts.uuid,
            serial=facts.serial, memory_mib=facts.memory_mib,
            compute_capability=facts.compute_capability,
            driver_branch=facts.driver_branch,
            vgpu_types=facts.vgpu_types,
            mig=mig_state,
            processes=self._processes(device, mig_state, problems),
            **self._vgpu_state(device, facts, problems,
                               bool(mode and mode[0])))

    def _processes(self, device: Any, mig_state: model.Mig | None,
                   problems: problems_module.Problems) -> int:
        """Return how many processes use the GPU.

        In MIG mode processes run on instances, and use graphics only on
        instances whose profile has graphics.
        """
        graphics = True
        if mig_state is not None and mig_state.enabled:
            if not mig_state.instances:
                return 0
            graphics = any(_GRAPHICS in profile.name
                           for profile in mig_state.profiles)
        found: tuple[nvml_process.Process, ...] = ()
        with problems.noted('processes'):
            found = nvml_process.processes(self._nvml, device, graphics)
        return len({process.pid for process in found})

    def _vgpu_state(self, device: Any, facts: nvml_static.Facts,
                    problems: problems_module.Problems, mig: bool
                    ) -> dict[str, Any]:
        """Return how vGPUs share the GPU now, by field name of model.Gpu."""
        mixed = scheduler = None
        if facts.mixes:
            with problems.noted('mixed-size mode'):
                mixed = nvml_vgpu.mixes_sizes(self._nvml, device)
        if facts.scheduler is not None and not mig:
            with problems.noted('vGPU scheduler'):
                scheduler = nvml_vgpu.scheduler_state(self._nvml, device,
                                                      facts.scheduler)
        return {'mixed_sizes': mixed, 'scheduler': scheduler}

    def _mode(self, device: Any) -> tuple[bool, bool] | None:
        """Return the current and pending MIG mode; None without MIG.

        GPUs without MIG are queried as well, to check that they answer.
        """
        try:
            return self._nvml.mig_mode(device)
        except exception.NvmlError as error:
            if error.symbol in gate.ABSENT:
                return None
            raise

    def _facts(self, gpu: model.Gpu, device: Any,
               mode: tuple[bool, bool] | None,
               problems: problems_module.Problems) -> nvml_static.Facts:
        valid = (self._nvml.generation, gpu.driver, gpu.sriov_numvfs,
                 mode and mode[0])
        known = self._known.get(gpu.address)
        if known is None or known.valid != valid:
            found = problems_module.Problems()
            known = _Known(valid, self._static.facts(
                device, mode and mode[0], found, _board(gpu)))
            self._known[gpu.address] = known
            if found.all():
                # Incomplete: read again in the next snapshot.
                self._known[gpu.address] = dataclasses.replace(
                    known, valid=())
                for reason in found.all():
                    problems.add(reason)
        return known.facts

    def _mig(self, device: Any, mode: tuple[bool, bool] | None,
             facts: nvml_static.Facts, problems: problems_module.Problems,
             detail: bool) -> model.Mig | None:
        if mode is None or (not facts.profiles and problems.all()):
            return None
        enabled, pending = mode
        instances: tuple[model.GpuInstance, ...] = ()
        if enabled:
            instances = tuple(
                self._scheduled(instance, handle, facts, problems)
                for instance, handle in self._nvml.live_handles(
                    device, facts.profiles))
            if detail:
                with problems.noted('MIG devices'):
                    # About twenty calls per instance.
                    instances = tuple(dataclasses.replace(
                        instance, mig_uuids=self._nvml.mig_uuids(
                            device, instance.instance_id))
                        for instance in instances)
        return model.Mig(enabled=enabled, pending=pending,
                         profiles=facts.profiles, instances=instances)

    def _scheduled(self, instance: model.GpuInstance, handle: Any,
                   facts: nvml_static.Facts,
                   problems: problems_module.Problems) -> model.GpuInstance:
        """Add the scheduler to an instance that vGPUs can share."""
        if not any((item.per_instance or 0) > 1 for item in facts.vgpu_types
                   if item.gi_profile_id == instance.profile_id):
            return instance
        with problems.noted('vGPU scheduler'):
            return dataclasses.replace(
                instance, scheduler=nvml_vgpu.instance_scheduler_state(
                    self._nvml, handle,
                    facts.scheduler or model.Scheduler(None)))
        return instance

    def with_free_placements(self, gpu: model.Gpu,
                             problems: problems_module.Problems
                             ) -> model.Gpu:
        """Return the GPU with the free placements of mixed-size mode.

        Types with the same size and placements share one answer. This takes
        two calls per size, and none on a GPU that is not in use.
        """
        if not gpu.mixed_sizes:
            return gpu
        try:
            return self._nvml.in_turn(gpu.address, self._free_placements, gpu,
                                      problems)
        except exception.NvmlNotAnswering as error:
            problems.add(f'NVML: {error}')
            return gpu

    def _free_placements(self, gpu: model.Gpu,
                         problems: problems_module.Problems) -> model.Gpu:
        used = bool(gpu.vgpus or gpu.processes)
        known: dict[tuple, tuple[int, ...]] = {}
        types = []
        for item in gpu.vgpu_types:
            key = (item.framebuffer_mib, item.placement_size,
                   item.placements)
            with problems.noted('vGPU placements'):
                if item.placements and key not in known:
                    known[key] = nvml_vgpu.free_placements(
                        self._nvml, self._nvml.device(gpu.address),
                        item.type_id) if used else item.placements
            types.append(dataclasses.replace(
                item, free_placements=known.get(key)))
        return dataclasses.replace(gpu, vgpu_types=tuple(types))

    def links(self, address: model.PciAddress,
              problems: problems_module.Problems) -> Links:
        """Other ends of a GPU's NVLinks, and whether one is an NVSwitch.

        They are read at the first request, and again after the GPU's static
        facts were read again, because NVLinks are not active in MIG mode.
        """
        known = self._known.get(address)
        if known is None:
            return (), False
        if known.links is None:
            try:
                with problems.noted('NVLink'):
                    known = dataclasses.replace(
                        known, links=self._nvml.in_turn(
                            address, lambda: self._static.links(
                                self._nvml.device(address))))
                    self._known[address] = known
            except exception.NvmlNotAnswering as error:
                problems.add(f'NVML: {error}')
        return known.links or ((), False)


def _board(gpu: model.Gpu) -> tuple[Any, ...]:
    """Return a GPU's PCI ids and what else its facts may depend on."""
    return (gpu.vendor_id, gpu.device_id, gpu.subsystem_vendor_id,
            gpu.subsystem_device_id, gpu.driver, bool(gpu.sriov_numvfs))
