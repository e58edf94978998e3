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

"""What NVML says of a GPU once and for all."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.nvml import library as nvml_library
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.host.snapshot import model as host_model
from cyborg_gpu_driver.host.snapshot import profile_name

_MIB = 1 << 20
_INDEX_LIMIT = 64
"""Where to stop asking for profiles, should NVML never say it is enough."""
_NO_PROFILE = 0xffffffff
_NAME_PREFIX = 'MIG '
_ARCHITECTURE = 'NVML_DEVICE_ARCH_'

_OLDER = frozenset({'FUNCTION_NOT_FOUND', 'ARGUMENT_VERSION_MISMATCH'})

_ARCHITECTURES = {
    getattr(pynvml, name): name[len(_ARCHITECTURE):].lower()
    for name in dir(pynvml) if name.startswith(_ARCHITECTURE)
    and name != _ARCHITECTURE + 'UNKNOWN'}


@dataclasses.dataclass(frozen=True)
class Facts:
    """Static facts of one GPU; fields as in :class:`.model.Gpu`."""

    model: str | None = None
    architecture: str | None = None
    uuid: str | None = None
    serial: str | None = None
    memory_mib: int | None = None
    profiles: tuple[host_model.GpuInstanceProfile, ...] = ()
    vgpu_types: tuple[host_model.VgpuType, ...] = ()
    mixes: bool = False
    """Whether vGPUs of several sizes can be on it, as it is now."""
    scheduler: host_model.Scheduler | None = None
    """Which schedulers it has, without which is in force."""
    links: tuple[host_model.PciAddress, ...] = ()
    """What is at the other end of the active NVLinks."""
    on_switch: bool = False
    """Whether an NVLink ends at an NVSwitch."""


class StaticReader:
    """Reads static facts through a session."""

    def __init__(self, nvml: nvml_module.NvmlSession):
        self._nvml = nvml

    def facts(self, device: Any, mig: bool | None,
              problems: problems_module.Problems) -> Facts:
        """Everything about one GPU.

        :param mig: the GPU's current MIG mode, None if it has none.
        :param problems: takes what could not be read.
        """
        memory_mib = None
        with problems.noted('memory'):
            memory = self._optional('nvmlDeviceGetMemoryInfo', device)
            memory_mib = memory.total // _MIB if memory else None
        profiles: tuple[host_model.GpuInstanceProfile, ...] = ()
        links: tuple[host_model.PciAddress, ...] = ()
        on_switch = False
        if mig is not None:
            with problems.noted('GPU instance profiles'):
                profiles = self._profiles(device, mig, memory_mib)
        with problems.noted('NVLink'):
            links, on_switch = self._links(device)
        architecture = None
        with problems.noted('architecture'):
            architecture = _ARCHITECTURES.get(
                self._optional('nvmlDeviceGetArchitecture', device))
        return Facts(
            model=self._text('nvmlDeviceGetName', device, problems),
            architecture=architecture,
            uuid=self._text('nvmlDeviceGetUUID', device, problems),
            serial=self._text('nvmlDeviceGetSerial', device, problems),
            memory_mib=memory_mib, profiles=profiles, links=links,
            on_switch=on_switch, **self._vgpu_facts(device, mig, problems))

    def pci_identity(self, device: Any) -> dict[str, str]:
        """PCI ids of a GPU, by the names of :class:`host_model.Gpu`.

        For a GPU that is not on the PCI bus that the kernel shows.

        :raises NvmlError: if they cannot be read.
        """
        info = self._nvml.call('nvmlDeviceGetPciInfo', device)
        ids = f'{info.pciDeviceId:08x}'
        subsystem = f'{info.pciSubSystemId:08x}'
        return {'vendor_id': ids[4:], 'device_id': ids[:4],
                'subsystem_vendor_id': subsystem[4:],
                'subsystem_device_id': subsystem[:4],
                'class_code': self._class_code(device)}

    def _class_code(self, device: Any) -> str:
        info = pynvml.nvmlPciInfoExt_v1_t()
        info.version = pynvml.nvmlPciInfoExt_v1
        try:
            self._nvml.call('nvmlDeviceGetPciInfoExt', device,
                            ctypes.byref(info))
        except exception.NvmlError:
            # Where PCI is hidden (WSL 2) the GPUs are those with displays.
            return '0300'
        return f'{info.baseClass:02x}{info.subClass:02x}'

    def _optional(self, name: str, *args: Any) -> Any:
        """What a call answers, None if the GPU or driver has it not."""
        try:
            return self._nvml.call(name, *args)
        except exception.NvmlError as error:
            if error.symbol in nvml_library.ABSENT:
                return None
            raise

    def _text(self, name: str, device: Any, problems: problems_module.Problems
              ) -> str | None:
        with problems.noted(name):
            value = self._optional(name, device)
            return nvml_library.text(value) if value else None
        return None

    def _profiles(self, device: Any, mig: bool | None, total_mib: int | None
                  ) -> tuple[host_model.GpuInstanceProfile, ...]:
        """GPU instance profiles in NVML's order.

        Found by index, so that those of boards to come are found too: a gap
        is NOT_SUPPORTED, the end INVALID_ARGUMENT.
        """
        found = []
        for index in range(_INDEX_LIMIT):
            try:
                info = self._profile_info(device, index)
            except exception.NvmlError as error:
                if error.symbol == 'INVALID_ARGUMENT':
                    break
                if error.symbol == 'NOT_SUPPORTED':
                    continue
                raise
            found.append(_profile(
                index, info, total_mib,
                self._placements_allowed(device, mig, info.id)))
        return tuple(found)

    def _placements_allowed(self, device: Any, mig: bool | None,
                            profile_id: int
                            ) -> tuple[host_model.Placement, ...]:
        """Placements; none for who may not ask while MIG mode is off.

        Only root may. Others can still offer such a GPU as a whole.
        """
        try:
            return self._placements(device, profile_id)
        except exception.NvmlError as error:
            if error.symbol == 'NO_PERMISSION' and not mig:
                return ()
            raise

    def _profile_info(self, device: Any, index: int) -> Any:
        name = 'nvmlDeviceGetGpuInstanceProfileInfo'
        try:
            return self._nvml.call(name, device, index, 2)
        except exception.NvmlError as error:
            if error.symbol not in _OLDER:
                raise
        return self._nvml.call(name, device, index, 1)

    def _placements(self, device: Any, profile_id: int
                    ) -> tuple[host_model.Placement, ...]:
        name = 'nvmlDeviceGetGpuInstancePossiblePlacements'
        count = ctypes.c_uint(0)
        self._nvml.call(name, device, profile_id, None, ctypes.byref(count))
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        self._nvml.call(name, device, profile_id, places,
                        ctypes.byref(count))
        return tuple(sorted(
            host_model.Placement(place.start, place.size)
            for place in places[:count.value]))

    def _vgpu_facts(self, device: Any, mig: bool | None,
                    problems: problems_module.Problems) -> dict[str, Any]:
        """Facts about vGPUs; none where the driver makes none.

        In MIG mode the driver neither mixes sizes nor schedules vGPUs on
        the GPU as a whole.
        """
        numbers: tuple[int, ...] = ()
        types: tuple[host_model.VgpuType, ...] = ()
        mixes, scheduler = False, None
        with problems.noted('vGPU types'):
            numbers = self._optional('nvmlDeviceGetSupportedVgpus',
                                     device) or ()
        if numbers and not mig:
            with problems.noted('mixed-size mode'):
                mixes = nvml_vgpu.can_mix_sizes(self._nvml, device)
            with problems.noted('vGPU scheduler'):
                scheduler = nvml_vgpu.scheduler_capabilities(self._nvml,
                                                             device)
        with problems.noted('vGPU types'):
            types = tuple(self._vgpu_type(device, number, mixes)
                          for number in sorted(numbers))
        return {'vgpu_types': types, 'mixes': mixes, 'scheduler': scheduler}

    def _vgpu_type(self, device: Any, number: int, mixes: bool
                   ) -> host_model.VgpuType:
        name = nvml_library.text(self._nvml.call('nvmlVgpuTypeGetName',
                                                number))
        profile_id = self._optional('nvmlVgpuTypeGetGpuInstanceProfileId',
                                    number)
        if profile_id == _NO_PROFILE:
            profile_id = None
        placements: tuple[int, ...] = ()
        per_instance = size = None
        if profile_id is not None:
            per_instance = self._optional(
                'nvmlVgpuTypeGetMaxInstancesPerGpuInstance', number)
        elif mixes:
            size, placements = nvml_vgpu.supported_placements(
                self._nvml, device, number)
        return host_model.VgpuType(
            type_id=number, name=name.split()[-1] if name.split() else '',
            vgpu_class=nvml_library.text(
                self._nvml.call('nvmlVgpuTypeGetClass', number)),
            framebuffer_mib=self._nvml.call(
                'nvmlVgpuTypeGetFramebufferSize', number) // _MIB,
            max_instances=self._optional(
                'nvmlVgpuTypeGetMaxInstances', device, number) or 0,
            gi_profile_id=profile_id, per_instance=per_instance,
            placement_size=size, placements=placements)

    def _links(self, device: Any
               ) -> tuple[tuple[host_model.PciAddress, ...], bool]:
        """Ends of the active NVLinks, and whether one is an NVSwitch."""
        ends, on_switch = set(), False
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                if not self._nvml.call('nvmlDeviceGetNvLinkState', device,
                                       link):
                    continue
            except exception.NvmlError as error:
                if error.symbol in ('INVALID_ARGUMENT',
                                    'FUNCTION_NOT_FOUND'):
                    break
                if error.symbol == 'NOT_SUPPORTED':
                    continue
                raise
            kind = self._optional('nvmlDeviceGetNvLinkRemoteDeviceType',
                                  device, link)
            on_switch |= kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            end = self._optional('nvmlDeviceGetNvLinkRemotePciInfo', device,
                                 link)
            if end is not None:
                ends.add(host_model.PciAddress.parse(
                    nvml_library.text(end.busId)))
        return tuple(sorted(ends)), on_switch


def _profile(index: int, info: Any, total_mib: int | None,
             placements: tuple[host_model.Placement, ...]
             ) -> host_model.GpuInstanceProfile:
    return host_model.GpuInstanceProfile(
        profile_id=info.id, name=_name(index, info, total_mib),
        slices=info.sliceCount, memory_mib=info.memorySizeMB,
        max_instances=info.instanceCount, placements=placements,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        engines=host_model.Engines(
            decoders=info.decoderCount, encoders=info.encoderCount,
            jpeg=info.jpegCount, ofa=info.ofaCount),
        capabilities=info.isP2pSupported)


def _name(index: int, info: Any, total_mib: int | None) -> str:
    """``name`` of the structure, or where it has none, the computed one."""
    name = nvml_library.text(getattr(info, 'name', '') or '')
    if name:
        return name.removeprefix(_NAME_PREFIX)
    return profile_name.computed(
        info.sliceCount, info.memorySizeMB, total_mib or info.memorySizeMB,
        profile_name.attribute(index))
