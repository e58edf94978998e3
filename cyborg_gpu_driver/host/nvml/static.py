# SPDX-License-Identifier: Apache-2.0

"""Reads the static facts of a GPU through NVML."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Hashable
from typing import Any

import pynvml

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import problems as problems_module
from cyborg_gpu_driver.host.nvml import gate
from cyborg_gpu_driver.host.nvml import session as nvml_module
from cyborg_gpu_driver.host.nvml import vgpu as nvml_vgpu
from cyborg_gpu_driver.host.snapshot import model as host_model

_MIB = 1 << 20
_NAME_PREFIX = 'MIG '
_ARCHITECTURE = 'NVML_DEVICE_ARCH_'

_NAMED = 2
"""The first version of nvmlGpuInstanceProfileInfo_t with a name. Drivers from
515 on know it (NVML API Reference, archive of R515)."""

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
    compute_capability: str | None = None
    driver_branch: str | None = None
    profiles: tuple[host_model.GpuInstanceProfile, ...] = ()
    vgpu_types: tuple[host_model.VgpuType, ...] = ()
    mixes: bool = False
    """Whether vGPUs of several sizes can share the GPU in its present mode."""
    scheduler: host_model.Scheduler | None = None
    """The schedulers that the GPU has, without the policy in force."""


PART = 6
"""Divisor of the timeout of one GPU. A thread waits for the quotient until
another GPU of the same kind has been read."""


class Alike:
    """A cache of facts that are equal for all boards of a kind.

    The facts are read from one board, once per session. If several threads
    want the same facts, one reads them and the others wait. They do not wait
    long, because the GPU that is read may not answer. Facts that were read
    with problems are not cached.

    :param wait: seconds after which a waiting thread reads its own board.
    """

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._mutex = threading.Lock()
        self._generation: int | None = None
        self._kinds: dict[Hashable, _Kind] = {}

    def of(self, generation: int, kind: Hashable | None,
           read: Callable[[problems_module.Problems], Any],
           problems: problems_module.Problems) -> Any:
        """Return what ``read`` returns for a kind of board.

        :param generation: generation of the session. The cache keeps nothing
            from one session to the next, as the driver may have changed.
        :param kind: all that the answer depends on. If it is None, the kind
            is not known and each board is read separately.
        """
        if kind is None:
            return read(problems)
        with self._mutex:
            if generation != self._generation:
                self._generation, self._kinds = generation, {}
            entry = self._kinds.setdefault(kind, _Kind())
        if not entry.mutex.acquire(timeout=self._wait):
            return read(problems)
        try:
            return self._read(entry, read, problems)
        finally:
            entry.mutex.release()

    def _read(self, entry: _Kind,
              read: Callable[[problems_module.Problems], Any],
              problems: problems_module.Problems) -> Any:
        if entry.known is None:
            found = problems_module.Problems()
            answer = read(found)
            for reason in found.all():
                problems.add(reason)
            if found.all():
                return answer
            entry.known = (answer,)
        return entry.known[0]


class _Kind:
    """The cache entry for one kind of board."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.known: tuple[Any] | None = None


