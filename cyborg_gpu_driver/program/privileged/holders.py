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

"""Describe what prevents a reset or unbind of a GPU, for people.

The text names each holder and what the operator can do about it.
"""

from __future__ import annotations

from collections.abc import Iterable

PERSISTENCED = 'nvidia-persiste'
"""The process of nvidia-persistenced."""
_REMEDIES = {
    PERSISTENCED: 'nvidia-smi could not ask it to close the GPU; install '
                  'nvidia-smi, and give a container '
                  '/run/nvidia-persistenced',
    'nv-hostengine': 'stop the unit nvidia-dcgm, or dcgm',
    'dcgm-exporter': 'stop dcgm-exporter',
    'nvsm_core': 'stop the unit nvsm',
    'nvsm': 'stop the unit nvsm',
    'nv-fabricmanage': 'it closes GPUs that nvidia-smi resets; if it does '
                       'not, stop the unit nvidia-fabricmanager',
    'nvidia_drm': 'it drives a display with modeset=1; use driver 580.105.08 '
                  'or later, or set options nvidia_drm modeset=0 in '
                  'modprobe.d and run modprobe -r nvidia_drm',
    'qemu-system-x86': 'a guest has it; delete the server, or wait until '
                       'the guest ends',
    'nvidia-smi': 'it ends by itself, unless it runs in a loop',
}
"""By process name, cut to 15 characters as in the kernel (TASK_COMM_LEN)."""


def describe(found: Iterable[tuple[int, str]]) -> str:
    """Describe what has a GPU open, and what the operator can do about it.

    :param found: process ids and names; id 0 is a kernel module.
    :returns: empty if nothing has the GPU open.
    """
    return ', '.join(_one(pid, name) for pid, name in sorted(found))


def _one(pid: int, name: str) -> str:
    what = f'process {pid} ({name})' if pid else f'kernel module {name}'
    remedy = _REMEDIES.get(name)
    return f'{what}: {remedy}' if remedy else what
