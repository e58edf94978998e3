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


def export(gpus: Sequence[model.Gpu], name: str = 'current',
           source: str = 'this host', left_out: Collection[int] = ()
           ) -> layout_file.LayoutFile:
    """Return the current state of all GPUs, as a layout file of one entry.

    A GPU instance without compute instances counts as one whole MIG device,
    because a layout file cannot describe it.

    :param gpus: the host's GPUs, by address.
    :param left_out: indices of GPUs that the file does not include.
    """
    return layout_file.LayoutFile((layout_file.Entry(
        source, name, layout_file.sections({
            index: (gpu.mig is not None and gpu.mig.enabled, _counts(gpu))
            for index, gpu in enumerate(gpus) if index not in left_out},
            len(gpus))),), source)


def check_described(gpus: Sequence[model.Gpu], file: layout_file.LayoutFile,
                    in_use: Mapping[int, Mapping[model.Placement, str]]
                    ) -> None:
    """Check that an exported layout is in effect on the GPUs it came from.

    :param in_use: by index, as for :func:`.partition.plan.plan`.
    :raises DocumentError: if the file cannot describe a GPU.
    """
    for index, wanted in file.entry().for_host(gpus).items():
        try:
            described = plan.plan(
                gpus[index], wanted, in_use.get(index, {})).is_empty
        except exception.ChangeRefused:
            described = False
        if not described:
            raise yaml.place_in(file.source, f'GPU {index}').error(
                'a layout file cannot describe a GPU instance without compute '
                'instances, or a MIG mode that is pending',
                'apply a layout to it, or complete or undo the change')


def _counts(gpu: model.Gpu) -> _Counts:
    """Return the number of MIG devices by name."""
    if gpu.mig is None:
        return ()
    counts: collections.Counter[str] = collections.Counter()
    for item in gpu.mig.instances:
        profile = gpu.mig.profile_by_id(item.profile_id)
        if profile is None or not item.compute:
            counts[spec.profile_name(gpu.mig, item.profile_id)] += 1
        else:
            counts.update(target.device_name(profile, part.size)
                          for part in item.compute)
    return tuple(sorted(counts.items()))


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