class StaticReader:
    """Reads static facts through a session."""

    def __init__(self, nvml: nvml_module.NvmlSession):
        self._nvml = nvml
        self._alike = Alike(nvml.timeout / PART)

    def facts(self, device: Any, mig: bool | None,
              problems: problems_module.Problems,
              board: tuple[Any, ...] | None = None) -> Facts:
        """Return all static facts of one GPU.

        Profiles and vGPU types are read from one GPU of each kind, because
        they depend on the board with its VBIOS, the driver and the GPU's
        modes.

        :param mig: the GPU's current MIG mode, None if it has no MIG.
        :param board: the GPU's kind as the kernel knows it, with what else
            its facts depend on; None if it is not known.
        """
        memory_mib = None
        with problems.noted('memory'):
            memory = self._nvml.optional('nvmlDeviceGetMemoryInfo', device)
            memory_mib = memory.total // _MIB if memory else None
        architecture = None
        with problems.noted('architecture'):
            architecture = _ARCHITECTURES.get(
                self._nvml.optional('nvmlDeviceGetArchitecture', device))
        return Facts(
            model=self._text('nvmlDeviceGetName', device, problems),
            architecture=architecture,
            uuid=self._text('nvmlDeviceGetUUID', device, problems),
            serial=self._text('nvmlDeviceGetSerial', device, problems),
            memory_mib=memory_mib,
            **self._of_kind(device, mig, memory_mib, board, problems))

    def _of_kind(self, device: Any, mig: bool | None, memory_mib: int | None,
                 board: tuple[Any, ...] | None,
                 problems: problems_module.Problems) -> dict[str, Any]:
        """Return the facts that GPUs of a kind share, by field of Facts."""
        numbers: tuple[int, ...] = ()
        vbios = None
        with problems.noted('vGPU types'):
            numbers = tuple(self._nvml.optional('nvmlDeviceGetSupportedVgpus',
                                                device) or ())
        if board is not None:
            vbios = self._text('nvmlDeviceGetVbiosVersion', device, problems)

        def read(found: problems_module.Problems) -> dict[str, Any]:
            profiles: tuple[host_model.GpuInstanceProfile, ...] = ()
            if mig is not None:
                with found.noted('GPU instance profiles'):
                    profiles = self._profiles(device, mig)
            compute = branch = None
            with found.noted('compute capability'):
                compute = self._nvml.optional(
                    'nvmlDeviceGetCudaComputeCapability', device)
            with found.noted('driver version'):
                branch = self._nvml.driver_version().partition('.')[0]
            return {'profiles': profiles, 'driver_branch': branch,
                    'compute_capability': compute and '{}.{}'.format(*compute),
                    **self._vgpu_facts(device, mig, numbers, found)}

        return self._alike.of(
            self._nvml.generation,
            vbios and (board, vbios, mig, memory_mib, numbers), read,
            problems)

    def _text(self, name: str, device: Any, problems: problems_module.Problems
              ) -> str | None:
        with problems.noted(name):
            value = self._nvml.optional(name, device)
            return gate.text(value) if value else None
        return None

    def _profiles(self, device: Any, mig: bool | None
                  ) -> tuple[host_model.GpuInstanceProfile, ...]:
        """Return the GPU instance profiles in NVML's order."""
        return tuple(
            _profile(info, self._placements_allowed(device, mig, info.id))
            for _, info in gate.indexed(lambda index: self._nvml.call(
                'nvmlDeviceGetGpuInstanceProfileInfo', device, index,
                _NAMED)))

    def _placements_allowed(self, device: Any, mig: bool | None,
                            profile_id: int
                            ) -> tuple[host_model.Placement, ...]:
        """Return the placements, or none if this user may not read them.

        nvml.h says that only root may read them while MIG mode is off. An
        H100 and an H200 with driver 580.159.04 answer everybody. Who is
        refused can still offer such a GPU as a whole.
        """
        try:
            return self._placements(device, profile_id)
        except exception.NvmlError as error:
            if error.symbol == 'NO_PERMISSION' and not mig:
                return ()
            raise

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
                    numbers: tuple[int, ...],
                    problems: problems_module.Problems) -> dict[str, Any]:
        """Return the facts about vGPUs; none if the driver hosts no vGPUs.

        In MIG mode the driver neither mixes sizes nor schedules vGPUs on
        the GPU as a whole; it schedules those that share a GPU instance. From
        driver 575 on it can also mix the sizes of those
        (nvmlGpuInstanceSetVgpuHeterogeneousMode), which this library does
        not turn on.
        """
        types: tuple[host_model.VgpuType, ...] = ()
        mixes, scheduler = False, None
        if numbers and not mig:
            with problems.noted('mixed-size mode'):
                mixes = nvml_vgpu.can_mix_sizes(self._nvml, device)
        with problems.noted('vGPU types'):
            types = tuple(self._vgpu_type(device, number, mixes)
                          for number in sorted(numbers))
        if numbers and not mig or any(
                (item.per_instance or 0) > 1 for item in types):
            with problems.noted('vGPU scheduler'):
                scheduler = nvml_vgpu.scheduler_capabilities(self._nvml,
                                                             device)
        return {'vgpu_types': types, 'mixes': mixes, 'scheduler': scheduler}

    def _vgpu_type(self, device: Any, number: int, mixes: bool
                   ) -> host_model.VgpuType:
        name = gate.text(self._nvml.call('nvmlVgpuTypeGetName',
                                         number))
        profile_id = gate.known(self._nvml.optional(
            'nvmlVgpuTypeGetGpuInstanceProfileId', number))
        placements: tuple[int, ...] = ()
        per_instance = size = None
        if profile_id is not None:
            per_instance = self._nvml.optional(
                'nvmlVgpuTypeGetMaxInstancesPerGpuInstance', number)
        elif mixes:
            size, placements = nvml_vgpu.supported_placements(
                self._nvml, device, number)
        return host_model.VgpuType(
            type_id=number, name=name.split()[-1] if name.split() else '',
            vgpu_class=gate.text(
                self._nvml.call('nvmlVgpuTypeGetClass', number)),
            framebuffer_mib=self._nvml.call(
                'nvmlVgpuTypeGetFramebufferSize', number) // _MIB,
            max_instances=self._nvml.optional(
                'nvmlVgpuTypeGetMaxInstances', device, number) or 0,
            gi_profile_id=profile_id, per_instance=per_instance,
            placement_size=size, placements=placements)

    def links(self, device: Any
              ) -> tuple[tuple[host_model.PciAddress, ...], bool]:
        """Other ends of the active NVLinks, and whether one is an NVSwitch.

        Makes up to three calls per link, so it is called only when the links
        are wanted.
        """
        ends, on_switch = set(), False
        for link, active in gate.indexed(
                lambda link: self._nvml.optional('nvmlDeviceGetNvLinkState',
                                                 device, link),
                pynvml.NVML_NVLINK_MAX_LINKS):
            if not active:
                continue
            kind = self._nvml.optional(
                'nvmlDeviceGetNvLinkRemoteDeviceType', device, link)
            on_switch |= kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            end = self._nvml.optional('nvmlDeviceGetNvLinkRemotePciInfo',
                                      device, link)
            if end is not None:
                ends.add(host_model.PciAddress.parse(
                    gate.text(end.busId)))
        return tuple(sorted(ends)), on_switch


def _profile(info: Any, placements: tuple[host_model.Placement, ...]
             ) -> host_model.GpuInstanceProfile:
    return host_model.GpuInstanceProfile(
        profile_id=info.id,
        name=gate.text(info.name).removeprefix(_NAME_PREFIX),
        slices=info.sliceCount, memory_mib=info.memorySizeMB,
        max_instances=info.instanceCount, placements=placements,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        engines=host_model.Engines(
            decoders=info.decoderCount, encoders=info.encoderCount,
            jpeg=info.jpegCount, ofa=info.ofaCount),
        capabilities=info.isP2pSupported)
