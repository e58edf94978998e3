# SPDX-License-Identifier: Apache-2.0

"""The description of a simulated machine: immutable values, no behaviour.

:mod:`cyborg_gpu_driver.simulator.files` reads it from the YAML files beside
this module. Memory is in MiB.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

ENGINES = ('decoders', 'encoders', 'jpeg', 'ofa')
"""Media engines, which are divided among the instances."""

MDEV = 'mdev'
VENDOR_VFIO = 'vendor-vfio'
NO_FRAMEWORK = 'none'
FRAMEWORKS = (MDEV, VENDOR_VFIO, NO_FRAMEWORK)

NVIDIA = '10de'
"""Vendor and subsystem vendor of all boards."""
GPU_CLASS = '030200'

_MODULES = (2, 4, 1, 3, 7, 5, 8, 6)
"""Module ids of the GPUs of a baseboard in the order of their addresses.
Real boards also have their own order of module ids; this one is made up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceProfile:
    """A GPU instance profile of a model."""

    enum: int
    """NVML's index of the profile (NVML_GPU_INSTANCE_PROFILE_*)."""
    profile_id: int
    """The board's id of the profile, which every other call takes."""
    name: str
    """The name without NVML's ``MIG ``: 1g.10gb+me."""
    slices: int
    """Compute slices."""
    memory_mib: int
    max_instances: int
    size: int
    """Units of the placement grid."""
    starts: tuple[int, ...]
    order: tuple[int, ...]
    """Starts in the order in which the driver tries them if the caller
    requests no placement."""
    multiprocessors: int
    copy_engines: int
    decoders: int = 0
    encoders: int = 0
    jpeg: int = 0
    ofa: int = 0
    capabilities: int = 0
    """NVML_GPU_INSTANCE_PROFILE_CAPS_*: 0x1 P2P, 0x2 graphics."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeProfile:
    """A compute instance profile within instances of one size."""

    enum: int
    """NVML_COMPUTE_INSTANCE_PROFILE_*; both the index and the id."""
    slices: int
    max_instances: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mig:
    """The capabilities of a model in MIG mode."""

    units: int
    """Units of the placement grid."""
    needs_reset: bool
    """Whether a change of the mode takes effect at a reset (Ampere)."""
    profiles: tuple[InstanceProfile, ...]
    compute_profiles: dict[int, tuple[ComputeProfile, ...]]
    """Compute instance profiles by the compute slices of the GPU instance."""

    def by_enum(self, enum: int) -> InstanceProfile | None:
        return next((profile for profile in self.profiles
                     if profile.enum == enum), None)

    def by_id(self, profile_id: int) -> InstanceProfile | None:
        return next((profile for profile in self.profiles
                     if profile.profile_id == profile_id), None)

    def engines(self, name: str) -> int:
        """The number of media engines of a kind that the GPU has."""
        return max(getattr(profile, name) for profile in self.profiles)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VgpuType:
    """A vGPU type of a model."""

    type_id: int
    name: str
    """``A100-1-5C``."""
    vgpu_class: str
    framebuffer_mib: int
    max_instances: int
    profile_id: int | None = None
    """GPU instance profile behind the vGPU; None if it is time-sliced."""
    per_instance: int | None
    """The number of vGPUs that one GPU instance holds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """One kind of board."""

    name: str
    """The name of the data file."""
    product: str
    """The name that nvmlDeviceGetName returns."""
    architecture: int
    """NVML_DEVICE_ARCH_*."""
    compute_capability: tuple[int, int]
    device: str
    subsystem_device: str
    memory_mib: int
    bar1_mib: int
    power_limit_watts: int
    multiprocessors: int
    row_remapping: bool
    """Whether faulty memory is remapped (since Ampere) or retired."""
    totalvfs: int = 0
    vf_offset: int = 4
    nvlinks: int = 0
    """NVLink links; 0 if the board has none."""
    mig: Mig | None
    placement_region: int | None = None
    """Slots that vGPUs of mixed sizes share, one for each GiB of
    framebuffer; None if the board cannot mix sizes."""
    vgpu_types: tuple[VgpuType, ...]

    def vgpu_type(self, type_id: int) -> VgpuType | None:
        return next((kind for kind in self.vgpu_types
                     if kind.type_id == type_id), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """A board in a slot, as it is when the machine starts."""

    address: str
    """PCI address as in sysfs, such as ``0000:07:00.0``."""
    model: Model
    minor: int
    uuid: str
    serial: str
    numa_node: int = -1
    """-1 if the firmware does not report the node."""
    iommu_group: int | None = None
    driver: str | None = 'nvidia'
    mig: bool = False
    vfs: int
    framework: str = NO_FRAMEWORK
    nvlink_peers: tuple[str, ...]
    """For each link, the address of the GPU or switch at its other end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Function:
    """A PCI function that is not one of our GPUs."""

    address: str
    vendor: str
    device: str
    class_code: str
    driver: str | None = None
    numa_node: int = -1
    iommu_group: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """A whole machine as it is when it starts."""

    name: str
    digest: str
    """Digest of all files that were read. It ties a state file to a machine.
    """
    driver_version: str
    gpus: tuple[Gpu, ...]
    functions: tuple[Function, ...]
    virtual: bool = False
    """Whether the machine is a virtual machine that got the GPUs by PCI
    passthrough. It cannot reset them."""
    container: bool = False
    """Whether this library runs in a PID namespace of its own, where it does
    not see the processes of the machine."""
    dcgm: bool = False
    """Whether DCGM runs: nv-hostengine has every GPU open."""
    unpatched_nova: bool = False
    """Whether nova-compute runs without this driver's patches."""
    keeps_mig: bool = True
    """Whether MIG mode and instances are back after a reset and after an
    unbind. RM keeps them for each PCI address while nvidia.ko is loaded
    (kmigmgrRestoreFromPersistence in kernel_mig_manager.c and the persistent
    instances of gpu_mgr.c in NVIDIA's open kernel modules). The MIG user guide
    says that they do not outlive a reset, nor Hopper's mode an unbind."""
    fabric_mode: int = 0
    """FABRIC_MODE of the fabric manager."""
    clique: str | None = None
    """UUID of the NVLink cluster, a dot and the number of the clique; None
    for a machine whose NVLinks do not lead to other machines."""

    @property
    def vgpu_driver(self) -> bool:
        """Whether the driver is that of vGPU software for hosts."""
        return any(gpu.framework != NO_FRAMEWORK for gpu in self.gpus)

    def driver_since(self, *version: int) -> bool:
        """Whether the driver has this version or a later one."""
        return tuple(map(int, self.driver_version.split('.'))) >= version

    @property
    def has_switches(self) -> bool:
        """Whether NVLinks lead to NVSwitches."""
        return any(self.gpu(peer) is None for gpu in self.gpus
                   for peer in gpu.nvlink_peers)

    def module(self, address: str) -> int:
        """Module id of a GPU on the baseboard; 0 for any other GPU."""
        return self._modules.get(address, 0)

    @functools.cached_property
    def _modules(self) -> dict[str, int]:
        board = (gpu.address for gpu in self.gpus
                 if any(self.gpu(peer) is None for peer in gpu.nvlink_peers))
        return dict(zip(board, itertools.cycle(_MODULES), strict=False))

    def pci_id(self, address: str) -> int:
        """Device id and vendor id of a function, as NVML packs them."""
        gpu = self.gpu(address)
        if gpu is not None:
            return int(gpu.model.device + NVIDIA, 16)
        function = self.function(address)
        return int(function.device + function.vendor, 16)

    def function(self, address: str) -> Function:
        """The function at an address, which is not one of the GPUs."""
        return next(function for function in self.functions
                    if function.address == address)

    def gpu(self, address: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus
                     if gpu.address == address), None)
