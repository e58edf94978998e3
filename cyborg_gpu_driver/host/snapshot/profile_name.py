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

"""Names of GPU instance profiles, for drivers that do not report them.

nvmlGpuInstanceProfileInfo_v2_t contains a name; before it, tools computed the
name from the profile's size.
"""

from __future__ import annotations

import math

_MIB_PER_GIB = 1024
_EIGHTHS = 8

_ATTRIBUTES = {
    0x07: '+me', 0x08: '+me',
    0x0a: '+gfx', 0x0b: '+gfx', 0x0c: '+gfx', 0x11: '+gfx',
    0x0d: '-me', 0x0e: '-me',
    0x0f: '+me.all', 0x10: '+me.all',
}
"""By enumeration index, NVML_GPU_INSTANCE_PROFILE_* of nvml.h. The index of
a profile of twice the memory (1_SLICE_REV2) adds nothing to its name."""


def attribute(index: int) -> str:
    """Return the name suffix of the profile at an enumeration index."""
    return _ATTRIBUTES.get(index, '')


def memory_gb(memory_mib: int, total_mib: int) -> int:
    """Return the memory in a profile's name.

    It is rounded up to eighths of the GPU's memory. The GPU's memory is
    rounded up to GiB, as marketed.

    :param memory_mib: ``memorySizeMB``, above 0.
    :param total_mib: the whole GPU's (nvmlDeviceGetMemoryInfo), above 0.
    """
    eighths = -(-memory_mib * _EIGHTHS // total_mib)
    whole_gb = -(-total_mib // _MIB_PER_GIB)
    # Round half up; round() would round 70.5 down to 70.
    return math.floor(eighths * whole_gb / _EIGHTHS + 0.5)


def computed(slices: int, memory_mib: int, total_mib: int,
             suffix: str = '') -> str:
    """A profile's name as ``nvidia-smi mig -lgip`` prints it: 1g.10gb+me.

    :param slices: ``sliceCount``.
    :param suffix: as :func:`attribute` returns it.
    """
    return f'{slices}g.{memory_gb(memory_mib, total_mib)}gb{suffix}'
