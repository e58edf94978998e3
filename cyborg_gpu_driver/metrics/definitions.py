# SPDX-License-Identifier: Apache-2.0

"""The metrics of ``cyborg-gpu exporter``: names, kinds, labels and meaning.

Pure. The exporter and the reference documentation both use this table.
Names follow Prometheus' conventions ("Metric and label naming"): base units,
``_total`` for counters, ``_info`` for metrics whose labels carry the facts.
"""

from __future__ import annotations

import dataclasses
import enum

from cyborg_gpu_driver.host.snapshot import telemetry

PREFIX = 'cyborg_gpu_'
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the latency histograms, in seconds. Cyborg gives up a bind
after 60 s; the last bucket has everything slower."""

_HOST = ('Hostname',)
_GPU = (*_HOST, 'address', 'UUID')
_INSTANCE = (*_GPU, 'GPU_I_ID')
_VGPU = (*_INSTANCE, 'vgpu', 'mdev', 'server')
_OFFER = (*_GPU, 'mode', 'profile', 'resource_class')


class Kind(enum.Enum):
    """The type of a metric, as Prometheus names it."""

    GAUGE = 'gauge'
    COUNTER = 'counter'
    HISTOGRAM = 'histogram'


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    """Without the prefix, and without the ``_total`` of a counter."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = _HOST

    @property
    def full_name(self) -> str:
        """The name of the metric in a query."""
        return (PREFIX + self.name
                + ('_total' if self.kind is Kind.COUNTER else ''))


LABELS = {
    'Hostname': 'The compute node, as Cyborg and Placement name it.',
    'address': 'PCI address of the GPU, such as ``0000:3b:00.0``.',
    'UUID': "The GPU's UUID, as dcgm-exporter has it. Empty if NVML has never "
            'read it, as for a GPU that was bound to vfio-pci at boot.',
    'GPU_I_ID': 'Id of the GPU instance, as dcgm-exporter has it. Empty '
                'without a GPU instance.',
    'GPU_I_PROFILE': 'Profile of the GPU instance, as dcgm-exporter has it.',
    'pci_bus_id': 'The address as NVML and dcgm-exporter write it.',
    'model': 'Model of the GPU, as NVML names it.',
    'mode': 'Mode of the GPU: ``passthrough``, ``nvlink``, ``vgpu`` or '
            '``mig``.',
    'profile': 'The offered or bound profile: ``passthrough``, a group of '
               'GPUs, a MIG profile or a vGPU type.',
    'resource_class': 'The resource class in Placement.',
    'handle': 'UUID of the attach handle. Empty for a whole GPU.',
    'mdev': 'UUID of the mdev, equal to the UUID of the handle. Empty for '
            'vGPUs without mdev.',
    'vf': 'Address of the virtual function. Empty for a whole GPU and a group '
          'of GPUs.',
    'server': 'UUID of the server. For a vGPU or slice, known with '
              '``[gpu_cloud]``, or from libvirt.',
    'arq': 'UUID of the accelerator request. Empty unless ``[gpu_cloud]`` '
           'is set.',
    'project': "Id of the server's project; empty if unknown. For "
               'assignments, it is known with ``--libvirt``; for their time, '
               'with ``[gpu_cloud]`` or for a whole GPU.',
    'flavor': "Name of the server's flavor, known with ``--libvirt``.",
    'code': 'The condition, as ``cyborg-gpu doctor`` names it.',
    'phase': '``binding``, ``bound`` or ``unbinding``.',
    'operation': '``bind``, ``unbind`` or ``report``.',
    'result': '``success``, ``refused`` (without a change), ``late`` (not '
              'finished in time; a bind is rolled back, an unbind continues) '
              'or ``error``.',
    'kind': 'The kind of difference, as ``cyborg-gpu doctor`` names it.',
    'source': 'Source of the cordon: ``operator``, ``cyborg``, ``health`` or '
              '``record``.',
    'who': 'User who cordoned the GPU. Empty if unknown.',
    'reason': 'Why the GPU is cordoned.',
    'version': 'Release of this library.',
    'clock': '``sm`` or ``memory``.',
    'ecc': '``corrected`` (single-bit) or ``uncorrected`` (double-bit).',
    'cause': '``correctable`` or ``uncorrectable`` errors.',
    'link': 'Number of the NVLink.',
    'error': 'Kind of error: ``replay``, ``recovery`` or ``crc``; before '
             'Hopper, ``crc_flit`` and ``crc_data`` instead of ``crc``.',
    'vgpu': "NVML's number of the vGPU. It exists while the server runs.",
    'xid': "The error's number in NVIDIA's XID catalogue.",
}

