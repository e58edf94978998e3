# SPDX-License-Identifier: Apache-2.0

"""What Ironic's node says of its GPUs, and the layouts that they can have."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import inventory as baremetal_inventory
from cyborg_gpu_driver.baremetal import modes
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import state
from cyborg_gpu_driver.partition.layout import yaml
from cyborg_gpu_driver.report.content import names

# Which layouts a node's GPUs can have, and which one a step requests.

_INLINE = 'inline'
_ONE_LAYOUT = {
    'type': 'object', 'minProperties': 1, 'maxProperties': 1,
    'description': 'the name of a layout, a list of items as in a layout '
                   'file, or {NAME: [...]}',
    'propertyNames': {'type': 'string', 'minLength': 1},
    'additionalProperties': yaml.ITEMS}


def known(gpus: Sequence[model.Gpu],
          files: Iterable[layout_file.LayoutFile] = ()
          ) -> dict[str, layout_file.Entry]:
    """Return layouts by name: all sensible ones, and the operator's.

    If two have one name, the operator's wins, or the later file's if several
    files have it.

    :param gpus: a node's GPUs, by address; only their profiles matter.
    """
    return {entry.name: entry for document in
            (state.generate(gpus), *files)
            for entry in document.entries}


def suits(gpus: Sequence[model.Gpu], entry: layout_file.Entry) -> bool:
    """Whether GPUs can take a layout.

    It must select at least one of them. What is on them now does not
    matter. A GPU that NVML did not see has no known profiles. An item for
    such a GPU counts as correct if it names the GPU's board in a
    device-filter, or turns MIG mode off.
    """
    if any(index >= len(gpus) for section in entry.sections
           for index in section.devices.indices or ()):
        return False
    try:
        spoken_of = [_speaks(entry, index, gpu)
                     for index, gpu in enumerate(gpus)]
    except exception.DocumentError:
        return False
    return any(spoken_of)


def _speaks(entry: layout_file.Entry, index: int, gpu: model.Gpu) -> bool:
    """Whether a layout selects a GPU.

    :raises DocumentError: if the GPU cannot be as the layout wants.
    """
    if gpu.visible_to_nvml:
        wanted = entry.for_gpu(index, gpu)
        return wanted is not None and not wanted.without_mig
    found = [section for section in entry.sections
             if section.devices.include(index, gpu)]
    if len(found) > 1 or any(section.mig_enabled and not
                             section.devices.boards for section in found):
        raise yaml.place_in(
            entry.source, f'entry {entry.name}, GPU {index}').error(
            'NVML does not list the GPU', 'give its board in a device-filter: '
            f'"{layout_file.board(gpu)}"')
    return bool(found)


def entry_of(value: Any, gpus: Sequence[model.Gpu] = (),
             files: Iterable[layout_file.LayoutFile] = (),
             source: str = 'layout') -> layout_file.Entry:
    """Return the layout that a step's argument means.

    :param value: a layout's name; the items of one, as in a layout file; or
        ``{name: items}``.
    :param gpus: the GPUs for which names of generated layouts are resolved.
    :raises DocumentError: with what would be correct.
    """
    place = yaml.place_in(source)
    if isinstance(value, str):
        files = tuple(files)
        for document in files:
            if value in document.unreadable:
                # Not a generated layout of the same name.
                return document.entry(value)
        entries = known(gpus, files)
        if value not in entries:
            raise place.error(f'no layout {value!r}', 'there are '
                              + ', '.join(entries))
        return entries[value]
    if isinstance(value, list):
        value = {_INLINE: value}
    yaml.check(value, _ONE_LAYOUT, place)
    (name, items), = value.items()
    return layout_file.Entry.parse(name, items, place.below(name))


# GPU facts on Ironic's node: traits, properties, resource class.
#
# ============================= ==========================================
# trait                         meaning
# ============================= ==========================================
# CUSTOM_NVIDIA_2330            PCI device id of a GPU
# CUSTOM_GPU_MODEL_...          NVML's name, without a leading NVIDIA
# CUSTOM_GPU_ARCH_HOPPER        architecture
# CUSTOM_GPU_MEMORY_80GB        memory of a GPU, as people write it
# CUSTOM_GPU_COUNT_8            number of GPUs of the node, of any kind
# CUSTOM_GPU_HEALTHY            all GPUs answered and are healthy
# CUSTOM_GPU_UNHEALTHY_XID_79   a health condition of a GPU
# CUSTOM_NVLINK_CLIQUE_...      all GPUs are in this NVLink clique
# CUSTOM_GPU_LAYOUT_...         the GPUs can take the template's layout
# ============================= ==========================================
#
# The property :data:`PROPERTY` lists the traits that an inspection wrote. The
# next inspection removes those that are no longer true, and no others: a trait
# that the operator set is kept, whatever its name.

TRAITS_MAX = 50
"""Ironic's limit on a node's traits (MAX_TRAITS_PER_NODE)."""
RESOURCE_CLASS_MAX = 80
"""Ironic's limit on a node's resource class (schema of its API)."""
PROPERTY = 'nvidia_gpus'
"""A key of the node's properties."""
TRAITS = 'traits'
"""Below :data:`PROPERTY`: the traits that the inspection wrote."""


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits that a node is to have."""

    traits: tuple[str, ...]
    """All of them, sorted."""
    written: tuple[str, ...] = ()
    """Those that the inspection writes, sorted."""
    left_out: tuple[str, ...] = ()
    """Those for which there was no room."""
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Why a deploy template's layout cannot be used, by its name."""


