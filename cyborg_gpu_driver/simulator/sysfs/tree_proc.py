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

"""The files that NVIDIA's driver has below ``/proc/driver/nvidia/gpus``.

They are those of kernel-open/nvidia/nv-procfs.c in NVIDIA's open kernel
modules. A GPU has them while it is bound to the driver.
"""

from __future__ import annotations

import errno
import os

from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.sysfs import nodes

_POWER = """\
Runtime D3 status:          {0}
Video Memory:               {1}

GPU Hardware Support:
 Video Memory Self Refresh: {2}
 Video Memory Off:          {2}

S0ix Power Management:
 Platform Support:          {2}
 Status:                    {3}

Notebook Dynamic Boost:     {2}
"""
"""The file as an H100 and an H200 with driver 580.159.04 show it."""


def build(machine) -> nodes.Directory:
    """Return the root of a machine's tree."""
    return nodes.Directory({'driver': nodes.Directory({
        'nvidia': nodes.Directory({'gpus': nodes.Directory({
            gpu.address: _gpu(gpu) for gpu in machine.gpus})},
            present=lambda: any(gpu.bound for gpu in machine.gpus))})})


def _gpu(gpu):
    return nodes.Directory({
        'information': nodes.File(
            f'Model: \t\t {gpu.model.product}\n'
            f'Bus Location: \t {gpu.address}\n'
            f'Device Minor: \t {gpu.spec.minor}'),
        'power': nodes.File(lambda: _power(gpu)),
        # nv_procfs_add_gpu makes it only if os_is_vgx_hyper().
        'unbindLock': nodes.File(
            lambda: str(int(gpu.state.locked)), lambda text: _lock(gpu, text),
            present=lambda: gpu.machine.host.vgpu_driver)},
        present=lambda: gpu.bound)


def _power(gpu: gpu_module.Gpu) -> str:
    """The text of rm_get_power_info.

    It has question marks unless RM has the GPU attached: from the first use
    to the end of the last one, and in persistence mode also after that
    (nv_start_device and nv_stop_device in kernel-open/nvidia/nv.c).
    """
    if gpu.held() or gpu.state.persistence:
        return _POWER.format('Disabled by default', 'Active', 'Not Supported',
                             'Disabled')
    return _POWER.format('?', '?', '?', '?')


def _lock(gpu: gpu_module.Gpu, text: str) -> None:
    """Do what nv_procfs_close_unbind_lock does when the file is closed.

    A lock that is not granted is no error: the file reads 0 then.
    """
    if text.strip() not in ('0', '1'):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if text.strip() == '0':
        gpu.state.locked = False
    elif not gpu.held():
        gpu.state.locked = True