INFO = Metric(
    'info', Kind.GAUGE, 'A GPU that was reported to Cyborg. Always 1.',
    (*_GPU, 'pci_bus_id', 'model', 'mode'))
ASSIGNMENT = Metric(
    'assignment_info', Kind.GAUGE,
    'A GPU, vGPU or slice in use, and its server; one series for each GPU of '
    'a group. Always 1.',
    (*_GPU, 'GPU_I_ID', 'GPU_I_PROFILE', 'profile', 'handle', 'mdev', 'vf',
     'server', 'arq', 'project', 'flavor'))
ASSIGNED = Metric(
    'assignment_start_timestamp_seconds', Kind.GAUGE,
    'Time when the bind of a handle completed.', (*_GPU, 'handle'))
TIME = Metric(
    'assigned_seconds', Kind.COUNTER,
    'Time that servers of a project have had a profile, up to the last report '
    'of the agent. A group of GPUs counts on its first GPU.',
    (*_GPU, 'profile', 'project'))
CAPACITY = Metric(
    'offer_capacity', Kind.GAUGE,
    'Number of units of a profile that fit on an empty GPU.', _OFFER)
IN_USE = Metric(
    'offer_in_use', Kind.GAUGE,
    'Number of existing units of a profile, including units that others '
    'created.', _OFFER)
RESERVED = Metric(
    'offer_reserved', Kind.GAUGE,
    'Number of units of a profile that the agent reserves in Placement, '
    'because they cannot or must not be created now.', _OFFER)
OPEN = Metric(
    'offer_open', Kind.GAUGE,
    'Number of units of a profile that Placement can still allocate: the '
    'capacity without the reserved units and the units that Cyborg has '
    'bound.', _OFFER)
CREATABLE = Metric(
    'offer_creatable', Kind.GAUGE,
    'Number of further units of a profile for which the GPU has room now, '
    'without other changes. A cordoned or unhealthy GPU can still have room.',
    _OFFER)
FREE_SLICES = Metric(
    'mig_free_slices', Kind.GAUGE,
    'Compute slices of a GPU in MIG mode that no GPU instance uses.', _GPU)
LARGEST_SLICES = Metric(
    'mig_largest_creatable_slices', Kind.GAUGE,
    'Compute slices of the largest GPU instance that can be created now. '
    'If this is less than the free compute slices, the free space is '
    'fragmented.', _GPU)
DISABLED = Metric(
    'disabled', Kind.GAUGE,
    'Whether an operator has disabled the GPU in Cyborg.', _GPU)
CORDONED = Metric(
    'cordoned', Kind.GAUGE,
    'Whether the GPU gets no new server: an operator has cordoned it on the '
    'host or disabled it in Cyborg, or it had too many errors.', _GPU)
CORDON = Metric(
    'cordon_timestamp_seconds', Kind.GAUGE,
    'Time when the GPU was cordoned; 0 if unknown. One series for each source '
    'of a cordon: operator, cyborg, health or record.',
    (*_GPU, 'source', 'who', 'reason'))
HEALTHY = Metric(
    'healthy', Kind.GAUGE,
    'Whether the GPU has no health condition that withdraws its offers.',
    _GPU)
CONDITION = Metric(
    'condition_info', Kind.GAUGE,
    'A health condition of the GPU. Always 1.', (*_GPU, 'code'))
NOT_CLEAN = Metric(
    'unclean', Kind.GAUGE,
    'Whether a GPU that is offered as a whole waits for its reset.', _GPU)
CLAIMS = Metric(
    'claims', Kind.GAUGE, 'Handles on a GPU, by the phase of their bind.',
    (*_GPU, 'phase'))
CHANGES = Metric(
    'change_pending', Kind.GAUGE,
    'Whether a change of the layout is unfinished.',
    _GPU)
BAD_RECORDS = Metric(
    'unreadable_records', Kind.GAUGE,
    'GPUs whose record the exporter cannot read.')
OPERATIONS = Metric(
    'operations', Kind.COUNTER,
    'Operations of the agent since it started, by result.',
    (*_HOST, 'operation', 'result'))
DURATION = Metric(
    'operation_duration_seconds', Kind.HISTOGRAM,
    "Duration of the agent's operations, including failed operations.",
    (*_HOST, 'operation'))