def written(properties: Mapping[str, Any], current: Iterable[str]
            ) -> frozenset[str]:
    """Return the traits of a node that its last inspection wrote."""
    summary = properties.get(PROPERTY)
    if not (isinstance(summary, Mapping)
            and isinstance(summary.get(TRAITS), list)):
        return frozenset()
    return frozenset(current).intersection(map(str, summary[TRAITS]))


def traits(current: Iterable[str], inventory: baremetal_inventory.Inventory,
           written: Collection[str] = (),
           files: Iterable[layout_file.LayoutFile] = (),
           templates: Mapping[str, Any] | None = None) -> Traits:
    """Return the traits of a node after its inspection.

    A node with an unhealthy GPU has no traits of layouts, so that no server
    that asks for a layout is deployed on it. The node remains unhealthy
    until all of its GPUs have been queried again.

    :param written: those of them that the last inspection wrote. All others
        are the operator's, except those that name a deploy template, and
        :data:`.names.HEALTHY` once the GPUs have answered.
    :param templates: layouts of deploy templates (a step's argument) by the
        template's name, which is a trait.
    """
    templates = templates or {}
    current = set(current)
    ours = current.intersection([*written, *templates])
    unhealthy = _unhealthy(ours, inventory)
    if unhealthy or inventory.asked:
        ours |= current & {baremetal_inventory.HEALTHY}
    kept = current - ours
    refused: dict[str, str] = {}
    layouts = () if unhealthy else _layouts(
        inventory.gpus, files, templates, refused)
    healthy = ([baremetal_inventory.HEALTHY] if inventory.gpus
               and inventory.asked and not unhealthy else [])
    wanted = [trait for trait in dict.fromkeys(
        (*healthy, *unhealthy, *_facts(inventory), *layouts))
        if trait not in kept]
    room = max(0, TRAITS_MAX - len(kept))
    return Traits(tuple(sorted({*kept, *wanted[:room]})),
                  tuple(sorted(wanted[:room])), tuple(wanted[room:]), refused)


def _unhealthy(ours: Iterable[str], inventory: baremetal_inventory.Inventory
               ) -> list[str]:
    """Return traits of the conditions of the GPUs.

    If GPUs could not be queried, the node keeps its earlier ones.
    """
    found = {health.TRAIT + code for codes in inventory.conditions.values()
             for code in codes}
    if not inventory.asked:
        found |= {trait for trait in ours if trait.startswith(health.TRAIT)}
    return sorted(found)


