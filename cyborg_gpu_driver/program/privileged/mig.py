# SPDX-License-Identifier: Apache-2.0

"""Privileged operations on MIG.

The operations on vGPUs, on whole GPUs and on their kernel drivers are in the
other modules of this package. Each operation takes plain values, checks them
again (it may run in the daemon of oslo.privsep, which trusts no caller) and
makes one change to the machine.
Errors of the hardware are raised unchanged, as
:class:`~cyborg_gpu_driver.exception.NvmlError` and
:class:`~cyborg_gpu_driver.exception.SysfsError`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host.nvml import compute
from cyborg_gpu_driver.host.nvml import session
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci

_GRID_LIMIT = 64
NVIDIA_VENDOR = '0x10de'
"""NVIDIA's vendor id, as in the ``vendor`` file of a PCI function."""

_platform = None
_making = threading.Lock()
_compute_reader = None


def run_here(machine: platform.Platform) -> None:
    """Run the operations in this process, on ``machine``.

    This is for processes that are already privileged, and for simulated
    machines.
    """
    global _platform
    _platform = machine
    privsep.gpu_context.set_client_mode(False)


def machine() -> platform.Platform:
    """The machine of this process; in the daemon, the one of its options."""
    global _platform
    with _making:
        if _platform is None:
            gpu_conf.register_opts(cfg.CONF)
            _platform = platform.from_conf(cfg.CONF)
            # The daemon must not keep a GPU open between two operations.
            _platform.nvml.stays_open = False
        return _platform


@privsep.entrypoint
def create_gpu_instance(address: str, profile_id: int, start: int,
                        size: int) -> tuple[int, int, int]:
    """Create a GPU instance at an explicit placement and read it back.

    :param start, size: in memory units of the grid.
    :returns: instance id, start and size as NVML returns them.
    :raises NvmlError: INSUFFICIENT_RESOURCES if a unit is taken.
    """
    check_number('profile id', profile_id, 1 << 31)
    check_number('start', start, _GRID_LIMIT)
    check_number('size', size, _GRID_LIMIT)
    with gpu(address) as (nvml, device):
        instance = nvml.create_gpu_instance(device, profile_id,
                                            model.Placement(start, size))
    return (instance.instance_id, instance.placement.start,
            instance.placement.size)


@privsep.entrypoint
def destroy_gpu_instance(address: str, instance_id: int) -> None:
    """Destroy a GPU instance without compute instances.

    :raises NvmlError: IN_USE if it has compute instances, a process or a
        vGPU; NOT_FOUND.
    """
    check_number('instance id', instance_id, 1 << 31)
    with gpu(address) as (nvml, device):
        nvml.destroy_gpu_instance(device, instance_id)


@privsep.entrypoint
def destroy_compute_instances(address: str, instance_id: int) -> None:
    """Destroy all compute instances of a GPU instance.

    The caller must know that nothing uses the GPU instance: the driver may
    not refuse to destroy the compute instances of a guest.

    :raises NvmlError: IN_USE if a process runs on one; NOT_FOUND.
    """
    check_number('instance id', instance_id, 1 << 31)
    with gpu(address) as (nvml, device):
        nvml.destroy_compute_instances(device, instance_id)


@privsep.entrypoint
def create_compute_instance(address: str, profile_id: int, instance_id: int,
                            start: int | None, slices: int
                            ) -> tuple[int, int, int]:
    """Create a compute instance in a GPU instance and read it back.

    :param start: the first compute slice within the GPU instance; None lets
        the driver choose.
    :returns: its id, start and slices as NVML returns them.
    :raises NvmlError: INSUFFICIENT_RESOURCES if a slice is taken.
    """
    check_number('profile id', profile_id, 1 << 31)
    check_number('instance id', instance_id, 1 << 31)
    if start is not None:
        check_number('start', start, _GRID_LIMIT)
    check_number('slices', slices, _GRID_LIMIT)
    made = _compute().create(
        model.PciAddress.parse(address), profile_id, instance_id, start,
        slices)
    return made.compute_id, made.start, made.size


@privsep.entrypoint
def destroy_compute_instance(address: str, instance_id: int,
                             compute_id: int) -> None:
    """Destroy a compute instance.

    :raises NvmlError: IN_USE if a process runs on it; NOT_FOUND.
    """
    check_number('instance id', instance_id, 1 << 31)
    check_number('compute instance id', compute_id, 1 << 31)
    _compute().destroy(model.PciAddress.parse(address), instance_id,
                       compute_id)


@privsep.slow_entrypoint
def set_mig_mode(address: str, enable: bool) -> str:
    """Request a MIG mode.

    The caller has exclusive use of NVML on this machine.

    :returns: activation status, ``SUCCESS``, ``RESET_REQUIRED`` or
        ``IN_USE``. The caller has to read which mode is current.
    :raises NvmlError: IN_USE, NOT_SUPPORTED, NO_PERMISSION.
    """
    check_truth('MIG mode', enable)
    nvml = machine().nvml
    with nvml.lent():
        return nvml.set_mig_mode(
            nvml.device(model.PciAddress.parse(address)), enable)


def _compute() -> compute.ComputeReader:
    """The reader of this process's machine, which keeps what it has read."""
    global _compute_reader
    here = machine()
    if _compute_reader is None or _compute_reader.nvml is not here.nvml:
        _compute_reader = compute.ComputeReader(here.nvml)
    return _compute_reader


def nvidia_function(address: str) -> model.PciAddress:
    """Parse the address of an NVIDIA PCI function, physical or virtual."""
    parsed = model.PciAddress.parse(address)
    if machine().sysfs.read_optional(
            *pci.DEVICES, str(parsed), 'vendor') != NVIDIA_VENDOR:
        raise exception.UnknownGpu(address=parsed)
    return parsed


@contextlib.contextmanager
def gpu(address: str) -> Iterator[tuple[session.NvmlSession, Any]]:
    """The session and a GPU's handle in it, for a series of calls."""
    parsed = model.PciAddress.parse(address)
    nvml = machine().nvml
    with nvml.kept():
        yield nvml, nvml.device(parsed)


def check_truth(what: str, value: bool) -> None:
    """Refuse a value that is neither True nor False."""
    if type(value) is not bool:
        raise exception.InvalidValue(what=what, value=value,
                                     expected='expected True or False')


def check_number(what: str, value: int, limit: int) -> None:
    """Refuse a value that is not an integer from 0 to below ``limit``."""
    if type(value) is not int or not 0 <= value < limit:
        raise exception.InvalidValue(
            what=what, value=value,
            expected=f'expected a number from 0 to {limit - 1}')
