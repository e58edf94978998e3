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

"""The steps of this driver, and which of them a node can be offered."""

from __future__ import annotations

from collections.abc import Collection

from cyborg_gpu_driver.baremetal.inventory import names
from cyborg_gpu_driver.host.snapshot import model

CLEAR = 'clear_gpu_partitions'
RESET = 'reset_gpus'
VERIFY = 'verify_gpus'

CLEAN_PRIORITIES = {CLEAR: 90, RESET: 89, VERIFY: 5}
"""Highest first. A tenant's partitions are removed before the disks are erased
(ironic-python-agent's erase_devices has 10), which may take hours. The reset
then activates the changes that wait for one. The verification comes last, on
the state that the next tenant gets."""

_NVIDIA = 'nvidia'
_VFIO = 'vfio'
"""In the names of drivers that report which process has a GPU open."""
_KEEPS_MIG_MODE = frozenset({'ampere'})
"""Architectures whose MIG mode outlives a restart (MIG User Guide, System
Considerations)."""


def obstacle(step: str, host: model.Host,
             resettable: Collection[model.PciAddress] = (),
             inspected: bool = False, ecc_recorded: bool = False) -> str:
    """Return why a node cannot be offered a step, for people; or ``''``.

    :param host: without the GPUs that the operator wants left alone.
    :param resettable: GPUs that can be reset.
    :param inspected: whether the last inspection found GPUs.
    :param ecc_recorded: whether the last inspection recorded ECC modes.
    """
    if step == VERIFY and inspected:
        return ''
    if not host.gpus:
        return 'there is no NVIDIA GPU'
    if step == names.APPLY_LAYOUT and not any(map(_may_have_mig, host.gpus)):
        return 'none of its GPUs supports MIG'
    if step == CLEAR and not any(map(_has_partitions, host.gpus)) \
            and not ecc_recorded:
        return 'none of its GPUs supports MIG or has vGPUs' + (
            f' (NVML: {host.nvml_problem})' if host.nvml_problem else '')
    if step == RESET:
        return '; '.join(filter(None, (
            _fixed(gpu, resettable) for gpu in host.gpus)))
    return ''


def keeps_mig_mode(gpu: model.Gpu) -> bool:
    """Whether a GPU keeps its MIG mode over a restart."""
    return gpu.mig is not None and gpu.architecture in _KEEPS_MIG_MODE


def _may_have_mig(gpu):
    return gpu.mig is not None or not gpu.visible_to_nvml


def _has_partitions(gpu):
    return gpu.mig is not None or (gpu.visible_to_nvml and bool(
        gpu.sriov_numvfs or gpu.vgpus))


def _fixed(gpu, resettable):
    """Return why a GPU cannot be reset."""
    if gpu.address not in resettable:
        return f'the kernel cannot reset GPU {gpu.address}'
    if gpu.driver == _NVIDIA and not gpu.visible_to_nvml:
        return (f'GPU {gpu.address} is bound to the NVIDIA driver, and NVML '
                'does not list its users')
    if gpu.driver not in (None, _NVIDIA) and _VFIO not in gpu.driver:
        return (f'GPU {gpu.address} is bound to {gpu.driver}, whose users are '
                'not known')
    return ''