def _facts(inventory: baremetal_inventory.Inventory) -> Iterator[str]:
    if inventory.gpus:
        yield baremetal_inventory.count_trait(len(inventory.gpus))
    for gpu in inventory.gpus:
        yield from names.traits_of_board(gpu)
    if inventory.clique is not None:
        # It has the whole UUID of the cluster: no source says that a part of
        # the UUID distinguishes two racks.
        yield names.custom('NVLINK', 'CLIQUE', inventory.clique)


def _layouts(gpus: Sequence[model.Gpu],
             files: Iterable[layout_file.LayoutFile],
             templates: Mapping[str, Any], refused: dict[str, str]
             ) -> Iterator[str]:
    """Yield the traits of the deploy templates whose layout suits."""
    files = tuple(files)
    for template, value in sorted(templates.items()):
        try:
            if suits(gpus, entry_of(value, gpus, files)):
                yield template
        except exception.DocumentError as error:
            refused[template] = str(error)


def summary(inventory: baremetal_inventory.Inventory) -> dict[str, Any]:
    """Return the node's property :data:`PROPERTY`, for people; JSON.

    ``mig`` of a board says whether the board supports MIG, or is null if that
    is not known.
    """
    return {
        'count': len(inventory.gpus),
        'boards': [{
            'model': gpu.model, 'architecture': gpu.architecture,
            'device_id': gpu.device_id, 'memory_mib': gpu.memory_mib,
            'mig': gpu.mig is not None if gpu.visible_to_nvml else None,
            'count': count,
        } for gpu, count in _kinds(inventory.gpus)],
        'driver_version': inventory.driver_version,
        'nvml_problem': inventory.nvml_problem,
        modes.KEY: inventory.modes.to_dict(),
        'nvlink_clique': inventory.clique,
        'unhealthy': {str(address): list(reasons) for address, reasons
                      in inventory.unhealthy.items()},
        'problems': [*inventory.problems, *(
            f'GPU {gpu.address}: {problem}' for gpu in inventory.gpus
            for problem in gpu.problems)],
    }


def resource_class(inventory: baremetal_inventory.Inventory) -> str | None:
    """Return a resource class for nodes with such GPUs; None without any.

    ``baremetal-gpu-h100-80gb-hbm3-x8``, which Placement knows as
    ``CUSTOM_BAREMETAL_GPU_H100_80GB_HBM3_X8``. A GPU without a known name
    appears with its PCI device id.
    """
    if not inventory.gpus:
        return None
    words = _words(inventory.gpus)
    name = '-'.join(('baremetal-gpu', *(
        f'{word}-x{words[word]}' for word in sorted(words))))
    if len(name) > RESOURCE_CLASS_MAX:
        digest = names.digest(name)
        name = name[:RESOURCE_CLASS_MAX - len(digest) - 1].rstrip('-')
        name = f'{name}-{digest}'
    return name


def _words(gpus: Collection) -> collections.Counter[str]:
    """Count the GPUs of each model, named in lower case, digits and -."""
    return collections.Counter(
        names.token(names.without_vendor(
            gpu.model or f'{gpu.vendor_id}-{gpu.device_id}')).lower()
        .replace('_', '-') for gpu in gpus)


def _kinds(gpus: Iterable[model.Gpu]) -> list[tuple[model.Gpu, int]]:
    """Return one GPU of each kind and their number, in their order."""
    found: dict[tuple, list] = collections.defaultdict(list)
    for gpu in gpus:
        found[gpu.device_id, gpu.model, gpu.memory_mib,
              gpu.visible_to_nvml, gpu.mig is not None].append(gpu)
    return [(alike[0], len(alike)) for alike in found.values()]
