# SPDX-License-Identifier: Apache-2.0

"""Nova's ``[pci]`` lines for virtual functions that Nova hands out: pure.

The lines follow what Nova 34 accepts (nova/conf/pci.py, nova/pci/devspec.py)
and refuses (nova/compute/pci_placement_translator.py): all functions of one
GPU that Nova reports to Placement have the same resource class and the same
traits; without Placement, an alias asks only for vendor and product.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import string
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_utils import strutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model

LIVE_MIGRATABLE = 'live_migratable'
"""A key of ``device_spec`` and ``alias``. Without the key,
Nova does not live-migrate a server that has the function."""


POST_COPY = 'live_migration_permit_post_copy'
"""An option of ``[libvirt]``. QEMU refuses post-copy with VFIO devices, so
Nova's page on vGPUs wants it to be False (Live migration in
doc/source/admin/virtual-gpu.rst of Nova)."""


@dataclasses.dataclass(frozen=True)
class Assigned:
    """A virtual function and the vGPU that it carries or will carry."""

    function: model.PciAddress
    gpu: model.PciAddress
    vendor_id: str
    product_id: str
    """Product ID of the GPU; its virtual functions have the same."""
    type_name: str
    """``L40S-12Q``, which names the alias."""
    resource_class: str
    traits: tuple[str, ...] = ()
    """The traits for Placement, without those of Nova."""
    live_migratable: bool = False
    """Whether the GPU's vGPUs can be live-migrated, by NVML."""


@dataclasses.dataclass(frozen=True)
class PciConfig:
    """What nova.conf needs to say."""

    in_placement: bool
    assigned: tuple[Assigned, ...]
    device_spec: tuple[dict[str, str], ...]
    """For nova-compute of this host, one for each of ``assigned``."""
    alias: tuple[dict[str, str], ...]
    """For nova-api and nova-compute of every host."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the options as in nova.conf."""
        found: dict[str, dict[str, Any]] = {'pci': {
            'device_spec': list(self.device_spec),
            'alias': list(self.alias)}}
        if self.in_placement:
            found['pci']['report_in_placement'] = True
            found['filter_scheduler'] = {'pci_in_placement': True}
        if self._migrates:
            found['libvirt'] = {POST_COPY: False}
        return found

    def dump(self) -> str:
        """Return the lines of nova.conf."""
        lines = list(_hints(self))
        lines.append('[pci]')
        for index, (spec, item) in enumerate(
                zip(self.device_spec, self.assigned, strict=True)):
            if not index or item.gpu != self.assigned[index - 1].gpu:
                lines.append(f'# GPU {item.gpu}')
            lines.append(f'device_spec = {json.dumps(spec)}')
        lines.append('# On every host of nova-api and nova-compute')
        lines += [f'alias = {json.dumps(alias)}' for alias in self.alias]
        if self._migrates:
            lines += ['[libvirt]', f'{POST_COPY} = False']
        return '\n'.join((*lines, ''))

    @property
    def _migrates(self) -> bool:
        return any(item.live_migratable for item in self.assigned)


def build(assigned: Iterable[Assigned], in_placement: bool = True
          ) -> PciConfig:
    """Return the lines that hand out ``assigned``, sorted by address.

    :param in_placement: whether Nova counts PCI devices in Placement.
    :raises InvalidConfiguration: if Nova could not distinguish the vGPUs.
    """
    found = tuple(sorted(assigned, key=lambda item: item.function))
    reason = _refusal(found, in_placement)
    if reason is not None:
        raise reason
    fixed = {item.type_name for item in found if not item.live_migratable}
    aliases = {item.type_name: _alias(item, in_placement, fixed)
               for item in found}
    return PciConfig(
        in_placement=in_placement, assigned=found,
        device_spec=tuple(_device_spec(item, in_placement)
                          for item in found),
        alias=tuple(aliases[name] for name in sorted(aliases)))


def refusal(assigned: Sequence[Assigned], in_placement: bool) -> str:
    """Return why Nova could not distinguish the vGPUs; ``''`` if it can."""
    error = _refusal(assigned, in_placement)
    return '' if error is None else str(error)


def _refusal(assigned, in_placement):
    for key, types in _types(
            assigned, lambda item: item.gpu if in_placement
            else (item.vendor_id, item.product_id)).items():
        if len(types) < 2:
            continue
        names = ', '.join(sorted(types))
        if in_placement:
            return exception.InvalidConfiguration(
                f'GPU {key}: its fixed_vgpus are {names}, but Nova '
                'supports one resource class per GPU. Use one type in '
                'fixed_vgpus, or name them in vgpu_types instead and start '
                'nova-compute as cyborg-gpu-nova-compute')
        gpu = next(item.gpu for item in assigned
                   if (item.vendor_id, item.product_id) == key)
        return exception.InvalidConfiguration(
            f"GPU {gpu}: GPUs {':'.join(key)} have the fixed_vgpus {names}, "
            'which Nova cannot distinguish without Placement: enable [pci] '
            'report_in_placement and [filter_scheduler] pci_in_placement')
    return None


def _types(assigned, key):
    found = collections.defaultdict(set)
    for item in assigned:
        found[key(item)].add(item.type_name)
    return found


def _device_spec(item, in_placement):
    # managed: libvirt must not take the function from NVIDIA's driver.
    spec = {'address': str(item.function), 'managed': 'no'}
    if item.live_migratable:
        spec[LIVE_MIGRATABLE] = 'yes'
    if in_placement:
        spec['resource_class'] = item.resource_class
        spec['traits'] = ','.join(item.traits)
    return spec


