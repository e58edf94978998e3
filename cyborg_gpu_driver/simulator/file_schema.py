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
"""The schemas of the YAML files of simulated hosts and models."""

from __future__ import annotations

from typing import Any

from cyborg_gpu_driver import schema
from cyborg_gpu_driver.simulator import spec

ALL = 'all'
"""For ``vfs``: as many virtual functions as the model has."""
SWITCHES = 'switches'
"""For ``nvlink``: the links lead to the host's NVSwitches."""
ARCHITECTURES = ('volta', 'turing', 'ampere', 'ada', 'hopper', 'blackwell')

_TEXT = {'type': 'string', 'minLength': 1}
_COUNT = schema.integer(0)
_SOME = schema.integer(1)
_ADDRESS = schema.matching(
    '[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f][.][0-7]', 'a PCI address in quotes',
    "'0000:3b:00.0'")


def _digits(count: int) -> dict[str, Any]:
    """Schema of hexadecimal digits. YAML may read unquoted ones as a number.
    """
    return schema.matching(
        f'[0-9a-f]{{{count}}}',
        f'{count} lower-case hexadecimal digits in quotes')


_GPU = schema.mapping({'model': _TEXT, 'address': _ADDRESS}, {
    'vfs': {'anyOf': [{'const': ALL}, _COUNT]},
    'mig': schema.TRUTH,
    'uuid': _TEXT,
    'serial': _TEXT,
    'numa_node': schema.integer(-1),
    'iommu_group': _COUNT,
    'driver': {'enum': ['nvidia', 'vfio-pci', 'nouveau', None]},
    'framework': {'enum': list(spec.FRAMEWORKS)},
    'nvlink': {'anyOf': [{'const': SWITCHES}, schema.listing(_ADDRESS)]}})
_FUNCTION = schema.mapping({
    'address': _ADDRESS,
    'vendor': _digits(4),
    'device': _digits(4),
    'class': _digits(6)}, {
    'driver': _TEXT,
    'numa_node': {'type': 'integer'},
    'iommu_group': _COUNT})
HOST = schema.mapping({'driver_version': _TEXT}, {
    'cuda_version': _COUNT,
    'wsl': schema.TRUTH,
    'virtual': schema.TRUTH,
    'container': schema.TRUTH,
    'dcgm': schema.TRUTH,
    'keeps_mig': schema.TRUTH,
    'fabric_mode': {'enum': [0, 1, 2]},
    'clique': schema.matching(
        '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[.][0-9]{1,9}',
        'the UUID of an NVLink cluster, a dot and the number of a clique',
        '51d4ba7b-6d2a-4b39-9e4b-1c4a4bd0f1a2.3'),
    'gpus': schema.listing(_GPU),
    'nvswitches': schema.listing(_FUNCTION),
    'functions': schema.listing(_FUNCTION)})

_PROFILE = schema.mapping({
    'enum': _COUNT,
    'id': _COUNT,
    'name': _TEXT,
    'slices': _SOME,
    'memory_mib': _SOME,
    'max': _SOME,
    'size': _SOME,
    'starts': schema.listing(_COUNT, 1),
    'multiprocessors': _COUNT,
    'copy_engines': _COUNT}, {
    'order': schema.listing(_COUNT),
    'capabilities': _COUNT,
    **dict.fromkeys(spec.ENGINES, _COUNT)})
_COMPUTE_PROFILE = schema.mapping(
    {'enum': _COUNT, 'slices': _SOME, 'max': _SOME})
_MIG = schema.mapping({
    'units': _SOME,
    'needs_reset': schema.TRUTH,
    'profiles': schema.listing(_PROFILE, 1),
    # The keys are the compute slices of the GPU instance.
    'compute_profiles': {
        'type': 'object',
        'additionalProperties': schema.listing(_COMPUTE_PROFILE)}})
_VGPU_TYPE = schema.mapping({
    'id': _SOME,
    'name': _TEXT,
    'class': _TEXT,
    'framebuffer_mib': _SOME,
    'max': _SOME}, {
    'profile': _COUNT,
    'per_instance': _COUNT})
MODEL = schema.mapping({
    'product': _TEXT,
    'architecture': {'enum': list(ARCHITECTURES)},
    'compute_capability': schema.listing(_COUNT, 2, 2),
    'device': _digits(4),
    'subsystem_device': _digits(4),
    'memory_mib': _SOME,
    'bar1_mib': _COUNT,
    'power_limit_watts': _COUNT,
    'multiprocessors': _COUNT,
    'row_remapping': schema.TRUTH}, {
    'brand': _COUNT,
    'subsystem_vendor': _digits(4),
    'class': _digits(6),
    'nvlinks': _COUNT,
    'placement_region': _SOME,
    'sriov': schema.nullable(schema.mapping(
        {'totalvfs': _COUNT}, {'offset': _SOME, 'stride': _SOME})),
    'mig': schema.nullable(_MIG),
    'vgpu_types': schema.listing(_VGPU_TYPE)})
