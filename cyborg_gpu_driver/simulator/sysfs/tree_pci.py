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

"""Files of a GPU in sysfs that the PCI core creates with any driver.

Formats: Documentation/ABI/testing/sysfs-bus-pci and
sysfs-bus-pci-devices-aer of Linux.
"""

from __future__ import annotations

import struct

import pynvml

from cyborg_gpu_driver.simulator import state as state_module
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.sysfs import nodes

_CONFIG_BYTES = 256
"""The part that root reads, without the extended capabilities."""
_COMMAND = 0x0406
"""Memory decoding and bus mastering on, legacy interrupts off."""
_STATUS = 0x0010
"""The function has capabilities."""
_UNKNOWN_WIDTH = 63
"""All ones in the six bits of the link status register."""
_SPEEDS = {
    pynvml.NVML_DEVICE_ARCH_TURING: '8.0 GT/s PCIe',
    pynvml.NVML_DEVICE_ARCH_AMPERE: '16.0 GT/s PCIe',
    pynvml.NVML_DEVICE_ARCH_ADA: '16.0 GT/s PCIe',
}
_SPEED = '32.0 GT/s PCIe'
"""The speed of Hopper and Blackwell, from NVIDIA's data sheets."""
_CORRECTABLE = ('RxErr', 'BadTLP', 'BadDLLP', 'Rollover', 'Timeout',
                'NonFatalErr', 'CorrIntErr', 'HeaderOF')
_UNCORRECTABLE = ('Undefined', 'DLP', 'SDES', 'TLP', 'FCP', 'CmpltTO',
                  'CmpltAbrt', 'UnxCmplt', 'RxOF', 'MalfTLP', 'ECRC',
                  'UnsupReq', 'ACSViol', 'UncorrIntErr', 'BlockedTLP',
                  'AtomicOpBlocked', 'TLPBlockedErr')


def entries(gpu: gpu_module.Gpu) -> dict[str, nodes.Node]:
    """Return the files of a GPU by name."""
    speed = _SPEEDS.get(gpu.model.architecture, _SPEED)
    return {
        'config': nodes.File(lambda: _config(gpu)),
        'max_link_speed': nodes.File(speed),
        'max_link_width': nodes.File(str(state_module.LANES)),
        'current_link_speed': nodes.File(
            lambda: 'Unknown' if gpu.state.lost else speed),
        'current_link_width': nodes.File(lambda: str(
            _UNKNOWN_WIDTH if gpu.state.lost else gpu.state.lanes)),
        'aer_dev_correctable': _aer(gpu, 0, _CORRECTABLE, 'COR'),
        'aer_dev_nonfatal': _aer(gpu, 1, _UNCORRECTABLE, 'NONFATAL'),
        'aer_dev_fatal': _aer(gpu, 2, _UNCORRECTABLE, 'FATAL'),
    }


def _config(gpu):
    """The configuration space; all ones for a GPU that is off the bus."""
    if gpu.state.lost:
        return b'\xff' * _CONFIG_BYTES
    model = gpu.model
    header = struct.pack(
        '<HHHHI36xHH', int(model.vendor, 16), int(model.device, 16),
        _COMMAND, _STATUS, int(model.class_code, 16) << 8 | 0xa1,
        int(model.subsystem_vendor, 16), int(model.subsystem_device, 16))
    return header.ljust(_CONFIG_BYTES, b'\0')


def _aer(gpu, kind, names, total):
    """A file of error counters. All errors count under the second name."""
    def read():
        count = gpu.state.aer[kind]
        lines = [f'{name} {count if name == names[1] else 0}'
                 for name in names]
        return '\n'.join((*lines, f'TOTAL_ERR_{total} {count}'))
    return nodes.File(read)
