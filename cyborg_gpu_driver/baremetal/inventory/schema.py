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
"""The schema of the ramdisk's report about a node's GPUs.

The report comes over the network from a program that is not trusted. It ends
in Ironic's database and in computations of Ironic's conductor. So every value
is bounded, and text contains only printable characters. Unknown keys are
ignored, because a later release may report more.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.host.snapshot import model

VERSION = 1
TEXT_MAX = 255
LIST_MAX = 64
UNITS_MAX = 64
"""Units of a grid of memory slices; the largest known grid has 12."""

_SLICES_MAX = 16
_MEMORY_MAX = 1 << 26
_ID_MAX = (1 << 32) - 1
_SHORT_MAX = 1 << 16
_LINE = f'1 to {TEXT_MAX} printable characters'


def _line(text):
    if not text.isprintable() or text.isspace():
        raise exception.InvalidValue(what='text', value=text,
                                     expected=f'expected {_LINE}')


FORMATS = {'line': _line, 'pci-address': model.PciAddress.parse}


def _record(required: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has at least these keys."""
    return schema.mapping(required, {}, closed=False)


def _several(items):
    return schema.listing(items, most=LIST_MAX)


_TEXT = {'type': 'string', 'minLength': 1, 'maxLength': TEXT_MAX,
         'format': 'line', 'description': _LINE}
_OPTIONAL_TEXT = schema.nullable(_TEXT)
_ADDRESS = {'type': 'string', 'format': 'pci-address',
            'description': 'a PCI address', 'examples': ['0000:3b:00.0']}
_PCI_ID = schema.matching('[0-9a-f]{4}',
                          'four lower-case hexadecimal digits')
_COUNT = schema.integer(0, UNITS_MAX)
_MEMORY = schema.integer(0, _MEMORY_MAX)
_CODE = schema.matching(
    r'XID_[0-9]{1,6}|(?!XID_)[A-Z][A-Z0-9_]{0,62}',
    'the code of a health condition', 'XID_79', 'REMAP_FAILED')

_PLACEMENT = _record({
    'start': schema.integer(0, UNITS_MAX - 1),
    'size': schema.integer(1, UNITS_MAX)})
_PROFILE = _record({
    'profile_id': schema.integer(0, _ID_MAX),
    'name': _TEXT,
    'slices': schema.integer(1, _SLICES_MAX),
    'memory_mib': _MEMORY,
    'max_instances': _COUNT,
    'multiprocessors': schema.integer(0, _SHORT_MAX),
    'copy_engines': _COUNT,
    'capabilities': schema.integer(0, _ID_MAX),
    'placements': _several(_PLACEMENT),
    'engines': _record({field.name: _COUNT for field
                        in dataclasses.fields(model.Engines)})})
_GPU = _record({
    'address': _ADDRESS,
    'vendor_id': _PCI_ID,
    'device_id': _PCI_ID,
    'class_code': _PCI_ID,
    'subsystem_vendor_id': schema.nullable(_PCI_ID),
    'subsystem_device_id': schema.nullable(_PCI_ID),
    'model': _OPTIONAL_TEXT,
    'architecture': _OPTIONAL_TEXT,
    'uuid': _OPTIONAL_TEXT,
    'serial': _OPTIONAL_TEXT,
    'memory_mib': schema.nullable(_MEMORY),
    'numa_node': schema.nullable(schema.integer(0, _SHORT_MAX)),
    'driver': _OPTIONAL_TEXT,
    'in_pci_sysfs': schema.TRUTH,
    'visible_to_nvml': schema.TRUTH,
    'sriov_totalvfs': schema.integer(0, _SHORT_MAX),
    'mig': schema.nullable(_record({
        'enabled': schema.TRUTH,
        'pending': schema.TRUTH,
        'profiles': _several(_PROFILE)})),
    'nvlink_peers': _several(_ADDRESS),
    'problems': _several(_TEXT),
    'health': schema.nullable(_several(_CODE)),
    # Whether ECC is on, or will be after the next restart.
    'ecc': schema.nullable(schema.TRUTH),
    'nvlink_clique': schema.nullable(schema.matching(
        '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[.][0-9]{1,10}',
        'the UUID of an NVLink cluster, a dot and the number of a clique',
        '51d4ba7b-6d2a-4b39-9e4b-1c4a4bd0f1a2.3'))})
INVENTORY = _record({
    'version': {
        'type': 'integer', 'const': VERSION,
        'description': f'{VERSION}: the versions of cyborg_gpu_driver in the '
                       'ramdisk and in ironic-conductor differ too much'},
    'driver_version': _OPTIONAL_TEXT,
    'nvml_problem': _OPTIONAL_TEXT,
    'problems': _several(_TEXT),
    'gpus': _several(_GPU),
    'confidential_computing': schema.nullable({
        'type': 'string', 'enum': ['off', 'on', 'devtools', None]})})
PCI_DEVICES = {'type': 'array', 'description':
               'the list of the collector pci-devices'}
PCI_GPU = _record({
    'vendor_id': _PCI_ID,
    'product_id': _PCI_ID,
    'class': schema.matching('[0-9a-f]{4}(?s:.*)',
                             'a PCI class of at least four digits'),
    'bus': _ADDRESS,
    'numa_node_id': schema.nullable(schema.matching(
        '-1|[0-9]{1,4}', 'the number of a NUMA node as text'))})
