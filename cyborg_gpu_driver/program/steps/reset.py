# SPDX-License-Identifier: Apache-2.0

"""The one way to reset a GPU, with checks before and after it.

A reset through sysfs has no checks: the kernel resets a function even if it
is in use (pci_reset_function), and does not notify NVIDIA's driver. So
nvidia-smi asks the driver to reset the GPU, if nvidia-smi is installed, and
refuses if the GPU is in use. Otherwise the GPU is unbound with the consent of
its driver, reset and bound again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import health as host_health
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.fabric import config
from cyborg_gpu_driver.host.fabric import reader
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import modes
from cyborg_gpu_driver.host.nvml import process as nvml_process
from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole
from cyborg_gpu_driver.host.sysfs import pci
from cyborg_gpu_driver.partition import cleaning
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program.privileged import consent
from cyborg_gpu_driver.program.privileged import driver as privileged_driver
from cyborg_gpu_driver.program.privileged import fabric as privileged_fabric
from cyborg_gpu_driver.program.privileged import gpu as privileged_gpu
from cyborg_gpu_driver.program.privileged import mig as privileged_mig
from cyborg_gpu_driver.program.steps import blockers
from cyborg_gpu_driver.program.steps import vfio

LOG = logging.getLogger(__name__)


def once(machine: platform.Platform, address: model.PciAddress,
         was_guests: bool = False) -> str:
    """Reset a GPU that is not in use, and check that it answers.

    :param was_guests: whether it is bound to nvidia only for the time between
        two guests.
    :returns: how it was reset: ``nvidia-smi``, or the kernel's method.
    :raises GpuInUse: naming the processes that have it open; it was not
        reset.
    """
    with machine.nvml.alone():
        method = _reset(machine, address, was_guests)
        nvml = machine.nvml
        if pci.PciBus(machine.sysfs).driver(address) == whole.NVIDIA:
            try:
                with nvml.kept():
                    nvml.call('nvmlDeviceGetUUID', nvml.device(address))
            except exception.NvmlError as error:
                raise exception.StepFailed(
                    reason=f'it does not answer after its reset: {error}'
                ) from error
    return method


def clear_partitions(machine: platform.Platform, address: model.PciAddress
                     ) -> None:
    """Reset a GPU that keeps partitions of an earlier fabric manager.

    From NVLink 5 on, the GPUs on NVSwitches have to be reset after the fabric
    manager has started with FABRIC_MODE=1 (NVIDIA/gpu-driver-container#909).
    Their NVSwitches are not PCI functions of the host.

    :raises FabricError: if the fabric manager does not answer yet.
    """
    try:
        mode = config.read(machine.fabric_config).mode
    except exception.FabricError:
        return
    if (mode is not model.FabricMode.SHARED_NVSWITCH
            or pci.PciBus(machine.sysfs).nvswitches()):
        return
    with machine.nvml.kept():
        if reader.module_on_switches(machine, address) is None:
            return
    privileged_fabric.read_partitions()
    once(machine, address)


def refuse_held(address: model.PciAddress) -> None:
    """Check that no process has a GPU open."""
    found = privileged_driver.holders(str(address))
    if found:
        raise exception.GpuInUse(
            gpu=address, reason='open in ' + consent.describe(found))


def _reset(machine: platform.Platform, address: model.PciAddress,
           was_guests: bool) -> str:
    driver = pci.PciBus(machine.sysfs).driver(address)
    switches = pci.PciBus(machine.sysfs).nvswitches()
    LOG.info('Resetting GPU %s', address)
    if driver == whole.NVIDIA:
        _check_fabric(switches)
        if privileged_gpu.reset_by_driver(str(address)):
            return 'nvidia-smi'
        if switches and not was_guests:
            raise exception.StepFailed(
                reason="only nvidia-smi can reset a GPU of NVIDIA's driver on "
                'NVSwitches, and it is not installed, or nvidia_drm has '
                'the GPU open (set options nvidia_drm modeset=0 in '
                'modprobe.d)')
    # The hypervisor resets the GPUs of guests, on NVSwitches too (Fabric
    # Manager User Guide, on the life cycle of a guest).
    privileged_driver.reset(str(address))
    return machine.sysfs.read_optional(*pci.DEVICES, str(address),
                                       'reset_method') or 'sysfs'


def _check_fabric(switches: Iterable[str]) -> None:
    """Check that the fabric manager runs if a reset needs it.

    A reset needs it on NVSwitch systems of Ampere, and no longer on those of
    Hopper and later (the manual of nvidia-smi, --gpu-reset).
    """
    if (not pci.HOPPER_NVSWITCHES.issuperset(switches)
            and not privileged_gpu.fabric_manager_runs()):
        raise exception.StepFailed(
            reason="NVIDIA's fabric manager is not running, and a GPU on its "
            'NVSwitches cannot be reset without it: start the unit '
            'nvidia-fabricmanager')


class Resetter:
    """Resets unused GPUs of one machine."""

    def __init__(self, machine: platform.Platform,
                 gpu_health: health.GpuHealth):
        self._machine = machine
        self._health = gpu_health
        self.done: set[model.PciAddress] = set()
        """GPUs that were reset; the caller clears the set."""

    def can_reset(self, gpu: model.Gpu) -> bool:
        """Whether nvidia-smi or the kernel can reset the GPU."""
        return (whole.NVIDIA in (gpu.driver, gpu.bound_from)
                or self._machine.sysfs.exists(
                    *pci.DEVICES, str(gpu.address), 'reset'))

    def reset(self, gpu: model.Gpu,
              begin: Callable[[], None]) -> dict[str, Any]:
        """Reset a GPU and check that it is clean. The caller holds its lock.

        :param begin: called before the GPU is touched.
        :returns: the evidence that it was reset and is clean, for JSON.
        """
        address = gpu.address
        record = self._machine.records.board(address)
        # It may be at nvidia again, after a reset that did not finish.
        wanted = (record.modes if record is not None
                  and record.bound_from == whole.NVIDIA else None)
        before = self._opened(gpu, begin, wanted)
        if before.driver != whole.NVIDIA:
            # The operator has bound it, and NVML cannot read its modes.
            wanted = None
        if before.uuid is not None and gpu.uuid not in (None, before.uuid):
            raise exception.StepFailed(
                reason=f'NVML shows {before.uuid} where {gpu.uuid} was')
        begin()
        began = time.monotonic()
        if wanted is not None:
            self._restore(gpu, wanted)
        method = once(self._machine, address,
                      gpu.bound_from == whole.NVIDIA)
        seconds = round(time.monotonic() - began, 3)
        self._health.reset_done(address)
        self.done.add(address)
        after = self._traces(address)
        reason = cleaning.remains(before, after)
        if wanted is not None and not reason:
            reason = cleaning.changed(str(address), wanted,
                                      self._modes(address)[0])
        if reason:
            raise exception.StepFailed(reason=reason)
        if host_health.read_pci(
                self._machine.sysfs, address).reachable is False:
            raise exception.StepFailed(
                reason='its PCI configuration space cannot be read after '
                'the reset')
        return {'method': method, 'seconds': seconds,
                'before': dataclasses.asdict(before),
                'after': dataclasses.asdict(after)}

    def _opened(self, gpu: model.Gpu, begin: Callable[[], None],
                wanted: gpu_record.Modes | None) -> cleaning.Traces:
        """The traces of a GPU that NVML sees, and that nothing uses.

        :param wanted: the modes that it had before its server, if known.
        """
        if not self.can_reset(gpu):
            raise exception.StepFailed(
                reason='the kernel has no way to reset it (no file "reset" '
                'in sysfs); [gpu] clean_whole_gpus = false offers it '
                'without a reset')
        try:
            # A GPU that the operator bound to vfio-pci remains there: the
            # operator may not want the nvidia driver to have it at all.
            if gpu.bound_from == whole.NVIDIA:
                begin()
                vfio.bind(self._machine, gpu.address, whole.NVIDIA)
            traces = self._traces(gpu.address)
        except exception.NvmlError as error:
            hint = wanted and cleaning.shut(str(gpu.address), wanted)
            if not hint:
                raise
            raise exception.StepFailed(reason=f'{error}; {hint}') from error
        if traces.processes:
            raise exception.GpuInUse(
                gpu=gpu.address, reason=f'{traces.processes} process(es) of '
                'this machine use it')
        return traces

    def _restore(self, gpu: model.Gpu, wanted: gpu_record.Modes) -> None:
        """Set the modes that a GPU had before it was handed over.

        A guest can change them, and they take effect at the next reset
        (:mod:`cyborg_gpu_driver.host.nvml.modes`). Only MIG mode may take
        effect at once, with a reset by NVML.
        """
        address = str(gpu.address)
        now, pending = self._modes(gpu.address)
        if wanted.ecc is not None and pending.ecc is not wanted.ecc:
            privileged_gpu.set_ecc_mode(address, wanted.ecc)
        if {now.mig, pending.mig} != {wanted.mig}:
            with self._machine.nvml.alone():
                privileged_mig.set_mig_mode(address, wanted.mig)

    @gate.series
    def _modes(self, address: model.PciAddress
               ) -> tuple[gpu_record.Modes, gpu_record.Modes]:
        return modes.kept(self._machine.nvml, address)

    @gate.series
    def _traces(self, address: model.PciAddress) -> cleaning.Traces:
        """The traces that users have left on a GPU."""
        driver = pci.PciBus(self._machine.sysfs).driver(address)
        if driver is None or whole.is_vfio(driver):
            return cleaning.Traces(driver)
        if driver != whole.NVIDIA:
            raise exception.StepFailed(
                reason=f'it is bound to {driver}, and the users of that '
                       'driver cannot be determined')
        nvml = self._machine.nvml
        device = nvml.device(address)
        used, total = nvml_process.memory_mib(nvml, device) or (None, None)
        return cleaning.Traces(
            driver=driver, uuid=nvml.uuid(device),
            processes=len(nvml_process.processes(nvml, device)),
            memory_used_mib=used, memory_mib=total,
            ecc_uncorrected=nvml_process.uncorrected_errors(nvml, device))


# Turning a GPU's MIG mode on and off, with the reset that it may need.
#
# NVML's answer is not sufficient: the mode may be set and only pending. So
# the mode is read again each time (nvmlDeviceGetMigMode).

_BUSY = 'IN_USE'
_RESTART = 'RESET_REQUIRED'
_REASONS = (exception.GpuInUse, exception.StepFailed, exception.UsageUnknown)
"""Why a GPU is neither changed nor reset."""


def switch(machine: platform.Platform, gpu: model.Gpu, enable: bool,
           may_reset: bool = True) -> bool:
    """Turn a GPU's MIG mode on or off.

    nvmlDeviceSetMigMode unbinds or resets the GPU if the mode needs that to
    take effect, as on Ampere. Its activation status is IN_USE if the GPU
    could not be unbound because it is not idle, and RESET_REQUIRED if this
    machine cannot reset the GPU (nvml.h). If the mode is only pending after
    the call, this function resets the GPU.

    :param gpu: without GPU instances if MIG mode is turned off.
    :param may_reset: False leaves a mode that waits for a reset pending.
    :returns: whether the mode is current; False only if it is pending and
        ``may_reset`` is False.
    :raises ChangeRefused: naming what is in the way; the mode may be pending.
    """
    if _read(machine, gpu) == (enable, enable):
        return True
    try:
        with machine.nvml.alone():
            return _switch(machine, gpu, enable, may_reset)
    except _REASONS as error:
        raise _blocked(gpu, enable, str(error), ()) from error


def _switch(machine: platform.Platform, gpu: model.Gpu, enable: bool,
            may_reset: bool) -> bool:
    """As :func:`switch`; the caller has exclusive use of NVML."""
    status = _set(machine, gpu, enable)
    current, pending = _read(machine, gpu)
    if current == enable:
        return True
    if pending != enable:
        raise _blocked(gpu, enable, f'NVML answered {status}',
                       blockers.of_mode(machine, gpu, enable))
    if not may_reset:
        LOG.info('GPU %s waits for a reset', gpu.address)
        return False
    if status == _RESTART:
        raise _blocked(gpu, enable, 'the mode takes effect when this machine '
                       'is restarted, because it cannot reset its GPUs', ())
    machine.nvml.reset()
    try:
        once(machine, gpu.address)
    except _REASONS:
        # A pending mode would take effect at any later reset.
        with contextlib.suppress(exception.NvmlError):
            _set(machine, gpu, current)
        raise
    if _read(machine, gpu)[0] != enable:
        raise _blocked(gpu, enable,
                       'the GPU was reset, but its mode is the same', ())
    return True


def put_back(machine: platform.Platform, gpu: model.Gpu, enabled: bool,
             pending: bool) -> None:
    """Restore a GPU's current and pending MIG mode."""
    current, waiting = _read(machine, gpu)
    if current != enabled:
        switch(machine, gpu, enabled)
        current, waiting = _read(machine, gpu)
    if waiting != pending:
        with machine.nvml.alone():
            _set(machine, gpu, pending)


@gate.series
def _read(machine: platform.Platform, gpu: model.Gpu) -> tuple[bool, bool]:
    nvml = machine.nvml
    return nvml.mig_mode(nvml.device(gpu.address))


def _set(machine: platform.Platform, gpu: model.Gpu, enable: bool) -> str:
    try:
        return privileged_mig.set_mig_mode(str(gpu.address), enable)
    except exception.NvmlError as error:
        if error.symbol != _BUSY:
            raise
        raise _blocked(gpu, enable, str(error), blockers.of_mode(
            machine, gpu, enable)) from error
    finally:
        # NVIDIA's driver may unbind the GPU; NVML's handle is then invalid.
        machine.nvml.forget(gpu.address)


def _blocked(gpu: model.Gpu, enable: bool, reason: str,
             found: Iterable[str]) -> exception.ChangeRefused:
    if found:
        reason += '; blocked by ' + ', '.join(found)
    return exception.ChangeRefused(
        f'GPU {gpu.address}: MIG mode cannot be turned '
        f'{"on" if enable else "off"}: {reason}')
