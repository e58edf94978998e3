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

"""NVML's calls about the session and the system."""

from __future__ import annotations

import pynvml

from cyborg_gpu_driver.simulator import abi

_PCI = 'NVML_ERROR_'
_TEXTS = {
    getattr(pynvml, name): name[len(_PCI):].replace('_', ' ').capitalize()
    for name in dir(pynvml) if name.startswith(_PCI)}


@abi.symbol('nvmlInitWithFlags')
def init_with_flags(library, flags):
    library.start(attach=not abi.number(flags)
                  & pynvml.NVML_INIT_FLAG_NO_ATTACH)


@abi.symbol('nvmlInit_v2')
def init(library):
    library.start()


@abi.symbol('nvmlShutdown')
def shutdown(library):
    library.stop()


@abi.symbol('nvmlErrorString')
def error_string(library, code):
    code = abi.number(code)
    if code == pynvml.NVML_SUCCESS:
        return b'Success'
    return _TEXTS.get(code, 'Unknown Error').encode()


@abi.symbol('nvmlSystemGetDriverVersion')
def driver_version(library, buffer, length):
    abi.put_text(buffer, abi.number(length),
                 library.machine.host.driver_version)


@abi.symbol('nvmlSystemGetNVMLVersion')
def nvml_version(library, buffer, length):
    abi.put_text(buffer, abi.number(length),
                 library.machine.host.nvml_version)


@abi.symbol('nvmlSystemGetCudaDriverVersion',
            'nvmlSystemGetCudaDriverVersion_v2')
def cuda_version(library, version):
    abi.put(version, library.machine.host.cuda_version)


@abi.symbol('nvmlDeviceGetCount_v2', 'nvmlDeviceGetCount')
def device_count(library, count):
    abi.put(count, len(library.visible()))
