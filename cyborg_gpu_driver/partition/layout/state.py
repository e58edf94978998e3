# SPDX-License-Identifier: Apache-2.0

"""The current state of GPUs, in the terms of layout files."""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import geometry
from cyborg_gpu_driver.partition import names
from cyborg_gpu_driver.partition import plan
from cyborg_gpu_driver.partition import spec
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.partition.layout import yaml

_NOBODY: Mapping[model.Placement, str] = {}


def mode_differences(gpu: model.Gpu, wanted: target.Wanted
                     ) -> tuple[str, ...]:
    """Describe how a GPU's MIG mode differs from what is wanted; empty if
    it does not.
    """
    there = gpu.mig is not None and gpu.mig.enabled
    pending = gpu.mig is not None and gpu.mig.pending
    if there != wanted.enabled:
        text = f'MIG mode is {_word(there)} instead of {_word(wanted.enabled)}'
        if pending != there:
            text += f', but {_word(pending)} is pending'
        return (text,)
    if pending != wanted.enabled:
        return (f'MIG mode is {_word(there)}, but {_word(pending)} is '
                'pending',)
    return ()


def differences(gpu: model.Gpu, wanted: target.Wanted,
                in_use: Mapping[model.Placement, str] = _NOBODY
                ) -> tuple[str, ...]:
    """Describe how a GPU differs from what is wanted; empty if it does not.

    A GPU is as wanted if and only if there is nothing to change. So a GPU
    to which a layout was applied always passes.
    """
    try:
        if plan.plan(gpu, wanted, in_use).is_empty:
            return ()
    except exception.ChangeRefused:
        pass
    found = [*mode_differences(gpu, wanted)]
    there = _counts(gpu)
    for name in dict.fromkeys([*wanted.counts, *there]):
        expected = wanted.counts.get(name, 0)
        if there[name] != expected:
            found.append(f'{name}: {there[name]} instead of {expected}')
    found += [
        f'{spec.profile_name(mig, item.profile_id)} at {item.placement} has '
        'no compute instance'
        for mig, item in _instances(gpu)
        if not item.compute and item.placement not in in_use]
    return tuple(found)


def export(gpus: Sequence[model.Gpu], name: str = 'current',
           source: str = 'this host', left_out: Collection[int] = ()
           ) -> layout_file.LayoutFile:
    """Return the current state of all GPUs, as a layout file of one entry.

    A GPU instance without compute instances counts as one whole MIG device,
    because a layout file cannot describe it.

    :param gpus: the host's GPUs, by address.
    :param left_out: indices of GPUs that the file does not include.
    """
    alike = collections.defaultdict(list)
    for index, gpu in enumerate(gpus):
        if index in left_out:
            continue
        enabled = gpu.mig is not None and gpu.mig.enabled
        alike[enabled, tuple(_whole_counts(gpu))].append(index)
    sections = tuple(layout_file.Section(
        layout_file.Devices(
            None if len(indices) == len(gpus) else tuple(indices)),
        enabled, dict(counts))
        for (enabled, counts), indices in alike.items())
    return layout_file.LayoutFile(
        (layout_file.Entry(source, name, sections),), source)


def check_described(gpus: Sequence[model.Gpu], file: layout_file.LayoutFile,
                    in_use: Mapping[int, Mapping[model.Placement, str]]
                    ) -> None:
    """Check that an exported layout is in effect on the GPUs it came from.

    A layout file describes neither a GPU instance without compute instances
    nor a mode change that is pending.

    :param in_use: by index, as for :func:`differences`.
    :raises DocumentError: naming what the file cannot describe.
    """
    for index, wanted in file.entry().for_host(gpus).items():
        found = differences(gpus[index], wanted, in_use.get(index, _NOBODY))
        if found:
            raise yaml.place_in(file.source, f'GPU {index}').error(
                'a layout file cannot describe it: ' + '; '.join(found),
                'apply a layout to it, or complete or undo the change')


def _instances(gpu: model.Gpu
               ) -> list[tuple[model.Mig, model.GpuInstance]]:
    """Return each GPU instance with the MIG state that lists its profile."""
    return [] if gpu.mig is None else [
        (gpu.mig, item) for item in gpu.mig.instances]


def _counts(gpu: model.Gpu) -> collections.Counter[str]:
    """Return the number of MIG devices by name."""
    counts: collections.Counter[str] = collections.Counter()
    for mig, item in _instances(gpu):
        profile = mig.profile_by_id(item.profile_id)
        for compute in item.compute:
            counts[target.device_name(profile, compute.size) if profile
                   else spec.profile_name(mig, item.profile_id)] += 1
    return counts


