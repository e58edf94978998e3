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

"""What the ramdisk says of a node's GPUs: plain JSON, made and read.

    {"version": 1, "driver_version": "570.133.20", "nvml_problem": null,
     "gpus": [{"address": "0000:1b:00.0", "device_id": "2330",
               "mig": {"profiles": [...], ...}, "health": [], ...}]}

It says what the boards are, not what is on them: instances are gone with the
next start of the machine. ``health`` has the codes of what ails a GPU, and
is null where the GPU could not be asked. Reading it, keys that are not known
are passed over; what is known must be right.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver.baremetal import inventory_fields as fields
from cyborg_gpu_driver.baremetal import modes as modes_module
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.partition import health as health_module

VERSION = 1
NO_COLLECTOR = 'the ramdisk has no collector nvidia-gpus'

_UNITS_MAX = 64
"""Of a grid of memory slices; the largest known has 12."""
_SLICES_MAX = 16
_WAYS_MAX = 40_000
"""To cut one of each kind of board, overlaps alone considered; those known
have 5536 at most. To list the layouts of a board is to go through them."""
_MEMORY_MAX = 1 << 26
_ID_MAX = (1 << 32) - 1
_CODE = re.compile(r'XID_\d{1,6}|(?!XID_)[A-Z][A-Z0-9_]{0,62}', re.ASCII)
_NO_MODES = modes_module.Modes()
_NVIDIA = '10de'
_DISPLAY = ('0300', '0302')


@dataclasses.dataclass(frozen=True)
class Inventory:
    """A node's GPUs, by address, without anything that is on them."""

    gpus: tuple[model.Gpu, ...] = ()
    driver_version: str | None = None
    """NVIDIA's driver in the ramdisk."""
    nvml_problem: str | None = None
    """Why NVML told nothing; None if it did."""
    problems: tuple[str, ...] = ()
    """What of the machine could not be read, for people."""
    ailments: Mapping[model.PciAddress, tuple[str, ...]] = (
        dataclasses.field(default_factory=dict))
    """Codes of what ails each GPU that could be asked: ``XID_79``,
    ``REMAP_FAILED``; none for one that is well."""

    modes: modes_module.Modes = _NO_MODES
    """That outlive a tenant, of the GPUs that NVML could be asked about."""

    @property
    def sick(self) -> dict[model.PciAddress, tuple[str, ...]]:
        """What ails each GPU that is sick, for people."""
        return {address: tuple(health_module.Ailment(code, 0, 0).text
                               for code in codes)
                for address, codes in self.ailments.items() if codes}

    @property
    def asked(self) -> bool:
        """Whether the health of every GPU is known."""
        return all(gpu.address in self.ailments for gpu in self.gpus)


def to_dict(host: model.Host,
            health: Mapping[model.PciAddress,
                            Iterable[health_module.Ailment]],
            modes: modes_module.Modes = _NO_MODES) -> dict[str, Any]:
    """What is sent: values of JSON only.

    :param health: what ails each GPU that could be asked for its health,
        also nothing; a GPU that is not in it could not be.
    :param modes: MIG modes are the GPUs' own.
    """
    return {'version': VERSION,
            'driver_version': fields.tidy(host.driver_version),
            'nvml_problem': fields.tidy(host.nvml_problem),
            'problems': _tidy(host.problems),
            'confidential_computing': modes.confidential_computing,
            'gpus': [{**_plain_gpu(gpu),
                      'ecc': modes.ecc.get(gpu.address),
                      'health': _codes(health.get(gpu.address))}
                     for gpu in host.gpus]}


def parse(value: Any) -> Inventory:
    """Read what was sent.

    :raises InventoryError: naming what is wrong where.
    """
    content = fields.mapping(value, 'inventory')
    version = content.get('version')
    # True equals 1.
    if type(version) is not int or version != VERSION:
        raise fields.error(
            'inventory.version', 'another version than this release reads',
            f'expected {VERSION}: the cyborg_gpu_driver of the ramdisk and '
            "of Ironic's conductor are too far apart")
    return _INVENTORY(content, 'inventory')


