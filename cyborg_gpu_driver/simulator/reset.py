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

"""Resets of a GPU by NVIDIA's driver, which asks who uses it."""

from __future__ import annotations

import errno
import os

import pynvml

from cyborg_gpu_driver.simulator import gpu as gpu_module


def by_driver(gpu: gpu_module.Gpu) -> None:
    """Reset a GPU as ``nvidia-smi --gpu-reset`` does.

    A pending MIG mode becomes current; instances and handles are gone.

    :raises OSError: ENODEV if NVIDIA's driver does not have it; EIO if it
        is lost; EBUSY while anybody has its device node open
        (NVIDIA/gpu-operator#118, NVIDIA/mig-parted#181) or VFs exist;
        ENOTCONN without a fabric manager that it needs.
    """
    if not gpu.bound:
        _fail(errno.ENODEV)
    if gpu.unreachable:
        _fail(errno.EIO)
    if gpu.held() or gpu.busy() or gpu.state.vfs:
        _fail(errno.EBUSY)
    if needs_fabric_manager(gpu) and not gpu.machine.state.fabric_manager:
        _fail(errno.ENOTCONN)
    done(gpu)


def needs_fabric_manager(gpu: gpu_module.Gpu) -> bool:
    """Whether the fabric manager takes part in a reset of one GPU.

    The manual page of nvidia-smi: it is needed on NVSwitch systems with
    Ampere GPUs, and no longer on Hopper and later.
    """
    return (gpu.model.architecture == pynvml.NVML_DEVICE_ARCH_AMPERE
            and gpu.on_switches)


def done(gpu: gpu_module.Gpu) -> None:
    """Be as a reset leaves the GPU."""
    gpu.clear()
    gpu.state.resets += 1
    gpu.state.mig = gpu.state.pending


def _fail(code):
    raise OSError(code, os.strerror(code))
