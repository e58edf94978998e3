# SPDX-License-Identifier: Apache-2.0

"""Hosts of the stateful test, with their policies and what fails on them."""

import errno

import pynvml

FIRST = '0000:3b:00.0'
SECOND = '0000:41:00.0'
THIRD = '0000:81:00.0'
GPUS = (FIRST, SECOND, THIRD)
WHOLE = 'passthrough'


def policies(first, second, third):
    """The policies of the three GPUs, as sections of cyborg.conf."""
    return {f'gpu_policy:p{number}': {'match_address': address, **options}
            for number, (address, options) in enumerate(
                ((FIRST, first), (SECOND, second), (THIRD, third)))}


def _vgpu(names, **more):
    return {'mode': 'vgpu', 'vgpu_types': names, **more}


def _mig(**options):
    return {'mode': 'mig', **options}


_PASSTHROUGH = {'mode': WHOLE}

_CREATE = 'nvmlDeviceCreateGpuInstanceWithPlacement'
_DESTROY = 'nvmlGpuInstanceDestroy'
_FAULTS = (
    # What fails, how, and whether its work is done despite the failure.
    (_CREATE, pynvml.NVML_ERROR_UNKNOWN, False),
    (_CREATE, pynvml.NVML_ERROR_UNKNOWN, True),
    (_CREATE, pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES, False),
    (_DESTROY, pynvml.NVML_ERROR_IN_USE, False),
    (_DESTROY, pynvml.NVML_ERROR_UNKNOWN, False),
    (_DESTROY, pynvml.NVML_ERROR_UNKNOWN, True),
    ('nvmlDeviceGetGpuInstances', pynvml.NVML_ERROR_UNKNOWN, False),
    ('nvmlGpuInstanceGetInfo', pynvml.NVML_ERROR_UNKNOWN, False),
    ('nvmlDeviceGetHandleByPciBusId_v2', pynvml.NVML_ERROR_TIMEOUT, False),
    ('nvmlDeviceSetMigMode', pynvml.NVML_ERROR_UNKNOWN, False),
    ('nvmlDeviceGetRemappedRows', pynvml.NVML_ERROR_UNKNOWN, False),
    ('sriov-manage', errno.EBUSY, False), ('*/reset', errno.EIO, False))

MDEV = {
    'framework': 'mdev',
    'faults': (
        *_FAULTS, ('mdevctl', errno.EIO, False),
        ('*/create', errno.EIO, False), ('*/create', errno.EIO, True),
        ('*/create', errno.ENOSPC, False), ('*/remove', errno.EBUSY, False),
        ('*/remove', errno.EIO, True)),
    'models': ('t4', 'a100-80', 'h100-80'),
    'configurations': (
        policies(_vgpu('T4-4C,T4-8C'),
                 _mig(profiles='1g.10gb,2g.20gb,3g.40gb,7g.80gb'),
                 _PASSTHROUGH),
        policies(_vgpu('T4-4C'), _mig(profiles='1g.10gb,3g.40gb'),
                 _PASSTHROUGH),
        policies(_PASSTHROUGH, _vgpu('A100DX-20C'),
                 _mig(profiles='2g.20gb')),
        policies({'mode': 'off'}, _mig(profiles='1g.10gb'),
                 _vgpu('H100XM-40C'))),
    'classes': ('T4_4C', 'T4_8C', '1G_10GB', '2G_20GB', '3G_40GB', '7G_80GB',
                'A100DX_20C', 'H100XM_40C')}
"""vGPUs on the GPU itself, slices on virtual functions, and a whole GPU."""

VFIO = {
    'framework': 'vendor-vfio',
    'faults': (
        *_FAULTS, ('*/current_vgpu_type', errno.EIO, False),
        ('*/current_vgpu_type', errno.EIO, True),
        ('*/current_vgpu_type', errno.EBUSY, False),
        ('*/vgpu_params', errno.EBUSY, False)),
    'models': ('rtx-pro-6000', 'a100-40', 'l40s'),
    'configurations': (
        policies(_mig(vgpu_types='DC-1-8Q,DC-1-12A,DC-2-24Q',
                      max_instances='DC-1-8Q:5,DC-1-12A:3'),
                 _vgpu('A100X-8C,A100X-20C', mixed_sizes='true'),
                 _PASSTHROUGH),
        policies(_mig(vgpu_types='DC-1-8Q', max_instances='DC-1-8Q:5'),
                 _vgpu('A100X-20C', mixed_sizes='true'), _PASSTHROUGH),
        policies(_vgpu('DC-24C'), _mig(profiles='2g.10gb,3g.20gb'),
                 _vgpu('L40S-12Q')),
        policies(_mig(vgpu_types='DC-2-24Q'), _vgpu('A100X-10C'),
                 {'mode': 'off'})),
    'classes': ('DC_1_8Q', 'DC_1_12A', 'DC_2_24Q', 'A100X_8C', 'A100X_20C',
                'DC_24C', '2G_10GB', '3G_20GB', 'L40S_12Q', 'A100X_10C')}
"""Several vGPUs on a slice, vGPUs of mixed sizes, and a whole GPU."""
