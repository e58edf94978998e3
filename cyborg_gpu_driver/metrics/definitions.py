# SPDX-License-Identifier: Apache-2.0

"""The metrics of ``cyborg-gpu exporter``: names, kinds, labels and meaning.

Pure. The exporter and the reference documentation both use this table.
Names follow Prometheus' conventions ("Metric and label naming"): base units,
``_total`` for counters, ``_info`` for metrics whose labels carry the facts.
"""

from __future__ import annotations

import dataclasses
import enum

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
    labels: tuple[str, ...]
    help: str
    kind: Kind = Kind.GAUGE

    @property
    def full_name(self) -> str:
        """The name of the metric in a query."""
        return (PREFIX + self.name
                + ('_total' if self.kind is Kind.COUNTER else ''))


def _counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, labels, text, Kind.COUNTER)


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

INFO = Metric('info', (*_GPU, 'pci_bus_id', 'model', 'mode'), (
    'A GPU that was reported to Cyborg. Always 1.'))
ASSIGNMENT = Metric(
    'assignment_info',
    (*_GPU, 'GPU_I_ID', 'GPU_I_PROFILE', 'profile', 'handle', 'mdev', 'vf',
     'server', 'arq', 'project', 'flavor'),
    'A GPU, vGPU or slice in use, and its server; one series for each GPU of '
    'a group. Always 1.')
ASSIGNED = Metric('assignment_start_timestamp_seconds', (*_GPU, 'handle'), (
    'Time when the bind of a handle completed.'))
TIME = _counter('assigned_seconds', (*_GPU, 'profile', 'project'), (
    'Time that servers of a project have had a profile, up to the last '
    'report of the agent. A group of GPUs counts on its first GPU.'))
CAPACITY = Metric('offer_capacity', _OFFER, (
    'Number of units of a profile that fit on an empty GPU.'))
IN_USE = Metric('offer_in_use', _OFFER, (
    'Number of existing units of a profile, including units that others '
    'created.'))
RESERVED = Metric('offer_reserved', _OFFER, (
    'Number of units of a profile that the agent reserves in Placement, '
    'because they cannot or must not be created now.'))
OPEN = Metric('offer_open', _OFFER, (
    'Number of units of a profile that Placement can still allocate: the '
    'capacity without the reserved units and the units that Cyborg has '
    'bound.'))
CREATABLE = Metric('offer_creatable', _OFFER, (
    'Number of further units of a profile for which the GPU has room now, '
    'without other changes. A cordoned or unhealthy GPU can still have room.'))
FREE_SLICES = Metric('mig_free_slices', _GPU, (
    'Compute slices of a GPU in MIG mode that no GPU instance uses.'))
LARGEST_SLICES = Metric('mig_largest_creatable_slices', _GPU, (
    'Compute slices of the largest GPU instance that can be created now. If '
    'this is less than the free compute slices, the free space is '
    'fragmented.'))
DISABLED = Metric('disabled', _GPU, (
    'Whether an operator has disabled the GPU in Cyborg.'))
CORDONED = Metric('cordoned', _GPU, (
    'Whether the GPU gets no new server: an operator has cordoned it on the '
    'host or disabled it in Cyborg, or it had too many errors.'))
CORDON = Metric(
    'cordon_timestamp_seconds', (*_GPU, 'source', 'who', 'reason'),
    'Time when the GPU was cordoned; 0 if unknown. One series for each '
    'source of a cordon: operator, cyborg, health or record.')
HEALTHY = Metric('healthy', _GPU, (
    'Whether the GPU has no health condition that withdraws its offers.'))
CONDITION = Metric('condition_info', (*_GPU, 'code'), (
    'A health condition of the GPU. Always 1.'))
NOT_CLEAN = Metric('unclean', _GPU, (
    'Whether a GPU that is offered as a whole waits for its reset.'))
CLAIMS = Metric('claims', (*_GPU, 'phase'), (
    'Handles on a GPU, by the phase of their bind.'))
CHANGES = Metric('change_pending', _GPU, (
    'Whether a change of the layout is unfinished.'))
