# SPDX-License-Identifier: Apache-2.0

"""Reads the NVSwitch fabric of a host."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Any

from oslo_concurrency import processutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import usage
from cyborg_gpu_driver.host.fabric import config as config_module
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.sysfs import pci

_NVIDIA = 'nvidia'
_SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH of nvml.h."""
_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of nvml.h."""
_VERSION = re.compile(r'Fabric Manager version is\s*:\s*(\S+)', re.ASCII)
"""What ``nv-fabricmanager --version`` prints."""
_SECONDS = 10


def read(machine: platform.Platform, host: model.Host
         ) -> model.Fabric | None:
    """Read the fabric, and query its manager; None without NVSwitches."""
    modules = _modules(machine, host)
    if (not pci.PciBus(machine.sysfs).nvswitches()
            and not _any_on_switches(machine, modules)):
        return None
    version, installed = _version(machine)
    return model.Fabric(
        modules, usage.fabric_manager_runs(machine), version=version,
        installed=installed, **_configured(machine), **_asked(machine))


def module_on_switches(machine: platform.Platform,
                       address: model.PciAddress) -> int | None:
    """Module id of a GPU that NVML knows; None if not on NVSwitches."""
    module, on_switches = baseboard(machine, address)
    return module if on_switches else None


def baseboard(machine: platform.Platform, address: model.PciAddress
              ) -> tuple[int | None, bool]:
    """Module id of a GPU that NVML knows, and whether it is on NVSwitches.

    :returns: None as the id of a GPU that is not on a baseboard.
    """
    device = machine.nvml.device(address)
    module = machine.nvml.optional('nvmlDeviceGetModuleId', device)
    if not module:
        return None, False
    return int(module), _ends_at_switch(machine, device)


def _modules(machine: platform.Platform, host: model.Host
             ) -> dict[model.PciAddress, int]:
    """Return the module ids of the GPUs on a baseboard.

    The module id 0 means no baseboard (nvmlDeviceGetModuleId in nvml.h).
    """
    found = {}
    for gpu in host.gpus:
        if gpu.driver == _NVIDIA and gpu.visible_to_nvml:
            with contextlib.suppress(exception.NvmlError):
                found[gpu.address] = machine.nvml.optional(
                    'nvmlDeviceGetModuleId', machine.nvml.device(gpu.address))
    return {address: number for address, number in found.items() if number}


def _any_on_switches(machine: platform.Platform,
                     addresses: Iterable[model.PciAddress]) -> bool:
    """Whether NVLinks of a GPU that answers lead to NVSwitches.

    NVSwitches of Blackwell and later are not PCI functions of the host.
    """
    for address in addresses:
        with contextlib.suppress(exception.NvmlError):
            if _ends_at_switch(machine, machine.nvml.device(address)):
                return True
    return False


def _ends_at_switch(machine: platform.Platform, device: Any) -> bool:
    """Whether an NVLink of a GPU leads to an NVSwitch."""
    try:
        return any(
            machine.nvml.optional('nvmlDeviceGetNvLinkRemoteDeviceType',
                                  device, link) == _SWITCH
            for link in range(_LINKS))
    except exception.NvmlError as error:
        # The GPU has fewer links.
        if error.symbol == 'INVALID_ARGUMENT':
            return False
        raise


def _version(machine: platform.Platform
             ) -> tuple[str | None, bool | None]:
    """Version of the fabric manager, and whether it is installed."""
    tool = machine.nv_fabricmanager
    try:
        text = (tool('--version') if callable(tool) else
                processutils.execute(tool, '--version', timeout=_SECONDS)[0])
    except FileNotFoundError:
        return None, False
    except (OSError, processutils.ProcessExecutionError,
            processutils.subprocess.TimeoutExpired):
        return None, None
    found = _VERSION.search(text)
    return (found[1] if found else None), True


def _configured(machine: platform.Platform) -> dict[str, Any]:
    """Return what the fabric manager's configuration says."""
    try:
        found = config_module.read(machine.fabric_config)
    except exception.FabricError as error:
        return {'mode_problem': str(error)}
    return {'mode': found.mode, 'address': found.address}


def _asked(machine: platform.Platform) -> dict[str, Any]:
    """Return what the fabric manager itself reports.

    A fabric manager that was started with ``--restart`` never reports failed
    NVLinks ("Getting a List of Devices with Failed NVLinks" in the user
    guide).
    """
    failed: tuple[str, ...] = ()
    try:
        found = (*machine.fabric.partitions(), *machine.fabric.unsupported())
        try:
            failed = machine.fabric.failed_devices()
        except exception.FabricError as error:
            if error.symbol != 'NOT_SUPPORTED':
                raise
    except exception.GpuDriverError as error:
        return {'problem': str(error)}
    return {'failed': failed, 'partitions': tuple(
        sorted(found, key=lambda item: item.partition_id))}
