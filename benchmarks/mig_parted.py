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

"""NVML calls of nvidia-mig-parted, replayed on a simulated machine.

mig-parted is NVIDIA's tool for MIG layouts. This module makes the calls that
its published source makes for ``nvidia-mig-parted apply`` (Apache-2.0,
github.com/NVIDIA/mig-parted, commit bd7160f, and the go-nvlib in its vendor
directory). It makes one C call for each call of go-nvml, so that the calls
can be counted. It only does what that source does to GPUs in MIG mode.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pynvml

_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED,
           pynvml.NVML_ERROR_INVALID_ARGUMENT)
_PROFILES = 18
"""GPU_INSTANCE_PROFILE_COUNT of go-nvml at that commit."""
_COMPUTE_PROFILES = 9
"""COMPUTE_INSTANCE_PROFILE_COUNT."""
_COMPUTE_OF_SLICES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
"""NVML_COMPUTE_INSTANCE_PROFILE_*."""
_ENGINES = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
_ROOM = 64

Layout = dict[str, int]
"""The number of instances by the name of their profile."""


class MigParted:
    """mig-parted, on the simulated machine that is installed under pynvml.

    :param addresses: the PCI addresses of the GPUs.
    :param profiles: by name, the index of each profile in NVML's list and
        its number of slices. All GPUs have the same profiles.
    """

    def __init__(self, addresses: list[str],
                 profiles: dict[str, tuple[int, int]]):
        self._addresses = addresses
        self._profiles = profiles
        self._listed = False
        """Whether this process has listed the profiles of all GPUs."""

    def apply(self, layout: Layout) -> None:
        """Give every GPU the layout, as ``nvidia-mig-parted apply``."""
        self._listed = False
        self._assert_mode()
        if not self._assert_config(layout):
            self._apply_config(layout)

    # cmd/nvidia-mig-parted

    def _assert_mode(self) -> None:
        pynvml.nvmlInit()
        self._version()
        for index in self._walk():
            self._modes(index)
        pynvml.nvmlShutdown()

    def _assert_config(self, layout: Layout) -> bool:
        pynvml.nvmlInit()
        self._device_ids()
        self._version()
        self._version()
        matched = []
        for index in self._walk():
            self._modes(index)
            matched.append(self._config(index) == layout)
        pynvml.nvmlShutdown()
        return all(matched)

    def _apply_config(self, layout: Layout) -> None:
        pynvml.nvmlInit()
        self._version()
        self._version()
        for index in self._walk():
            self._modes(index)
            if self._config(index) != layout:
                self._set_config(index, layout)
        pynvml.nvmlShutdown()

    def _version(self) -> None:
        pynvml.nvmlSystemGetNVMLVersion()

    def _walk(self) -> Iterator[int]:
        self._device_ids()
        yield from range(len(self._addresses))

    def _device_ids(self) -> None:
        pynvml.nvmlInit()
        for address in self._addresses:
            pynvml.nvmlDeviceGetHandleByPciBusId(address)
        pynvml.nvmlShutdown()

    def _modes(self, index: int) -> None:
        """IsMigCapable and GetMigMode of mig-parted's mode manager."""
        for _ in range(2):
            pynvml.nvmlDeviceGetMigMode(self._device(index))

    # pkg/mig/config

    def _device(self, index: int) -> Any:
        return pynvml.nvmlDeviceGetHandleByIndex(index)

    def _opened(self, index: int) -> Any:
        """The calls with which GetMigConfig and SetMigConfig begin."""
        device = self._device(index)
        pynvml.nvmlDeviceGetMemoryInfo(device)
        pynvml.nvmlDeviceGetMigMode(device)
        return device

    def _config(self, index: int) -> Layout:
        """GetMigConfig; each compute instance here fills its GPU instance."""
        found: Layout = {}
        device = self._opened(index)
        for number, instance in self._instances(device):
            for _ in self._compute_instances(instance):
                name = next(name for name, (enum, _) in self._profiles.items()
                            if enum == number)
                found[name] = found.get(name, 0) + 1
        return found

    def _set_config(self, index: int, layout: Layout) -> None:
        device = self._opened(index)
        self._visit_profiles(device)
        # NVML accepts the first order of the profiles that mig-parted tries,
        # which is the largest first.
        wanted = self._flat(layout)
        while self._flat(self._config(index)):
            self._clear(index)
        last = instance = None
        for name in wanted:
            number, slices = self._profiles[name]
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number,
                                                              1)
            # mig-parted tries to add to the last GPU instance before it
            # creates another one.
            if name != last or not self._compute(instance, slices):
                instance = pynvml.nvmlDeviceCreateGpuInstance(device,
                                                              info.id)
                if not self._compute(instance, slices):
                    raise RuntimeError(f'{name}: no compute instance')
            last = name

    def _compute(self, instance: Any, slices: int) -> bool:
        """Create a compute instance, and return whether there was room."""
        info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
            instance, _COMPUTE_OF_SLICES[slices], _ENGINES, 1)
        try:
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
        except pynvml.NVMLError_InsufficientResources:
            return False
        return True

    def _clear(self, index: int) -> None:
        device = self._device(index)
        pynvml.nvmlDeviceGetMigMode(device)
        for _, instance in self._instances(device):
            for compute in self._compute_instances(instance):
                pynvml.nvmlComputeInstanceDestroy(compute)
            pynvml.nvmlGpuInstanceDestroy(instance)

    def _flat(self, layout: Layout) -> list[str]:
        """Flatten, which parses each name with the profiles of all GPUs."""
        for _ in layout:
            pynvml.nvmlInit()
            if not self._listed:
                for index in range(pynvml.nvmlDeviceGetCount()):
                    device = self._device(index)
                    pynvml.nvmlDeviceGetName(device)
                    self._visit_profiles(device)
                self._listed = True
            pynvml.nvmlShutdown()
        return sorted((name for name, number in layout.items()
                       for _ in range(number)),
                      key=lambda name: -self._profiles[name][1])

    # internal/nvlib/mig and go-nvlib

    def _visit_profiles(self, device: Any) -> None:
        pynvml.nvmlDeviceGetMigMode(device)
        pynvml.nvmlDeviceGetMemoryInfo(device)
        for index in range(_PROFILES):
            _optional(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, device,
                      index, 1)

    def _instances(self, device: Any) -> Iterator[tuple[int, Any]]:
        for index in range(_PROFILES):
            info = _optional(pynvml.nvmlDeviceGetGpuInstanceProfileInfo,
                             device, index, 1)
            if info is not None:
                for handle in _handles(pynvml.nvmlDeviceGetGpuInstances,
                                       device, info.id,
                                       pynvml.c_nvmlGpuInstance_t):
                    yield index, handle

    def _compute_instances(self, instance: Any) -> Iterator[Any]:
        for index in range(_COMPUTE_PROFILES):
            info = _optional(
                pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
                instance, index, _ENGINES, 1)
            if info is not None:
                yield from _handles(
                    pynvml.nvmlGpuInstanceGetComputeInstances, instance,
                    info.id, pynvml.c_nvmlComputeInstance_t)


def _optional(function: Any, *arguments: Any) -> Any:
    """Return what a call returns, None if NVML has no such object."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            return None
        raise


def _handles(function: Any, owner: Any, profile_id: int, kind: Any
             ) -> list[Any]:
    found, count = (kind * _ROOM)(), ctypes.c_uint(0)
    function(owner, profile_id, found, ctypes.byref(count))
    return list(found[:count.value])
