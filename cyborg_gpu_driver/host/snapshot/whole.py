# SPDX-License-Identifier: Apache-2.0

"""Whether a guest can get a whole GPU, as its IOMMU group allows. Pure.

A guest gets a whole IOMMU group (Documentation/driver-api/vfio.rst of Linux).
VFIO refuses the group while a driver of the host manages the DMA of one of its
functions (iommu_group_claim_dma_owner in drivers/iommu/iommu.c).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

# The kernel drivers that a GPU may be bound to. Pure.

NVIDIA = 'nvidia'
VFIO_PCI = 'vfio-pci'
_RELEASES_DISPLAY = (580, 105, 8)
"""The first version whose remove callback makes nvidia_drm let go of the GPU
(nvidia_modeset_remove in kernel-open/nvidia/nv-pci.c of NVIDIA's open kernel
modules; not in 580.95.05)."""


def is_vfio(driver: str | None) -> bool:
    """Whether a driver assigns a function to a guest.

    vfio-pci does, and so do drivers for single boards such as
    nvgrace_gpu_vfio_pci.
    """
    return driver is not None and 'vfio' in driver


def releases_display(version: str | None) -> bool:
    """Whether an unbind from NVIDIA's driver makes nvidia_drm let go."""
    return tuple(int(part) for part in (version or '').split('.')
                 if part.isdigit()) >= _RELEASES_DISPLAY


_BESIDE = (None, 'pcieport', 'pci-stub')
"""Drivers, beside those of VFIO, that do not manage the DMA of their functions
(driver_managed_dma of struct pci_driver in include/linux/pci.h)."""
_BRIDGE = '0604'
_DISPLAY = ('0300', '0302')
NO_GROUP = ('it is in no IOMMU group: turn on the IOMMU (in the firmware, and '
            'intel_iommu=on for the kernel)')


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """Another function in the IOMMU group of a GPU."""

    address: str
    class_code: str
    """``0c03``."""
    driver: str | None = None

    @property
    def is_harmless(self) -> bool:
        """Whether VFIO accepts a group with it."""
        return (self.driver in _BESIDE or is_vfio(self.driver)
                or self.class_code == _BRIDGE)


def obstacle(address: str, group: int | None,
             neighbours: Collection[Neighbour] | None, follow: bool,
             together: Collection[str] = ()) -> str:
    """Return why a guest cannot get a GPU because of its IOMMU group.

    :param neighbours: the other functions in its group; None if they could
        not be read.
    :param follow: whether this library is to bind the GPU to vfio-pci. It
        then binds the other functions of the board too.
    """
    if neighbours is None:
        return 'its IOMMU group cannot be read'
    if group is None:
        return NO_GROUP
    for other in neighbours:
        same_board = (other.address.rpartition('.')[0]
                      == address.rpartition('.')[0])
        if not other.is_harmless:
            if same_board and follow:
                continue
            shown = (f'{other.address} (driver {other.driver}) is in the same '
                     f'IOMMU group, {group}')
            return (f'{shown}: bind it to vfio-pci too' if same_board else
                    f'{shown}, but is not part of the GPU: the slot needs '
                    'access control (ACS)')
        if (other.class_code in _DISPLAY and not same_board
                and other.address not in together):
            return (f'GPU {other.address} is in the same IOMMU group, '
                    f'{group}: they can only be assigned to a server '
                    'together, unless ACS is enabled in the firmware settings')
    return ''
