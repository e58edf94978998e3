# SPDX-License-Identifier: Apache-2.0

"""The snapshot of a machine: immutable values, no I/O.

All that the library knows about hardware is one :class:`Host` value, created
by :mod:`cyborg_gpu_driver.host.reader`. Memory is in MiB, as in NVML.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Mapping

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import whole

_ADDRESS = re.compile(
    r'(?P<domain>[0-9a-fA-F]{4,8}):(?P<bus>[0-9a-fA-F]{2}):'
    r'(?P<device>[0-9a-fA-F]{2})\.(?P<function>[0-7])', re.ASCII)


@dataclasses.dataclass(frozen=True, order=True)
class PciAddress:
    """The address of a PCI function.

    NVML writes eight upper-case digits of domain, sysfs four lower-case
    ones; both parse to the same value and ``str()`` gives the sysfs form.
    """

    domain: int
    bus: int
    device: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PciAddress:
        """Parse an address in the form of sysfs or of NVML."""
        match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
        if match is None or int(match['device'], 16) > 0x1f:
            raise exception.InvalidValue(
                what='PCI address', value=text,
                expected='expected DOMAIN:BUS:DEVICE.FUNCTION in '
                         'hexadecimal, such as 0000:3b:00.0')
        return cls(*(int(match[part], 16) for part in
                     ('domain', 'bus', 'device', 'function')))

    def __str__(self) -> str:
        return (f'{self.domain:04x}:{self.bus:02x}:'
                f'{self.device:02x}.{self.function}')


class Framework(enum.Enum):
    """How a GPU creates vGPUs; detected in sysfs, never configured."""
    NONE = 'none'
    MDEV_PF = 'mdev-pf'
    """mdev types on the GPU itself (Turing and older)."""
    MDEV_VF = 'mdev-vf'
    """mdev types on SR-IOV virtual functions (Ampere and later)."""
    VENDOR_VFIO = 'vendor-vfio'
    """``nvidia/current_vgpu_type`` on each VF; no mdev bus (kernel 6.8+)."""


@dataclasses.dataclass(frozen=True, order=True)
class Placement:
    """The position of an instance on the grid of memory slices.

    ``start`` and ``size`` are in memory units, as in NVML's
    ``nvmlGpuInstancePlacement_t``.
    """

    start: int
    size: int

    @property
    def mask(self) -> int:
        """The occupied units as a bit mask, bit n for unit n."""
        return ((1 << self.size) - 1) << self.start

    def __str__(self) -> str:
        return f'{self.start}:{self.size}'


@dataclasses.dataclass(frozen=True)
class Engines:
    """Media engines of a GPU instance profile (nvmlGpuInstanceProfileInfo),
    without copy engines, which are assigned differently.
    """

    decoders: int = 0
    encoders: int = 0
    jpeg: int = 0
    ofa: int = 0


@dataclasses.dataclass(frozen=True)
class GpuInstanceProfile:
    """One GPU instance profile as NVML describes it for one GPU.

    ``profile_id`` is the board's number, which NVML's create calls take, not
    the index at which NVML lists it. Both differ between boards for a name.
    """

    profile_id: int
    name: str
    """As ``nvidia-smi mig -lgip`` prints it, without ``MIG ``: 1g.10gb+me."""
    slices: int
    """Compute slices (``sliceCount``)."""
    memory_mib: int
    max_instances: int
    """``instanceCount``: how many fit on an empty GPU."""
    placements: tuple[Placement, ...]
    """nvmlDeviceGetGpuInstancePossiblePlacements, by start."""
    multiprocessors: int = 0
    copy_engines: int = 0
    engines: Engines = Engines()
    capabilities: int = 0
    """``isP2pSupported``, or the capability bits that replaced it."""

    def __hash__(self) -> int:
        # Plans look a profile up often, and two of a GPU differ in this.
        return self.profile_id


@dataclasses.dataclass(frozen=True, order=True)
class ComputeInstance:
    """A live compute instance, in compute slices of its GPU instance
    (nvmlComputeInstancePlacement_t). ``compute_id`` is reused.
    """

    start: int
    size: int
    compute_id: int


@dataclasses.dataclass(frozen=True, order=True)
class GpuInstance:
    """A live GPU instance.

    ``instance_id`` is opaque, and the driver reuses it: it identifies the
    instance only until the instance is destroyed.
    """

    placement: Placement
    profile_id: int
    instance_id: int
    mig_uuids: tuple[str, ...] = ()
    """UUIDs of its MIG devices (one per compute instance), if requested."""
    compute: tuple[ComputeInstance, ...] = ()
    """Its compute instances by start, if requested."""
    scheduler: Scheduler | None = dataclasses.field(
        default=None, compare=False)
    """Scheduler of the vGPUs that time-share it, if the driver reports it."""


@dataclasses.dataclass(frozen=True)
class Mig:
    """The MIG state of a GPU. A GPU without MIG has None instead."""

    enabled: bool
    """Current mode (nvmlDeviceGetMigMode)."""
    pending: bool
    """Mode after the next reset."""
    profiles: tuple[GpuInstanceProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()

    def profile_by_id(self, profile_id: int) -> GpuInstanceProfile | None:
        return next((profile for profile in self.profiles
                     if profile.profile_id == profile_id), None)

    def profile_by_name(self, name: str) -> GpuInstanceProfile | None:
        return next((profile for profile in self.profiles
                     if profile.name == name), None)


@dataclasses.dataclass(frozen=True)
class MdevType:
    """An mdev type of one parent (sysfs ``mdev_supported_types/<type_id>``).

    ``available`` is None if this snapshot did not read it.
    """

    type_id: str  # ``nvidia-474``
    name: str  # Last word of ``name``: ``A100-1-5C``.
    available: int | None
    max_instances: int | None = None
    """``max_instance`` in ``description``, if it is there."""
    framebuffer_mib: int | None = None


@dataclasses.dataclass(frozen=True, order=True)
class Mdev:
    """A live mediated device."""

    uuid: str
    parent: PciAddress
    type_id: str


@dataclasses.dataclass(frozen=True)
class VgpuType:
    """A vGPU type of a GPU (NVML, or sysfs if NVML does not list it)."""

    type_id: int
    """NVML's vGPU type id; the mdev type is ``nvidia-<type_id>``."""
    name: str
    """Last word of NVML's name: ``A100-1-5C``, ``T4-2B``."""
    vgpu_class: str
    """nvmlVgpuTypeGetClass: ``Compute``, ``Quadro``, ``NVS`` ..."""
    framebuffer_mib: int
    max_instances: int | None
    """nvmlVgpuTypeGetMaxInstances, for the whole GPU; None if unknown."""
    gi_profile_id: int | None = None
    """GPU instance profile that it needs; None if it is time-sliced."""
    per_instance: int | None = None
    """nvmlVgpuTypeGetMaxInstancesPerGpuInstance; several time-share it."""
    placement_size: int | None = None
    """Slots in mixed-size mode (nvmlDeviceGetVgpuTypeSupportedPlacements)."""
    placements: tuple[int, ...] = ()
    """Its possible placement ids in mixed-size mode, ascending."""
    free_placements: tuple[int, ...] | None = None
    """Free placements (nvmlDeviceGetVgpuTypeCreatablePlacements), if read."""

    def __hash__(self) -> int:
        return self.type_id

    @property
    def mdev_type_id(self) -> str:
        return f'nvidia-{self.type_id}'

    def is_called(self, text: str) -> bool:
        """Whether an operator's text names it: by name or by mdev type."""
        return text in (self.name, self.mdev_type_id)

    def is_as_large_as(self, other: VgpuType) -> bool:
        """Whether the framebuffers are equal, as far as they are known."""
        return self.type_id == other.type_id or (
            self.framebuffer_mib == other.framebuffer_mib != 0)


