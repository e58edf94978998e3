# SPDX-License-Identifier: Apache-2.0

"""Whether NVML can work on a GPU, in words. Pure, from the snapshot alone.

This is the only place that decides it. Commands, layouts and the first boot
use it to show and to refuse a GPU.
"""

from __future__ import annotations

import dataclasses

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.host.snapshot import whole

OK = 'ok'
LOST = 'lost'
UNREADABLE = 'unreadable'
PARTLY = 'partly unreadable'
UNSEEN = 'not seen by NVML'
NO_ANSWER = 'no answer'
NEEDS_RESET = 'needs a reset'
FUNCTION = 'virtual function'
_FAILURES = {
    # nvml.h: "The GPU has fallen off the bus or has otherwise become
    # inaccessible".
    'GPU_IS_LOST': LOST,
    # nvml.h: "The GPU requires a reset before it can be used again".
    'RESET_REQUIRED': NEEDS_RESET,
    'TIMEOUT': NO_ANSWER,
    exception.NvmlNotAnswering.symbol: NO_ANSWER,
}


def state(gpu: model.Gpu) -> str:
    """Return the state of a GPU for NVML, in one to three words.

    It is one of the constants above, ``bound to DRIVER`` or ``no driver``.
    """
    if gpu.driver != whole.NVIDIA:
        return f'bound to {gpu.driver}' if gpu.driver else 'no driver'
    if gpu.physfn is not None:
        return FUNCTION
    if not gpu.visible_to_nvml:
        return _FAILURES.get(gpu.nvml_failure or '',
                             UNREADABLE if gpu.problems else UNSEEN)
    if gpu.problems:
        return UNREADABLE if gpu.mig is None else PARTLY
    return OK


def doubts(gpu: model.Gpu) -> tuple[str, ...]:
    """What could not be read of a GPU and of its virtual functions.

    A function that was not read may have a vGPU. So whoever takes a GPU for
    idle, or a vGPU for gone, asks this.
    """
    return (*gpu.problems, *(
        f'virtual function {function.address}: {function.problem}'
        for function in gpu.vfs if function.problem))


def is_away(gpu: model.Gpu) -> bool:
    """Whether NVML cannot, or must not, read the GPU.

    Another driver or none is bound to it, or it is not a physical GPU.
    """
    return gpu.physfn is not None or gpu.driver != whole.NVIDIA


def is_failed(gpu: model.Gpu) -> bool:
    """Whether NVIDIA's driver has the GPU and not all of it can be read."""
    return not is_away(gpu) and state(gpu) != OK


def obstacle(gpu: model.Gpu) -> str:
    """Return why NVML cannot work on a GPU; empty if it can.

    Only its problems tell a GPU whose MIG state could not be read from a GPU
    without MIG.
    """
    if gpu.driver != whole.NVIDIA:
        return (f'it is bound to {gpu.driver}, not to the {whole.NVIDIA} '
                'driver' if gpu.driver
                else f'the {whole.NVIDIA} driver is not bound to it')
    if gpu.physfn is not None:
        return f'it is a virtual function of {gpu.physfn}'
    if gpu.visible_to_nvml and (gpu.mig is not None or not gpu.problems):
        return ''
    return ': '.join(filter(None, (state(gpu), '; '.join(gpu.problems))))


# What a GPU reports about its own health: immutable values, no I/O.

UNREACHABLE = 'PCI_UNREACHABLE'
"""The PCI configuration space cannot be read."""
FATAL = 'PCI_FATAL'
"""Fatal PCIe errors (AER) since NVML was last queried."""
LANES = 'PCI_LANES'
"""The PCIe link has fewer lanes than when NVML was last queried."""
PCI = frozenset({UNREACHABLE, FATAL, LANES})


@dataclasses.dataclass(frozen=True)
class Facts:
    """The answers of one GPU at one moment; None stands for no answer."""

    answered: bool = False
    """Whether the GPU gave any answer; if not, nothing is known about it."""
    lost: bool = False
    """NVML can no longer reach the GPU (GPU_IS_LOST)."""
    not_answering: bool = False
    """A call about the GPU did not return in time; no others were made."""
    reset_required: bool = False
    """NVML refuses to use the GPU before a reset (RESET_REQUIRED)."""
    ecc_uncorrected: int | None = None
    """Uncorrected ECC errors since the driver was loaded (volatile)."""
    remapped_rows: int | None = None
    """Rows of memory remapped so far (Ampere and later)."""
    remap_pending: bool | None = None
    """Whether rows wait for a reset to be remapped."""
    remap_failed: bool | None = None
    """A row could not be remapped, because no spare row is left for it."""
    retired_pending: bool | None = None
    """Whether pages wait for a reset to be retired (before Ampere)."""
    thermal_slowdown: bool | None = None
    """The hardware reduces its clocks by half or more because of heat."""
    recovery_action: int | None = None
    """Action that the driver requests (nvmlDeviceGpuRecoveryAction_t); 0 is
    none. Drivers from R565 on report it (NVML's change log)."""
    by_pci: bool = False
    """NVML was not queried: only what the PCI bus reports is known."""
    pci: tuple[str, ...] = ()
    """The faults that the PCI bus reports, from :data:`PCI`."""


@dataclasses.dataclass(frozen=True)
class Event:
    """An error that the driver reported for one GPU.

    ``instance_id`` and ``compute_id`` are None if the error concerns the
    whole GPU.
    """

    address: model.PciAddress
    xid: int
    instance_id: int | None = None
    compute_id: int | None = None