def from_pci(value: Any) -> Inventory:
    """The GPUs among what ironic-python-agent's pci-devices collector sent.

    That has ``vendor_id``, ``product_id``, ``class``, ``bus`` (the address)
    and ``numa_node_id`` of every PCI function. No more is known of them.

    :raises InventoryError: if it is something else.
    """
    if not isinstance(value, list):
        raise fields.error('pci_devices', 'no list', 'expected the list of '
                           'the collector pci-devices')
    found = [_PCI(item, f'pci_devices[{number}]')
             for number, item in enumerate(value) if _is_gpu(item)]
    return _inventory(found, nvml_problem=NO_COLLECTOR)


def _is_gpu(item):
    return (isinstance(item, dict) and item.get('vendor_id') == _NVIDIA
            and str(item.get('class'))[:4] in _DISPLAY)


def _codes(ailments):
    return None if ailments is None else sorted(
        {item.code for item in ailments})


def _plain_gpu(gpu):
    """A GPU as JSON; the keys are those of :data:`_GPU`."""
    return {
        'address': str(gpu.address), 'vendor_id': gpu.vendor_id,
        'device_id': gpu.device_id, 'class_code': gpu.class_code,
        'subsystem_vendor_id': gpu.subsystem_vendor_id,
        'subsystem_device_id': gpu.subsystem_device_id,
        'model': fields.tidy(gpu.model),
        'architecture': fields.tidy(gpu.architecture),
        'uuid': fields.tidy(gpu.uuid), 'serial': fields.tidy(gpu.serial),
        'memory_mib': gpu.memory_mib, 'numa_node': gpu.numa_node,
        'driver': fields.tidy(gpu.driver),
        'in_pci_sysfs': gpu.in_pci_sysfs,
        'visible_to_nvml': gpu.visible_to_nvml,
        'sriov_totalvfs': gpu.sriov_totalvfs,
        'mig': None if gpu.mig is None else {
            'enabled': gpu.mig.enabled, 'pending': gpu.mig.pending,
            'profiles': [_plain_profile(profile)
                         for profile in gpu.mig.profiles]},
        'nvlink_peers': [str(peer) for peer in gpu.nvlink_peers],
        'problems': _tidy(gpu.problems)}


def _tidy(problems):
    return [text for text in map(fields.tidy, problems)
            if text][:fields.LIST_MAX]


def _plain_profile(profile):
    return {**{name: getattr(profile, name) for name in _PLAIN},
            'engines': dataclasses.asdict(profile.engines),
            'placements': [dataclasses.asdict(placement)
                           for placement in profile.placements]}


# Reading: for each kind of thing its keys, and what each must be.

_COUNT = fields.number(0, _UNITS_MAX)
_ENGINES = fields.record(model.Engines, {
    field.name: _COUNT for field in dataclasses.fields(model.Engines)})
_PLACEMENT = fields.record(model.Placement, {
    'start': fields.number(0, _UNITS_MAX - 1),
    'size': fields.number(1, _UNITS_MAX)})
_PLAIN = {
    'profile_id': fields.number(0, _ID_MAX),
    'name': fields.text,
    'slices': fields.number(1, _SLICES_MAX),
    'memory_mib': fields.number(0, _MEMORY_MAX),
    'max_instances': _COUNT,
    'multiprocessors': fields.number(0, 1 << 16),
    'copy_engines': _COUNT,
    'capabilities': fields.number(0, _ID_MAX)}
_PROFILE = fields.record(model.GpuInstanceProfile, {
    **_PLAIN, 'placements': fields.several(_PLACEMENT),
    'engines': _ENGINES})
_PCI_IDS = {'vendor_id': fields.pci_id, 'device_id': fields.pci_id,
            'class_code': fields.pci_id}


def _profiles(value, where):
    """Profiles that differ from each other."""
    profiles = fields.several(_PROFILE)(value, where)
    for key in ('profile_id', 'name'):
        if len({getattr(item, key) for item in profiles}) < len(profiles):
            raise fields.error(where, f'two have the same {key}',
                               'expected each once')
    return profiles


def ways(profiles: Iterable[model.GpuInstanceProfile]) -> int:
    """How many occupancies there can be at most, the empty one included."""
    placements = [place for profile in profiles
                  for place in profile.placements]
    end = max((place.start + place.size for place in placements), default=0)
    found = [1] * (end + 1)
    for unit in reversed(range(end)):
        found[unit] = found[unit + 1] + sum(
            found[unit + place.size] for place in placements
            if place.start == unit)
    return found[0]