@dataclasses.dataclass(frozen=True, order=True)
class Vgpu:
    """A live vGPU of any framework."""

    function: PciAddress
    """The GPU itself, or the virtual function that carries it."""
    type_id: str
    """``nvidia-474``, also without an mdev."""
    uuid: str | None = None
    """UUID of the mdev; None with vendor VFIO, where the function names it."""
    instance_id: int | None = None
    """Its GPU instance, if that can be read (vendor VFIO)."""

    @property
    def name(self) -> str:
        return self.uuid or str(self.function)


class SchedulerPolicy(enum.Enum):
    """How time-sliced vGPUs share a GPU (NVML_VGPU_SCHEDULER_POLICY_*)."""
    BEST_EFFORT = 'best-effort'
    EQUAL_SHARE = 'equal-share'
    FIXED_SHARE = 'fixed-share'


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """nvml{Device,GpuInstance}GetVgpuSchedulerState; times in ns."""

    policy: SchedulerPolicy | None
    """Current policy; None if this library does not know it."""
    time_slice: int | None = None
    """Current slice; None if not reported (adaptive round robin)."""
    supported: tuple[SchedulerPolicy, ...] = ()
    min_time_slice: int = 0
    max_time_slice: int = 0
    adaptive: bool = False
    """Adaptive round robin is on, which sets the slice itself."""
    takes_slice: bool = True
    """Whether adaptive round robin can be turned off, for a time slice."""


