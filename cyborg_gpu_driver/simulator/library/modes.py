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

"""NVML's calls about modes that outlive a tenant: ECC, confidential computing.

nvml.h: nvmlDeviceSetEccMode needs root, is persistent and takes effect after
the next restart; the pending mode is the mode after that restart. Here a
reset has the same effect, because it starts the GPU again.
"""

from __future__ import annotations

import pynvml

from cyborg_gpu_driver.simulator.abi import memory
from cyborg_gpu_driver.simulator.abi import symbols
from cyborg_gpu_driver.simulator.driver import refusal

Refused = refusal.Refused


@symbols.symbol('nvmlDeviceGetEccMode')
def ecc_mode(library, handle, current, pending):
    modes = library.gpu(handle).state.ecc_modes
    for reference, mode in zip((current, pending), modes, strict=True):
        memory.put(reference, int(mode))


@symbols.symbol('nvmlDeviceGetDefaultEccMode')
def default_ecc_mode(library, handle, default):
    library.gpu(handle)
    memory.put(default, pynvml.NVML_FEATURE_ENABLED)


@symbols.symbol('nvmlDeviceSetEccMode', writes=True, privileged=True)
def set_ecc_mode(library, handle, mode):
    gpu = library.gpu(handle)
    value = memory.number(mode)
    if value not in (pynvml.NVML_FEATURE_DISABLED,
                     pynvml.NVML_FEATURE_ENABLED):
        raise Refused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    gpu.state.ecc_modes[1] = bool(value)


@symbols.symbol('nvmlSystemGetConfComputeState')
def confidential_computing(library, state):
    """The state of confidential computing, which exists since Hopper.

    No public source says what NVML returns for an older board. The call may
    return NOT_SUPPORTED (nvml.h).
    """
    if not any(gpu.model.architecture >= pynvml.NVML_DEVICE_ARCH_HOPPER
               for gpu in library.visible()):
        raise Refused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    mode = library.machine.state.confidential_computing
    found = memory.target(state)
    found.environment = (pynvml.NVML_CC_SYSTEM_ENVIRONMENT_PROD if mode
                         else pynvml.NVML_CC_SYSTEM_ENVIRONMENT_UNAVAILABLE)
    found.ccFeature = int(mode == 'on')
    found.devToolsMode = int(mode == 'devtools')
