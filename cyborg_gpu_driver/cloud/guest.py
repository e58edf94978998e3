# SPDX-License-Identifier: Apache-2.0

"""What the guest of whole GPUs needs so that it sees all of them. Pure.

The firmware of a guest maps the memory regions (BARs) of its GPUs into the
guest's address space. GPUs for which there is no room are there, but their
driver fails: with QEMU's default of 40 bits, a guest sees 3, 2, 1 of four
H100 NVL if it has 256, 512, 768 GiB of memory (Rackspace, "Solving GPU
Passthrough Memory Addressing in OpenStack", December 2025). vGPUs and slices
have small regions.

Nova 34 takes the machine type and the firmware from the image alone
(``hw_machine_type``, ``hw_firmware_type``), and libvirt adds the PCIe root
ports that the devices need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence

from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import request
from cyborg_gpu_driver.cloud import resources
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import vgpu_name

MODE, BITS = 'hw:maxphysaddr_mode', 'hw:maxphysaddr_bits'
MIB = 1 << 20
_GIB = 1 << 30
_DEFAULT_BITS = 40
"""QEMU's default. edk2's firmware trusts the processor from 41 bits on
(``PlatformAddressWidthFromCpuid`` in OvmfPkg/.../MemDetect.c)."""
_MAX_BITS = 46
"""The most that the firmware uses (likewise)."""
_CLASSIC = 32 * _GIB
"""The window for 64-bit BARs if the firmware does not trust the processor
(``PcdPciMmio64Size`` in OvmfPkgX64.dsc)."""
_KINDS = {mode.value.upper() for mode in policy.WHOLE}


def whole_gpus(groups: Iterable[request.Group], nodes: Iterable[facts.Node]
               ) -> tuple[int, int]:
    """Return how many whole GPUs a server gets, and the largest BAR in bytes.

    BAR 1 has the size of the memory, rounded up to a power of two
    (``nvidia-smi -q`` of data-center boards; the files of
    cyborg_gpu_driver/simulator/models name the listings).

    :param groups: each is served by one provider.
    """
    nodes = [node for node in nodes if node.fact('KIND') in _KINDS]
    gpus = memory = 0
    for group in groups:
        able = [node for node in nodes
                if node.suits(group.required, group.forbidden)
                and group.resources.keys() & node.inventories.keys()]
        gpus += max((vgpu_name.group_size(node.label) or 1
                     for node in able), default=0) * sum(
                         group.resources.values())
        memory = max([memory, *(
            int((node.fact('MEMORY') or '').removesuffix('GB') or 0) * _GIB
            for node in able)])
    return gpus, 1 << (memory - 1).bit_length() if memory else 0


def flavor_specs(gpus: int, bar: int, ram: int) -> dict[str, str]:
    """Return the extra specs with which a guest sees all of its GPUs.

    The firmware places the BARs into the upper eighth of the address space
    (``PlatformDynamicMmioWindow``). Each GPU is behind a PCIe port of its own,
    whose window is aligned to the largest BAR and also has a smaller one, so
    it takes twice the largest BAR.

    openstacksdk sets them with a microversion below 2.86, from which on
    nova-api 34 refuses them: its validators do not have them.

    :param bar: size of the largest BAR of a GPU in bytes.
    :param ram: memory of the guest in bytes.
    :returns: an empty mapping if the default is sufficient.
    """
    needed = 2 * gpus * bar
    if needed <= _CLASSIC:
        return {}
    bits = max(_DEFAULT_BITS + 1, 3 + (needed - 1).bit_length())
    # The memory begins at 0, and has a gap of at most 2 GiB below 4 GiB.
    while ram + 2 * _GIB + _CLASSIC > 7 << bits - 3:
        bits += 1
    return {MODE: 'emulate', BITS: str(min(bits, _MAX_BITS))}


def default_room(bar: int, ram: int) -> int:
    """Return how many GPUs a guest with QEMU's default sees at most."""
    return max(0, (1 << _DEFAULT_BITS) - ram) // (2 * bar)


def completed(items: Sequence[resources.Item], nodes: Iterable[facts.Node]
              ) -> tuple[resources.Item, ...]:
    """Return the items of a definition, with the extra specs of their guests.

    A flavor that has one of the two extra specs is not changed.
    """
    nodes = tuple(nodes)
    groups = {
        item.name: request.make(None, item.name, [
            dict(group) for group in item.groups]).granular
        for item in items if isinstance(item, resources.DeviceProfile)}

    def complete(item: resources.Item) -> resources.Item:
        if not isinstance(item, resources.Flavor) or {
                MODE, BITS} & dict(item.extra_specs).keys():
            return item
        specs = flavor_specs(*whole_gpus(
            groups.get(item.profile or '', ()), nodes), item.ram * MIB)
        return dataclasses.replace(item, extra_specs=tuple(sorted(
            {*item.extra_specs, *specs.items()})))
    return tuple(map(complete, items))
