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
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

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
    :raises NovaConfigRefused: if Nova could not distinguish the vGPUs.
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
            return exception.NovaConfigRefused(
                address=key, reason=f'its fixed_vgpus are {names}, but Nova '
                'supports one resource class per GPU. Use one type in '
                'fixed_vgpus, or set [gpu] nova_vfio_handles and start '
                'nova-compute as cyborg-gpu-nova-compute')
        return exception.NovaConfigRefused(
            address=next(item.gpu for item in assigned
                         if (item.vendor_id, item.product_id) == key),
            reason=f'GPUs {":".join(key)} have the fixed_vgpus {names}, which '
            'Nova cannot distinguish without Placement: enable [pci] '
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
