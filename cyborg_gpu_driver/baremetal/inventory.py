# SPDX-License-Identifier: Apache-2.0

"""The ramdisk's report about a node's GPUs: its schema and its names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.baremetal import modes as baremetal_modes
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health as health_module
from cyborg_gpu_driver.record import codec
from cyborg_gpu_driver.report.content import names

# The schema of the ramdisk's report about a node's GPUs.
#
# The report comes over the network from a program that is not trusted. It ends
# in Ironic's database and in computations of Ironic's conductor. So every
# value is bounded, and text contains only printable characters. Unknown keys
# are ignored, because a later release may report more.

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


def _line_schema(text):
    if not text.isprintable() or text.isspace():
        raise exception.InvalidValue(what='text', value=text,
                                     expected=f'expected {_LINE}')


FORMATS = {'line': _line_schema, 'pci-address': model.PciAddress.parse}


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


# What the ramdisk reports about a node's GPUs: plain JSON, made and read.
#
#     {"version": 1, "driver_version": "570.133.20", "nvml_problem": null,
#      "gpus": [{"address": "0000:1b:00.0", "device_id": "2330",
#                "mig": {"profiles": [...], ...}, "health": [], ...}]}
#
# The report describes the boards, not what is on them, because a restart of
# the machine removes instances. ``health`` has the codes of a GPU's
# conditions, and is null if the GPU could not be queried. The reader ignores
# unknown keys; known keys must be correct.

_WAYS_MAX = 40_000
"""Layouts of one of each kind of board, considering only overlaps. Known
boards have 5536 at most. A search for room may try all of them."""
_NO_MODES = baremetal_modes.Modes()
_NO_CLIQUES: Mapping[model.PciAddress, str] = {}
_BOARD = {'properties': {
    name: form for name, form in _GPU['properties'].items()
    if name not in ('ecc', 'nvlink_clique', 'health')}}
"""The part of :data:`_GPU` that has the fields of :class:`model.Gpu`."""


@dataclasses.dataclass(frozen=True)
class Inventory:
    """A node's GPUs, by address, without instances or vGPUs."""

    gpus: tuple[model.Gpu, ...] = ()
    driver_version: str | None = None
    """NVIDIA's driver in the ramdisk."""
    nvml_problem: str | None = None
    """Why NVML reported nothing; None if it did."""
    problems: tuple[str, ...] = ()
    """Parts of the machine that could not be read, for people."""
    conditions: Mapping[model.PciAddress, tuple[str, ...]] = (
        dataclasses.field(default_factory=dict))
    """Codes of the conditions of each GPU that was queried: ``XID_79``,
    ``REMAP_FAILED``; empty for a healthy GPU."""

    modes: baremetal_modes.Modes = _NO_MODES
    """Modes that outlive a tenant, of the GPUs that NVML could query."""
    cliques: Mapping[model.PciAddress, str] = (
        dataclasses.field(default_factory=dict))
    """NVLink cliques of the GPUs that are in one."""

    @property
    def clique(self) -> str | None:
        """The NVLink clique that all GPUs are in; None if they are not."""
        found = {self.cliques.get(gpu.address) for gpu in self.gpus}
        return found.pop() if len(found) == 1 else None

    @property
    def unhealthy(self) -> dict[model.PciAddress, tuple[str, ...]]:
        """The health conditions of each GPU that has some, for people."""
        return {address: tuple(health_module.Condition(code, 0, 0).text
                               for code in codes)
                for address, codes in self.conditions.items() if codes}

    @property
    def asked(self) -> bool:
        """Whether the health of every GPU is known."""
        return all(gpu.address in self.conditions for gpu in self.gpus)


def to_dict(host: model.Host,
            health: Mapping[model.PciAddress,
                            Iterable[health_module.Condition]],
            modes: baremetal_modes.Modes = _NO_MODES,
            cliques: Mapping[model.PciAddress, str] = _NO_CLIQUES
            ) -> dict[str, Any]:
    """Return what the ramdisk sends: values of JSON only.

    :param health: conditions of each GPU whose health could be queried,
        possibly none; a GPU that could not be queried is missing.
    :param modes: MIG modes come from the GPUs themselves.
    """
    return {'version': VERSION,
            'driver_version': _tidied(host.driver_version),
            'nvml_problem': _tidied(host.nvml_problem),
            'problems': _shaped(host.problems, _several(_TEXT)),
            'confidential_computing': modes.confidential_computing,
            'gpus': [{**_shaped(gpu, _BOARD),
                      'ecc': modes.ecc.get(gpu.address),
                      'nvlink_clique': cliques.get(gpu.address),
                      'health': _codes(health.get(gpu.address))}
                     for gpu in host.gpus]}


