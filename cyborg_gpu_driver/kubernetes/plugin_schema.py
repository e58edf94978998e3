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
"""The schema of the configuration file of NVIDIA's device plugin.

The schema follows api/config/v1 in the plugin's repository.
"""

from __future__ import annotations

from typing import Any

from cyborg_gpu_driver import schema
from cyborg_gpu_driver.kubernetes import sharing
from cyborg_gpu_driver.kubernetes import strategy

VERSION = 'v1'
RESOURCE_NAME = 'resource-name'
"""The format of a resource's name: ``resource.full_name`` reads it."""

_UUID = '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}'
_NAME = {'type': 'string', 'format': RESOURCE_NAME,
         'description': 'the name of a resource',
         'examples': ['nvidia.com/gpu']}
_LIST_STRATEGY = {'enum': ['envvar', 'volume-mounts', 'cdi-annotations',
                           'cdi-cri']}
_DURATION = 'nanoseconds, infinite, or a duration'
_DEVICE = ('the index of a GPU (0) or of a MIG device ("0:1"), or the UUID '
           'of either')

_FLAGS = schema.mapping({}, {
    'migStrategy': {'enum': [item.value for item in strategy.Strategy]},
    'failOnInitError': schema.TRUTH,
    'mpsRoot': schema.TEXT,
    'nvidiaDriverRoot': schema.TEXT,
    'nvidiaDevRoot': schema.TEXT,
    'gdrcopyEnabled': schema.TRUTH,
    'gdsEnabled': schema.TRUTH,
    'mofedEnabled': schema.TRUTH,
    'useNodeFeatureAPI': schema.TRUTH,
    'deviceDiscoveryStrategy': {'enum': ['auto', 'nvml', 'tegra']},
    'plugin': schema.mapping({}, {
        'passDeviceSpecs': schema.TRUTH,
        'deviceListStrategy': {'anyOf': [
            _LIST_STRATEGY, schema.listing(_LIST_STRATEGY)]},
        'deviceIDStrategy': {'enum': ['uuid', 'index']},
        'cdiAnnotationPrefix': schema.TEXT,
        'nvidiaCTKPath': schema.TEXT,
        'containerDriverRoot': schema.TEXT,
        'sharedDevicesAllocationPolicy': {'enum': ['distributed',
                                                   'packed']}}),
    'gfd': schema.mapping({}, {
        'oneshot': schema.TRUTH,
        'noTimestamp': schema.TRUTH,
        'sleepInterval': {
            'description': _DURATION, 'examples': ['60s'],
            'anyOf': [
                {'type': 'number'},
                schema.matching(
                    r'infinite|0|[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)'
                    '(ns|us|µs|μs|ms|s|m|h))+', _DURATION, '60s')]},
        'outputFile': schema.TEXT,
        'machineTypeFile': schema.TEXT})})
_NAMED = schema.listing(
    schema.mapping({'pattern': schema.TEXT, 'name': _NAME}), 1)
_REPLICATED = schema.mapping({
    'resources': schema.listing(schema.mapping({
        'name': _NAME,
        'replicas': schema.integer(sharing.FEWEST)}, {
        'rename': _NAME,
        'devices': {'anyOf': [
            {'const': 'all'},
            schema.integer(1),
            schema.listing({
                'description': _DEVICE,
                'anyOf': [
                    {**schema.integer(0), 'description': _DEVICE},
                    schema.matching(
                        f'[0-9]+(:[0-9]+)?|(GPU|MIG)-{_UUID}|'
                        f'MIG-GPU-{_UUID}/[0-9]+/[0-9]+', _DEVICE)]},
                1)]}}), 1)}, {
    'renameByDefault': schema.TRUTH,
    'failRequestsGreaterThanOne': schema.TRUTH})

PLUGIN_CONFIG: dict[str, Any] = schema.mapping({}, {
    'version': {'const': VERSION},
    'flags': _FLAGS,
    'resources': schema.mapping({}, {'gpus': _NAMED, 'mig': _NAMED}),
    'sharing': schema.mapping(
        {}, {method.key: _REPLICATED for method in sharing.Method},
        maxProperties=1, description='only timeSlicing or mps'),
    'imex': schema.mapping({}, {
        'channelIDs': schema.listing({'type': 'integer', 'const': 0}, 0, 1),
        'required': schema.TRUTH})})
