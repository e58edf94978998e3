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

"""The kernel drivers that a GPU may be bound to. Pure."""

from __future__ import annotations

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
    """Whether an unbind from NVIDIA's driver makes nvidia_drm let go.

    :param version: of the driver; None if it is unknown.
    """
    return tuple(int(part) for part in (version or '').split('.')
                 if part.isdigit()) >= _RELEASES_DISPLAY