BAD_RECORDS = Metric('unreadable_records', _HOST, (
    'GPUs whose record the exporter cannot read.'))
OPERATIONS = _counter('operations', (*_HOST, 'operation', 'result'), (
    'Operations of the agent since it started, by result.'))
DURATION = Metric('operation_duration_seconds', (*_HOST, 'operation'), (
    "Duration of the agent's operations, including failed operations."),
    Kind.HISTOGRAM)
LAST_REPORT = Metric('last_report_timestamp_seconds', _HOST, (
    'Time of the last successful report of the agent. 0 if no report has '
    'succeeded since the agent started.'))
DRIFT = Metric('drift', (*_HOST, 'kind'), (
    'Differences between records, hardware, Cyborg and Placement that the '
    'last report has found and not repaired.'))
REPAIRED = _counter('drift_repaired', (*_HOST, 'kind'), (
    'Differences that reports have repaired since the agent started.'))
DEADLINES = _counter('nvml_missed_deadlines', _HOST, (
    'NVML calls that did not return in time since the agent started.'))
STUCK = Metric('nvml_stuck_calls', _HOST, (
    'NVML calls that had not returned when the agent wrote its state.'))
UNWRITTEN = Metric('unwritten_records', _HOST, (
    'GPUs whose record the agent cannot write and keeps in memory.'))
STATE = Metric('agent_state_timestamp_seconds', _HOST, (
    'Time when the agent last wrote its state. 0 if it never has.'))
XIDS = _counter('xid_errors', (*_GPU, 'xid'), (
    'XIDs of a GPU that NVML reported since the agent started.'))
BUILD = Metric('exporter_build_info', (*_HOST, 'version'), (
    'The exporter itself. Always 1.'))

SAMPLE_AGE = Metric('hardware_sample_age_seconds', _GPU, (
    'Time since the last answer of the GPU. After 60 seconds the exporter '
    'omits its values.'))
FAILED_SAMPLES = _counter('hardware_failed_samples', _GPU, (
    'How often a GPU did not answer NVML, or not in time.'))

HARDWARE = {metric.name: metric for metric in (
    Metric('utilization_ratio', _GPU, (
        'Share of the time in which a kernel ran on the GPU (NVML, '
        'utilization rates). Not in MIG mode.')),
    Metric('memory_utilization_ratio', _GPU, (
        "Share of the time in which the GPU's memory was read or written. "
        'Not in MIG mode.')),
    Metric('memory_bytes', _GPU, 'Memory of the GPU.'),
    Metric('memory_used_bytes', _GPU, (
        'Memory that is in use or reserved by the driver.')),
    Metric('temperature_celsius', _GPU, (
        'Temperature of the GPU.')),
    Metric('power_watts', _GPU, (
        'Power draw of the board: the average of one second, or on GA100 and '
        'older GPUs the current value.')),
    Metric('power_limit_watts', _GPU, (
        'Power limit of the board.')),
    Metric('instance_memory_bytes', _INSTANCE, (
        'Memory of a GPU instance that has a compute instance.')),
    Metric('instance_memory_used_bytes', _INSTANCE, (
        'Memory of a GPU instance that is in use or reserved by the driver.')),
    Metric('vgpu_utilization_ratio', _VGPU, (
        'Share of the time in which a vGPU ran kernels on the GPU.')),
    Metric(
        'vgpu_memory_utilization_ratio', _VGPU,
        "Share of the time in which a vGPU read or wrote the GPU's memory."),
    Metric(
        'vgpu_encoder_utilization_ratio', _VGPU,
        'Share of the time in which a vGPU used the video encoder.'),
    Metric(
        'vgpu_decoder_utilization_ratio', _VGPU,
        'Share of the time in which a vGPU used the video decoder.'),
    Metric('vgpu_framebuffer_used_bytes', _VGPU, (
        'Framebuffer of a vGPU that is in use by its server.')),
)}
"""The metrics with ``--nvml``, by name. Those that a GPU does not support are
left out."""

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