def _whole_counts(gpu: model.Gpu) -> list[tuple[str, int]]:
    counts = _counts(gpu)
    for mig, item in _instances(gpu):
        if not item.compute:
            counts[spec.profile_name(mig, item.profile_id)] += 1
    return sorted(counts.items())


def _word(enabled: bool) -> str:
    return 'on' if enabled else 'off'


# Generate a layout file of all sensible layouts for a host's GPUs.

_Counts = tuple[tuple[str, int], ...]
_Content = tuple[bool, _Counts]
"""MIG mode, and the number of instances of each profile by name."""
_DISABLED: _Content = (False, ())
_ENABLED: _Content = (True, ())


def generate(gpus: Iterable[model.Gpu], source: str = 'this host'
             ) -> layout_file.LayoutFile:
    """Return all sensible layouts for the GPUs found.

    These are: MIG off; MIG on and empty; each profile as often as it fits;
    and as many sizes of plain profile together as fit (``all-balanced``). An
    entry covers each kind of board that it suits. If there are several kinds,
    it has sections with a device-filter.
    """
    boards: dict[str, model.Mig | None] = {}
    for gpu in gpus:
        # If a GPU cannot be read, another GPU of its board may know more.
        board = layout_file.board(gpu)
        boards[board] = boards.get(board) or gpu.mig
    entries: dict[str, dict[str, _Content]] = collections.defaultdict(dict)
    for board, mig in sorted(boards.items()):
        entries['all-disabled'][board] = _DISABLED
        if mig is None:
            continue
        entries['all-enabled'][board] = _ENABLED
        for name, counts in _layouts(mig):
            entries[name][board] = (True, counts)
    return layout_file.LayoutFile(tuple(
        layout_file.Entry(source, name, _sections(alike, len(boards)))
        for name, alike in entries.items()), source)


def _sections(by_board: Mapping[str, _Content], board_count: int
              ) -> tuple[layout_file.Section, ...]:
    """Return one section for all boards with the same content."""
    alike = collections.defaultdict(list)
    for board, content in by_board.items():
        alike[content].append(board)
    return tuple(layout_file.Section(
        layout_file.Devices(
            boards=() if len(boards) == board_count else tuple(boards)),
        enabled, dict(counts))
        for (enabled, counts), boards in alike.items())


def _layouts(mig: model.Mig) -> Iterator[tuple[str, _Counts]]:
    """Yield (entry name, ((profile name, count), ...)) for one board."""
    grid = geometry.Geometry(mig.profiles)
    for profile in mig.profiles:
        count = grid.creatable(geometry.EMPTY, profile)
        if count:
            # A label has no plus.
            yield ('all-' + profile.name.replace('+', '.'),
                   ((profile.name, count),))
    mixed = _balanced(grid, _plain(mig.profiles))
    if len(mixed) > 1:
        yield 'all-balanced', mixed


def _balanced(grid: geometry.Geometry,
              plain: Sequence[model.GpuInstanceProfile]) -> _Counts:
    """Return one instance of each size that fits, and then more of the
    smallest.

    :param plain: smallest first.
    """
    counts: dict[model.GpuInstanceProfile, int] = {}
    for profile in (*plain, *(smallest for smallest in plain[:1]
                              for _ in range(smallest.max_instances))):
        more = {**counts, profile: counts.get(profile, 0) + 1}
        if any(True for _ in plan.completions(grid, geometry.EMPTY, more)):
            counts = more
    return tuple((profile.name, counts[profile])
                 for profile in reversed(plain) if profile in counts)


def _plain(profiles: Iterable[model.GpuInstanceProfile]
           ) -> list[model.GpuInstanceProfile]:
    """Return the plain profile of each size, smallest first: without
    attributes, and of two with equal slices the one of which more fit.
    """
    plain: dict[int, model.GpuInstanceProfile] = {}
    for profile in profiles:
        other = plain.get(profile.slices)
        if not _attributes(profile) and (
                other is None
                or profile.max_instances > other.max_instances):
            plain[profile.slices] = profile
    return [plain[slices] for slices in sorted(plain)]


def _attributes(profile: model.GpuInstanceProfile) -> bool:
    try:
        return bool(names.ProfileName.parse(profile.name).attributes)
    except exception.InvalidValue:
        return True
