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

"""The traces that users leave on a GPU, as NVML shows them."""

from __future__ import annotations

from typing import Any

import pynvml

from cyborg_gpu_driver.host.nvml import library as nvml_library
from cyborg_gpu_driver.host.nvml import session as nvml_module

_MIB = 1 << 20


def uuid(nvml: nvml_module.NvmlSession, device: Any) -> str:
    """The GPU's UUID.

    :raises NvmlError: if it cannot be read.
    """
    return nvml_library.text(nvml.call('nvmlDeviceGetUUID', device))


def memory_mib(nvml: nvml_module.NvmlSession, device: Any
               ) -> tuple[int, int] | None:
    """Return the used memory without the driver's own, and the total.

    :returns: None if the driver does not report its own memory separately.
    :raises NvmlError: if it cannot be read.
    """
    found = nvml.optional('nvmlDeviceGetMemoryInfo', device,
                          pynvml.nvmlMemory_v2)
    return found and (found.used // _MIB, found.total // _MIB)


def uncorrected_errors(nvml: nvml_module.NvmlSession, device: Any
                       ) -> int | None:
    """Uncorrected memory errors since the last reset (volatile ECC).

    :returns: None on a GPU without ECC.
    :raises NvmlError: if they cannot be read.
    """
    return nvml.optional('nvmlDeviceGetTotalEccErrors', device,
                         pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                         pynvml.NVML_VOLATILE_ECC)
