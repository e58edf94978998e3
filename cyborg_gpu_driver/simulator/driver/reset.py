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

"""Resets of a GPU. NVIDIA's driver checks for users, the kernel does not."""

from __future__ import annotations

import errno
import os

import pynvml

from cyborg_gpu_driver.simulator.driver import drivers
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.driver import refusal

_OFF_THE_BUS = 79


def by_driver(gpu: gpu_module.Gpu) -> None:
    """Reset a GPU as ``nvidia-smi --gpu-reset`` does.

    A pending MIG mode becomes current, and handles are dead.
    nvidia-persistenced is no obstacle, because nvidia-smi asks it through its
    socket ("You can leave the nvidia-persistenced service running", Fabric
    Manager User Guide).

    :raises OSError: ENODEV if the GPU is not bound to NVIDIA's driver; EIO
        if it is lost; EBUSY while its device node is open
        (NVIDIA/gpu-operator#118, NVIDIA/mig-parted#181) or VFs exist;
        ENOTCONN if it needs a fabric manager and none runs.
    """
    if not gpu.bound:
        _fail(errno.ENODEV)
    if gpu.unreachable:
        _fail(errno.EIO)
    daemon, gpu.state.daemon = gpu.state.daemon, False
    try:
        if gpu.held() or gpu.busy() or gpu.state.vfs:
            _fail(errno.EBUSY)
    finally:
        gpu.state.daemon = daemon
    if not fabric_allows(gpu):
        _fail(errno.ENOTCONN)
    done(gpu)


def by_kernel(gpu: gpu_module.Gpu) -> None:
    """Reset a GPU as a write to its sysfs file ``reset`` does.

    pci_reset_function (drivers/pci/pci.c of Linux) does not check for users.
    It notifies the driver through ``err_handler``, which nv_pci_driver does
    not have (kernel-open/nvidia/nv-pci.c of NVIDIA's open kernel modules).
    So the driver continues with a GPU that has lost its state. Only a reboot,
    or an unbind, a reset and a bind, repair this. No public source says what
    NVML then returns; here the GPU is lost to NVML, with XID 79.

    :raises OSError: ENOTTY if the GPU is off the bus.
    :raises Waits: while its driver is being unbound (the kernel's device
        lock).
    """
    state = gpu.state
    if state.lost:
        _fail(errno.ENOTTY)
    if state.removing:
        raise refusal.Waits()
    if state.vfio or any(vgpu.guest for vgpu in state.vgpus):
        gpu.harm('reset under a guest')
    if state.driver is None or drivers.is_vfio(state.driver):
        done(gpu)
        return
    gpu.harm(f'reset under the driver {state.driver}')
    state.dead = True
    gpu.machine.raise_xid(gpu.address, _OFF_THE_BUS)


def fabric_allows(gpu: gpu_module.Gpu) -> bool:
    """Whether the state of the fabric manager allows a reset of one GPU.

    The manual page of nvidia-smi: a reset needs a running fabric manager on
    NVSwitch systems with Ampere GPUs, and no longer on Hopper and later.
    """
    return (gpu.model.architecture != pynvml.NVML_DEVICE_ARCH_AMPERE
            or not gpu.on_switches
            or bool(gpu.machine.state.fabric_manager))


def done(gpu: gpu_module.Gpu) -> None:
    """Set the state of a GPU after a reset."""
    gpu.clear()
    gpu.state.resets += 1
    gpu.state.dead = gpu.state.stale = False
    gpu.state.mig = gpu.state.pending


def _fail(code):
    raise OSError(code, os.strerror(code))