LAST_REPORT = Metric(
    'last_report_timestamp_seconds', Kind.GAUGE,
    'Time of the last successful report of the agent. 0 if no report has '
    'succeeded since the agent started.')
DRIFT = Metric(
    'drift', Kind.GAUGE,
    'Differences between records, hardware, Cyborg and Placement that the '
    'last report has found and not repaired.', (*_HOST, 'kind'))
REPAIRED = Metric(
    'drift_repaired', Kind.COUNTER,
    'Differences that reports have repaired since the agent started.',
    (*_HOST, 'kind'))
DEADLINES = Metric(
    'nvml_missed_deadlines', Kind.COUNTER,
    'NVML calls that did not return in time since the agent started.')
STUCK = Metric(
    'nvml_stuck_calls', Kind.GAUGE,
    'NVML calls that had not returned when the agent wrote its state.')
UNWRITTEN = Metric(
    'unwritten_records', Kind.GAUGE,
    'GPUs whose record the agent cannot write and keeps in memory.')
STATE = Metric(
    'agent_state_timestamp_seconds', Kind.GAUGE,
    'Time when the agent last wrote its state. 0 if it never has.')
XIDS = Metric(
    'xid_errors', Kind.COUNTER,
    'XIDs of a GPU that NVML reported since the agent started.',
    (*_GPU, 'xid'))
BUILD = Metric(
    'exporter_build_info', Kind.GAUGE,
    'The exporter itself. Always 1.', (*_HOST, 'version'))

SAMPLE_AGE = Metric(
    'hardware_sample_age_seconds', Kind.GAUGE,
    'Time since the last answer of the GPU. After 60 seconds the exporter '
    'omits its values.', _GPU)
FAILED_SAMPLES = Metric(
    'hardware_failed_samples', Kind.COUNTER,
    'How often a GPU did not answer NVML, or not in time.', _GPU)

