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

"""Which layouts a node's GPUs can have, and which one a step requests."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition.layout import devices as layout_devices
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import generate as layout_generate
from cyborg_gpu_driver.partition.layout import schema as layout_schema

_INLINE = 'inline'
_ONE_LAYOUT = {
    'type': 'object', 'minProperties': 1, 'maxProperties': 1,
    'description': 'the name of a layout, a list of items as in a layout '
                   'file, or {NAME: [...]}',
    'propertyNames': {'type': 'string', 'minLength': 1},
    'additionalProperties': layout_schema.ITEMS}


def known(gpus: Sequence[model.Gpu],
          files: Iterable[layout_file.LayoutFile] = ()
          ) -> dict[str, layout_file.Entry]:
    """Return layouts by name: all sensible ones, and the operator's.

    If two have one name, the operator's wins, or the later file's if several
    files have it.

    :param gpus: a node's GPUs, by address; only their profiles matter.
    :param files: the operator's layout files.
    """
    return {entry.name: entry for document in
            (layout_generate.generate(gpus), *files)
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
    except exception.LayoutError:
        return False
    return any(spoken_of)


def _speaks(entry, index, gpu):
    """Whether a layout selects a GPU.

    :raises LayoutError: if the GPU cannot be as the layout wants.
    """
    if gpu.visible_to_nvml:
        wanted = entry.for_gpu(index, gpu)
        return wanted is not None and not wanted.without_mig
    found = [section for section in entry.sections
             if section.devices.include(index, gpu)]
    if len(found) > 1 or any(section.mig_enabled and not
                             section.devices.boards for section in found):
        raise layout_schema.place(
            entry.source, f'entry {entry.name}, GPU {index}').error(
            'NVML does not list the GPU', 'give its board in a device-filter: '
            f'"{layout_devices.board(gpu)}"')
    return bool(found)


def applicable(gpus: Sequence[model.Gpu],
               entries: Mapping[str, layout_file.Entry]
               ) -> tuple[str, ...]:
    """Return the names of the layouts that suit, in their order."""
    return tuple(name for name, entry in entries.items()
                 if suits(gpus, entry))


def entry_of(value: Any, gpus: Sequence[model.Gpu] = (),
             files: Iterable[layout_file.LayoutFile] = (),
             source: str = 'layout') -> layout_file.Entry:
    """Return the layout that a step's argument means.

    :param value: a layout's name; the items of one, as in a layout file; or
        ``{name: items}``.
    :param gpus: the GPUs for which names of generated layouts are resolved.
    :param source: of the value, for error messages.
    :raises LayoutError: with what would be correct.
    """
    place = layout_schema.place(source)
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
    layout_schema.check(value, _ONE_LAYOUT, place)
    (name, items), = value.items()
    return layout_file.Entry.parse(name, items, place.below(name))