def _code(value, where):
    code = fields.text(value, where)
    if not _CODE.fullmatch(code):
        raise fields.error(where, f'{code!r} is no code of an ailment',
                           'expected one such as XID_79 or REMAP_FAILED')
    return code


def _gpu(health, ecc, **values):
    return model.Gpu(**values), health, ecc


_GPU = fields.record(_gpu, {
    'address': fields.address, **_PCI_IDS,
    'subsystem_vendor_id': fields.optional(fields.pci_id),
    'subsystem_device_id': fields.optional(fields.pci_id),
    'model': fields.optional(fields.text),
    'architecture': fields.optional(fields.text),
    'uuid': fields.optional(fields.text),
    'serial': fields.optional(fields.text),
    'memory_mib': fields.optional(fields.number(0, _MEMORY_MAX)),
    'numa_node': fields.optional(fields.number(0, 1 << 16)),
    'driver': fields.optional(fields.text),
    'in_pci_sysfs': fields.truth,
    'visible_to_nvml': fields.truth,
    'sriov_totalvfs': fields.number(0, 1 << 16),
    'mig': fields.optional(fields.record(model.Mig, {
        'enabled': fields.truth, 'pending': fields.truth,
        'profiles': _profiles})),
    'nvlink_peers': fields.several(fields.address),
    'problems': fields.several(fields.text),
    'health': fields.optional(fields.several(_code))}, later={
    # Whether ECC is on, or will be after the next restart.
    'ecc': fields.truth})


def _numa(value, where):
    """A file's text: a number, -1 for none."""
    if value is None or value == '-1':
        return None
    if not isinstance(value, str) or not re.fullmatch(
            r'\d{1,4}', value, re.ASCII):
        raise fields.error(where, 'no number of a NUMA node',
                           'expected one as text, or null')
    return int(value)


def _pci_class(value, where):
    return fields.pci_id(value[:4] if isinstance(value, str) else value,
                         where)


def _pci(bus, numa_node_id, vendor_id, product_id, **values):
    return model.Gpu(
        address=bus, vendor_id=vendor_id, device_id=product_id,
        class_code=values['class'], numa_node=numa_node_id), None, None


_PCI = fields.record(_pci, {
    'vendor_id': fields.pci_id, 'product_id': fields.pci_id,
    'class': _pci_class, 'bus': fields.address, 'numa_node_id': _numa})


def _inventory(gpus, driver_version=None, nvml_problem=None, problems=(),
               confidential_computing=None):
    """The whole, of GPUs with their ailments and ECC modes."""
    if len(gpus) > fields.LIST_MAX:
        raise fields.error('gpus', f'more than {fields.LIST_MAX}',
                           'no machine has as many')
    addresses = [gpu.address for gpu, _ailments, _ecc in gpus]
    if len(set(addresses)) < len(addresses):
        raise fields.error('gpus', 'two have the same address',
                           'expected each GPU once')
    boards = {gpu.mig.profiles for gpu, _ailments, _ecc in gpus if gpu.mig}
    if sum(map(ways, boards)) > _WAYS_MAX:
        raise fields.error('gpus', 'too many ways to cut them',
                           f'expected {_WAYS_MAX} at most')
    return Inventory(
        tuple(sorted((gpu for gpu, _ailments, _ecc in gpus),
                     key=lambda gpu: gpu.address)),
        driver_version, nvml_problem, problems,
        {gpu.address: ailments for gpu, ailments, _ecc in gpus
         if ailments is not None},
        modes_module.Modes(
            {gpu.address: ecc for gpu, _ailments, ecc in gpus
             if ecc is not None},
            {gpu.address: gpu.mig.pending for gpu, _ailments, _ecc in gpus
             if gpu.mig is not None}, confidential_computing))


_INVENTORY = fields.record(_inventory, {
    'driver_version': fields.optional(fields.text),
    'nvml_problem': fields.optional(fields.text),
    'problems': fields.several(fields.text),
    'gpus': fields.several(_GPU)}, later={
    'confidential_computing': fields.choice('off', 'on', 'devtools')})