_Q = telemetry.Quantity
HARDWARE = {
    _Q.UTILIZATION: Metric(
        'utilization_ratio', Kind.GAUGE,
        'Share of the time in which a kernel ran on the GPU (NVML, '
        'utilization rates). Not in MIG mode: see '
        '``cyborg_gpu_instance_utilization_ratio``.', _GPU),
    _Q.MEMORY_UTILIZATION: Metric(
        'memory_utilization_ratio', Kind.GAUGE,
        "Share of the time in which the GPU's memory was read or written. Not "
        'in MIG mode.', _GPU),
    _Q.MEMORY: Metric(
        'memory_bytes', Kind.GAUGE, 'Memory of the GPU.', _GPU),
    _Q.MEMORY_USED: Metric(
        'memory_used_bytes', Kind.GAUGE,
        'Memory that is in use or reserved by the driver.', _GPU),
    _Q.TEMPERATURE: Metric(
        'temperature_celsius', Kind.GAUGE, 'Temperature of the GPU.', _GPU),
    _Q.MEMORY_TEMPERATURE: Metric(
        'memory_temperature_celsius', Kind.GAUGE,
        "Temperature of the GPU's memory.", _GPU),
    _Q.POWER: Metric(
        'power_watts', Kind.GAUGE,
        'Power draw of the board: the average of one second, or on GA100 '
        'and older GPUs the current value.', _GPU),
    _Q.POWER_LIMIT: Metric(
        'power_limit_watts', Kind.GAUGE,
        'Power limit of the board.', _GPU),
    _Q.ENERGY: Metric(
        'energy_joules', Kind.COUNTER,
        'Energy that the GPU used since the driver was loaded.', _GPU),
    _Q.CLOCK: Metric(
        'clock_hertz', Kind.GAUGE, 'Clock frequency.', (*_GPU, 'clock')),
    _Q.ECC_ERRORS: Metric(
        'ecc_errors', Kind.COUNTER,
        'ECC errors since the driver was loaded.', (*_GPU, 'ecc')),
    _Q.REMAPPED_ROWS: Metric(
        'remapped_rows', Kind.COUNTER,
        'Memory rows that were remapped in the lifetime of the board. Not '
        'while there are GPU instances.', (*_GPU, 'cause')),
    _Q.REMAP_PENDING: Metric(
        'row_remap_pending', Kind.GAUGE,
        'Whether rows wait for a reset to be remapped.', _GPU),
    _Q.REMAP_FAILED: Metric(
        'row_remap_failed', Kind.GAUGE,
        'Whether a row could not be remapped.', _GPU),
    _Q.LINK_UP: Metric(
        'nvlink_up', Kind.GAUGE,
        'Whether the NVLink is active.', (*_GPU, 'link')),
    _Q.LINK_ERRORS: Metric(
        'nvlink_errors', Kind.COUNTER,
        'Errors of all NVLinks of the GPU.', (*_GPU, 'error')),
    _Q.PCIE_SENT: Metric(
        'pcie_transmitted_bytes', Kind.COUNTER,
        'Bytes that the GPU sent over PCIe. The counter of the driver '
        'wraps.', _GPU),
    _Q.PCIE_RECEIVED: Metric(
        'pcie_received_bytes', Kind.COUNTER,
        'Bytes that the GPU received over PCIe. The counter of the driver '
        'wraps.', _GPU),
    _Q.PCIE_REPLAYS: Metric(
        'pcie_replays', Kind.COUNTER,
        'PCIe packets that were sent again.', _GPU),
    _Q.INSTANCE_MEMORY: Metric(
        'instance_memory_bytes', Kind.GAUGE,
        'Memory of a GPU instance that has a compute instance.', _INSTANCE),
    _Q.INSTANCE_MEMORY_USED: Metric(
        'instance_memory_used_bytes', Kind.GAUGE,
        'Memory of a GPU instance that is in use or reserved by the driver.',
        _INSTANCE),
    _Q.INSTANCE_UTILIZATION: Metric(
        'instance_utilization_ratio', Kind.GAUGE,
        'Share of the time in which a GPU instance was busy since the '
        'previous sample (NVML, GPM). Hopper or newer.', _INSTANCE),
    _Q.INSTANCE_SM_UTILIZATION: Metric(
        'instance_sm_utilization_ratio', Kind.GAUGE,
        'Share of the SMs of a GPU instance that were busy. Hopper or newer.',
        _INSTANCE),
    _Q.INSTANCE_TENSOR_UTILIZATION: Metric(
        'instance_tensor_utilization_ratio', Kind.GAUGE,
        'Share of the time in which the SMs of a GPU instance did tensor '
        'operations. Hopper or newer.', _INSTANCE),
    _Q.INSTANCE_BANDWIDTH_UTILIZATION: Metric(
        'instance_memory_bandwidth_ratio', Kind.GAUGE,
        'Share of the memory bandwidth of a GPU instance that was used. '
        'Hopper or newer.', _INSTANCE),
    _Q.VGPU_UTILIZATION: Metric(
        'vgpu_utilization_ratio', Kind.GAUGE,
        'Share of the time in which a vGPU ran kernels on the GPU.', _VGPU),
    _Q.VGPU_MEMORY_UTILIZATION: Metric(
        'vgpu_memory_utilization_ratio', Kind.GAUGE,
        "Share of the time in which a vGPU read or wrote the GPU's memory.",
        _VGPU),
    _Q.VGPU_ENCODER_UTILIZATION: Metric(
        'vgpu_encoder_utilization_ratio', Kind.GAUGE,
        'Share of the time in which a vGPU used the video encoder.', _VGPU),
    _Q.VGPU_DECODER_UTILIZATION: Metric(
        'vgpu_decoder_utilization_ratio', Kind.GAUGE,
        'Share of the time in which a vGPU used the video decoder.', _VGPU),
    _Q.VGPU_FRAMEBUFFER_USED: Metric(
        'vgpu_framebuffer_used_bytes', Kind.GAUGE,
        'Framebuffer of a vGPU that is in use by its server.', _VGPU),
}
"""The metrics with ``--nvml``. Those that a GPU does not support are left
out."""

METRICS = (
    INFO, ASSIGNMENT, ASSIGNED, TIME, CAPACITY, IN_USE, RESERVED, OPEN,
    CREATABLE, FREE_SLICES, LARGEST_SLICES, DISABLED, CORDONED, CORDON,
    HEALTHY, CONDITION, NOT_CLEAN, CLAIMS, CHANGES, BAD_RECORDS, OPERATIONS,
    DURATION, LAST_REPORT, DRIFT, REPAIRED, DEADLINES, STUCK, UNWRITTEN,
    STATE, XIDS, BUILD)
"""The metrics of every scrape."""
SAMPLED = (*HARDWARE.values(), SAMPLE_AGE, FAILED_SAMPLES)
"""The metrics that exist only with ``--nvml``."""
ALL = METRICS + SAMPLED