def _alias(item, in_placement, fixed):
    """Return the alias of a vGPU type.

    :param fixed: types of the GPUs whose vGPUs cannot migrate.
    """
    alias = {'name': item.type_name, 'device_type': 'type-VF'}
    # With this key, an alias asks for migratable functions and no others
    # (_filter_pools_for_live_migratable_devices in nova/pci/stats.py).
    if item.type_name not in fixed:
        alias[LIVE_MIGRATABLE] = 'yes'
    if in_placement:
        return {**alias, 'resource_class': item.resource_class}
    return {**alias, 'vendor_id': item.vendor_id,
            'product_id': item.product_id}


def _hints(config):
    yield '# For nova.conf. Also needed, in addition to these lines:'
    if config.in_placement:
        yield '#   nova-compute, every host: [pci] report_in_placement = true'
        yield '#   then nova-scheduler, nova-conductor and nova-api:'
        yield '#     [filter_scheduler] pci_in_placement = true'
    else:
        yield '#   nova-scheduler: PciPassthroughFilter among'
        yield '#     [filter_scheduler] enabled_filters'


# Which PCI functions a ``[pci] device_spec`` of Nova matches: pure.
#
# It matches as nova/pci/devspec.py of Nova 34 does; a test compares the two.
# This is a separate implementation, because Nova need not be installed where
# cyborg-agent runs.

_ANY = '*'
_PARTS = ('domain', 'bus', 'slot', 'function')
_LIMITS = {'domain': 0xffff, 'bus': 0xff, 'slot': 0x1f, 'function': 0x7}
_HEX = frozenset(string.hexdigits)
_EXPECTED = ('expected a JSON object, or a list of them, with vendor_id, '
             'product_id and address as the help of [pci] device_spec '
             'describes')


@dataclasses.dataclass(frozen=True)
class Function:
    """A PCI function as Nova gets it from libvirt."""

    address: model.PciAddress
    vendor_id: str
    product_id: str
    parent: model.PciAddress | None = None
    """The GPU, if this is a virtual function."""


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    """One entry of ``[pci] device_spec``."""

    text: str
    """The entry as written in nova.conf."""
    tags: Mapping[str, Any]
    """All other keys of the entry."""
    vendor_id: str = _ANY
    product_id: str = _ANY
    address: Mapping[str, str | re.Pattern[str]] | None = None
    """A pattern for each part of the address. None matches no function: the
    entry names a network interface."""

    @property
    def managed(self) -> bool:
        """Whether libvirt rebinds the function; Nova's default is yes."""
        return strutils.bool_from_string(self.tags.get('managed', True))

    @property
    def live_migratable(self) -> bool:
        """Whether Nova may live-migrate a server that has the function."""
        return strutils.bool_from_string(
            self.tags.get('live_migratable', False))

    def matches(self, function: Function) -> bool:
        """Whether this entry lets Nova give ``function`` to servers."""
        if (self.address is None
                or self.vendor_id not in (_ANY, function.vendor_id)
                or self.product_id not in (_ANY, function.product_id)):
            return False
        # An entry that names a GPU covers its virtual functions too.
        by_parent = (function.parent is not None and self._is_plain
                     and self._matches(function.parent))
        return by_parent or self._matches(function.address)

    @property
    def _is_plain(self):
        texts = [value if isinstance(value, str) else value.pattern
                 for value in (self.address or {}).values()]
        return all(text and set(text) <= _HEX for text in texts)

    def _matches(self, address):
        patterns = self.address
        return patterns is not None and all(
            _matches_part(patterns[part], value) for part, value
            in zip(_PARTS, _parts(address), strict=True))


def parse_device_spec(texts: Sequence[str]) -> tuple[DeviceSpec, ...]:
    """Return the entries of the option.

    :raises InvalidValue: if Nova would refuse an entry; names that entry.
    """
    return tuple(spec for text in texts for spec in _parse(text))


def _parse(text):
    try:
        found = json.loads(text)
        entries = [found] if isinstance(found, dict) else found
        if not isinstance(entries, list):
            raise ValueError('neither an object nor a list')
        for entry in entries:
            yield _spec(text, dict(entry))
    except (ValueError, TypeError, AttributeError, re.error) as error:
        raise exception.InvalidValue(
            what='[pci] device_spec', value=text,
            expected=f'{_EXPECTED}: {error}') from error


def _spec(text, entry):
    vendor, product = (
        _hex(entry.pop(name, _ANY), 0xffff)
        for name in ('vendor_id', 'product_id'))
    interface = entry.pop('devname', None)
    address = entry.pop('address', None)
    return DeviceSpec(
        text=text, tags=entry, vendor_id=vendor, product_id=product,
        address=None if interface else _address(address))


def _address(value):
    """Return the pattern of each part, from a glob or regular expressions."""
    if isinstance(value, dict):
        return {part: re.compile(value.get(part, '.*')) for part in _PARTS}
    rest, _, function = (value or '').partition('.')
    fields = rest.split(':') if rest else []
    fields = [_ANY] * (3 - len(fields)) + fields
    return {part: _hex(field.strip() or _ANY, _LIMITS[part])
            for part, field in zip(_PARTS, (*fields, function),
                                   strict=True)}


def _hex(value, limit):
    value = value.strip()
    if value == _ANY:
        return value
    number = int(value, 16)
    if number > limit:
        raise ValueError(f'{value} is more than {limit:x}')
    return f'{number:0{len(f"{limit:x}")}x}'


def _parts(address):
    return (f'{address.domain:04x}', f'{address.bus:02x}',
            f'{address.device:02x}', f'{address.function:x}')


def _matches_part(pattern, value):
    if isinstance(pattern, str):
        return pattern in (_ANY, value)
    return pattern.match(value) is not None