@dataclasses.dataclass(frozen=True)
class VirtualFunction:
    """An SR-IOV virtual function of a GPU."""

    address: PciAddress
    index: int
    """n of the physical function's ``virtfn<n>``."""
    driver: str | None
    iommu_group: int | None
    mdev_types: tuple[MdevType, ...] = ()
    mdevs: tuple[Mdev, ...] = ()
    current_vgpu_type: int | None = None
    """``nvidia/current_vgpu_type`` (vendor VFIO); 0: none, None: no file."""
    creatable_types: tuple[int, ...] | None = None
    """``nvidia/creatable_vgpu_types``, which each vGPU changes, if read."""
    gpu_instance_id: int | None = None
    placement_id: int | None = None
    """The files of these names below ``nvidia``; None without a vGPU."""
    problem: str = ''  # Why it could not be read; then it takes no vGPU.


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One physical NVIDIA GPU: a PCI function of class 0300 or 0302.

    A GPU that NVML cannot see has the facts from sysfs and from its record.
    """

    address: PciAddress
    vendor_id: str
    """Four lower-case hexadecimal digits, ``10de``; so is ``device_id``."""
    device_id: str
    class_code: str  # ``0302``
    subsystem_vendor_id: str | None = None
    subsystem_device_id: str | None = None
    model: str | None = None
    """nvmlDeviceGetName."""
    architecture: str | None = None
    """Lower case: ``turing``, ``ampere``, ``ada``, ``hopper``, ..."""
    uuid: str | None = None
    serial: str | None = None
    memory_mib: int | None = None
    compute_capability: str | None = None
    """Of CUDA, ``9.0``."""
    driver_branch: str | None = None
    """Of NVIDIA's driver on this machine, ``580``."""
    numa_node: int | None = None
    """None if the kernel reports -1."""
    pcie_root: str | None = None
    """Domain and bus of its PCIe root complex, ``0000:16``."""
    iommu_group: int | None = None
    neighbours: tuple[whole.Neighbour, ...] | None = ()
    """The other functions in its IOMMU group; None: they were not read."""
    driver: str | None = None
    """Bound kernel driver: ``nvidia``, ``vfio-pci``, None."""
    visible_to_nvml: bool = False
    recorded_at: float | None = None
    """When NVML reported the recorded facts; None: just now."""
    bound_from: str | None = None
    """Its driver before this library bound it to vfio-pci, if it did."""
    nvml_failure: str | None = None
    """Error that ended its reading: ``GPU_IS_LOST``, ... (nvmlReturn_t)."""
    sriov_totalvfs: int = 0
    sriov_numvfs: int = 0
    vfs: tuple[VirtualFunction, ...] = ()
    physfn: PciAddress | None = None
    """Set if this function is itself a VF whose PF is not visible."""
    mig: Mig | None = None
    framework: Framework = Framework.NONE
    mdev_types: tuple[MdevType, ...] = ()
    """Types on the GPU itself (:attr:`Framework.MDEV_PF`)."""
    mdevs: tuple[Mdev, ...] = ()
    """mdevs on the GPU itself; mdevs on a VF are in its entry in ``vfs``."""
    vgpu_types: tuple[VgpuType, ...] = ()
    mixed_sizes: bool | None = None
    """nvmlDeviceGetVgpuHeterogeneousMode; None if the GPU has none."""
    scheduler: Scheduler | None = None
    processes: int = 0
    """Processes of this machine that use it, as far as NVML reports."""
    nvlink_peers: tuple[PciAddress, ...] = ()
    nvlink_open: str = ''
    """Why its NVLinks may reach GPUs of other guests; empty: they do not."""
    problems: tuple[str, ...] = ()
    """What could not be read, as text; empty on a healthy GPU."""

    @functools.cached_property
    def vgpus(self) -> tuple[Vgpu, ...]:
        """Every live vGPU on this GPU, of either framework."""
        found = [Vgpu(mdev.parent, mdev.type_id, mdev.uuid)
                 for mdev in self.all_mdevs]
        found += [Vgpu(function.address,
                       f'nvidia-{function.current_vgpu_type}',
                       instance_id=function.gpu_instance_id)
                  for function in self.vfs if function.current_vgpu_type]
        return tuple(sorted(found, key=lambda vgpu: (
            vgpu.function, vgpu.type_id, vgpu.uuid or '')))

    @functools.cached_property
    def all_mdevs(self) -> tuple[Mdev, ...]:
        """Every mdev on this GPU, on itself and on its VFs."""
        return self.mdevs + tuple(
            mdev for function in self.vfs for mdev in function.mdevs)


