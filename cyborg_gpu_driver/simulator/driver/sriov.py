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

"""The effect of NVIDIA's sriov-manage on a GPU."""

from __future__ import annotations

import errno
import os

from cyborg_gpu_driver.simulator.driver import gpu as gpu_module


def manage(gpu: gpu_module.Gpu, enable: bool, count: int | None,
           unless_open: bool = False) -> None:
    """Create or remove the virtual functions of a GPU.

    A GPU that already has virtual functions, or none, as requested does not
    change. Otherwise the driver is unbound for a moment: handles die, and the
    state that only the driver keeps is lost.

    :param count: how many; None for all that the model has.
    :param unless_open: refuse while a process has the GPU open, as the
        script must: it requests the driver's unbindLock
        (nv_procfs_close_unbind_lock in kernel-open/nvidia/nv-procfs.c of
        NVIDIA's open kernel modules).
    :raises OSError: EBUSY while processes or vGPUs use the GPU; ENODEV if
        the GPU is not bound to NVIDIA's driver or has no SR-IOV.
    """
    total = gpu.model.totalvfs
    if not gpu.bound or not total or gpu.machine.host.wsl:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    if enable == bool(gpu.state.vfs):
        return
    if gpu.busy() or unless_open and gpu.held():
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    wanted = total if count is None else min(count, total)
    gpu.state.vfs = wanted if enable else 0
    gpu.state.wedged.clear()
    gpu.forget_settings()