def parse(value: Any) -> Inventory:
    """Read what the ramdisk sent.

    :raises DocumentError: naming what is wrong and where.
    """
    place = schema.Place('ramdisk', 'inventory')
    schema.check(value, INVENTORY, place, FORMATS)
    where = place.below('gpus')
    gpus = {gpu.address: (gpu, item) for gpu, item in (
        (_gpu(item, where.below(number)), item)
        for number, item in enumerate(value['gpus']))}
    if len(gpus) < len(value['gpus']):
        raise where.error('two have the same address',
                          'expected each GPU only once')
    if sum(map(ways, {gpu.mig.profiles for gpu, _item in gpus.values()
                      if gpu.mig})) > _WAYS_MAX:
        raise where.error('too many ways to partition them',
                          f'expected at most {_WAYS_MAX}')
    known = {key: {address: item[key] for address, (_, item)
                   in gpus.items() if item[key] is not None}
             for key in ('health', 'ecc', 'nvlink_clique')}
    return Inventory(
        tuple(gpus[address][0] for address in sorted(gpus)),
        _tidied(value['driver_version']), _tidied(value['nvml_problem']),
        tuple(_shaped(value['problems'], _several(_TEXT))),
        {address: tuple(codes)
         for address, codes in known['health'].items()},
        baremetal_modes.Modes(
            known['ecc'],
            {address: gpu.mig.pending
             for address, (gpu, _item) in gpus.items() if gpu.mig},
            value['confidential_computing']),
        known['nvlink_clique'])


def _codes(conditions):
    return None if conditions is None else sorted(
        {item.code for item in conditions})


def _shaped(value: Any, form: schema.Schema) -> Any:
    """Return the part of a value that a schema names, as JSON.

    :param value: a dataclass with these fields, or JSON.
    """
    if value is None:
        return None
    if 'properties' in form:
        return {name: _shaped(
            value[name] if isinstance(value, Mapping)
            else getattr(value, name), below)
            for name, below in form['properties'].items()}
    if 'items' in form:
        found = [_shaped(item, form['items']) for item in value]
        return [item for item in found if item is not None][:LIST_MAX]
    if form.get('format') == 'line':
        return _tidied(value)
    return str(value) if form.get('format') == 'pci-address' else value


def _tidied(text: str | None) -> str | None:
    """Return a text in the form that the schema allows, truncated."""
    if text is None:
        return None
    plain = ''.join(letter if letter.isprintable() else '?'
                    for letter in ' '.join(text.split()))
    return plain[:TEXT_MAX] or None


def _gpu(item, place):
    gpu = codec.decode(model.Gpu, _shaped(item, _BOARD))
    profiles = gpu.mig.profiles if gpu.mig else ()
    for key in ('profile_id', 'name'):
        if len({getattr(profile, key) for profile in profiles}) < len(
                profiles):
            raise place.below('mig', 'profiles').error(
                f'two have the same {key}', 'expected each only once')
    return gpu


def ways(profiles: Iterable[model.GpuInstanceProfile]) -> int:
    """Return an upper limit of the occupancies, including the empty one."""
    placements = [place for profile in profiles
                  for place in profile.placements]
    end = max((place.start + place.size for place in placements), default=0)
    found = [1] * (end + 1)
    for unit in reversed(range(end)):
        found[unit] = found[unit + 1] + sum(
            found[unit + place.size] for place in placements
            if place.start == unit)
    return found[0]


# The names of Ironic's nodes, traits, deploy templates and steps.
#
# A node whose GPUs can take a layout has the layout's trait. The deploy
# template of that name applies the layout, and a flavor requires the trait.

KEY = 'nvidia_gpus'
"""The key of the ramdisk's report in Ironic's plugin data."""

APPLY_LAYOUT = 'apply_gpu_layout'
"""The deploy and service step."""

LAYOUT_KEY = 'cyborg_gpu_layout'
"""The key of a server's layout, in its metadata and in vendor data."""

HEALTHY = 'CUSTOM_GPU_HEALTHY'
"""The trait of a node whose GPUs were all healthy at its last inspection."""

_LAYOUT = 'CUSTOM_GPU_LAYOUT_'


def layout_trait(layout: str) -> str:
    """Return the trait, and deploy template, of a layout by its name.

    ``all-1g.10gb`` gives ``CUSTOM_GPU_LAYOUT_ALL_1G_10GB``.
    """
    return names.custom('GPU', 'LAYOUT', layout)


def is_layout_trait(trait: str) -> bool:
    """Whether a trait is the trait of a layout."""
    return trait.startswith(_LAYOUT)


def count_trait(count: int) -> str:
    """Return the trait of a node with this number of GPUs, of any kind."""
    return names.custom('GPU', 'COUNT', str(count))