@dataclasses.dataclass(frozen=True)
class Host:
    """The machine at one moment.

    ``gpus`` are physical functions by address. ``nvml_problem`` says why
    NVML was not used (no library, driver not loaded), or is None.
    """

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    nvml_problem: str | None = None
    library_missing: bool = False
    unidentified: tuple[str, ...] = ()
    """Possible GPUs of this machine that could not be read, and why."""
    problems: tuple[str, ...] = ()
    nova_unpatched: bool = False
    """Whether nova-compute is known to run without our patches."""

    def gpu(self, address: PciAddress) -> Gpu:
        """Return the GPU at ``address``."""
        for gpu in self.gpus:
            if gpu.address == address:
                return gpu
        raise exception.UnknownGpu(address=address)


# What the fabric manager reports about NVSwitches: values, no I/O.

class FabricMode(enum.IntEnum):
    """FABRIC_MODE in the configuration of the fabric manager.

    From the comments in fabricmanager.cfg and from "Virtualization Models"
    in the fabric manager's user guide.
    """

    BARE_METAL = 0
    """One fabric of all GPUs, or full passthrough with the NVSwitches."""
    SHARED_NVSWITCH = 1
    """Partitions of whole GPUs that are passed through."""
    VGPU = 2
    """Partitions of virtual functions with vGPUs."""


@dataclasses.dataclass(frozen=True)
class FabricMember:
    """A GPU of a partition, as the fabric manager describes it."""

    physical_id: int
    address: PciAddress | None = None
    """None on Hopper and later: the user guide ("Data Structures") says that
    the UUID and the PCI address are empty there, and that the physical id is
    the module id of NVML."""
    links: int = 0
    """Number of NVLinks that can be used in the partition."""
    line_rate: int = 0
    """Line rate of each NVLink, in MB/s."""


@dataclasses.dataclass(frozen=True)
class FabricPartition:
    """A set of GPUs that the fabric manager can connect."""

    partition_id: int
    members: tuple[FabricMember, ...]
    active: bool = False
    supported: bool = True
    """False if hardware that it needs has failed."""

    @property
    def physical_ids(self) -> frozenset[int]:
        """Physical ids of its GPUs."""
        return frozenset(member.physical_id for member in self.members)

    def overlaps(self, other: FabricPartition) -> bool:
        """Whether they have a common GPU, so that only one can be active."""
        return bool(self.physical_ids & other.physical_ids)


@dataclasses.dataclass(frozen=True)
class Fabric:
    """The NVSwitch fabric of a host, read once."""

    modules: Mapping[PciAddress, int]
    """NVML's module id of each GPU on the baseboard. A GPU that is not bound
    to NVIDIA's driver is missing."""
    running: bool = False
    """Whether the process nv-fabricmanager runs."""
    mode: FabricMode | None = None
    """None if its configuration cannot be read."""
    mode_problem: str = ''
    """Why ``mode`` is None."""
    address: str | None = None
    """Where it listens: address and port, or path; None if unknown."""
    version: str | None = None
    """Version of the installed nv-fabricmanager; None if unknown."""
    installed: bool | None = None
    """Whether nv-fabricmanager is installed; None if unknown."""
    partitions: tuple[FabricPartition, ...] = ()
    """All partitions by id, including those that are not supported."""
    failed: tuple[str, ...] = ()
    """PCI addresses of GPUs and NVSwitches whose NVLinks have failed."""
    problem: str = ''
    """Why the partitions cannot be read."""

    def gpu(self, member: FabricMember) -> PciAddress | None:
        """Return the GPU of this host that a member of a partition is.

        :returns: None if it is not known, because the GPU is not bound to
            NVIDIA's driver and NVML does not report its module id.
        """
        if member.address is not None:
            return member.address
        found = [address for address, module in self.modules.items()
                 if module == member.physical_id]
        return found[0] if len(found) == 1 else None

    def single(self, address: PciAddress) -> FabricPartition | None:
        """Return the partition of only this GPU; None if there is none."""
        return next((
            partition for partition in self.partitions
            if partition.supported and len(partition.members) == 1
            and self.gpu(partition.members[0]) == address), None)
