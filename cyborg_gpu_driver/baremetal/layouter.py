# SPDX-License-Identifier: Apache-2.0

"""Gives a node the layout of its GPUs, for its first boot.

GPU instances do not survive a restart, and on most GPUs the MIG mode does not
either (MIG User Guide; a boot configuration of the driver is an exception, see
:mod:`cyborg_gpu_driver.program.ready.apply`). So the layout is put into the
deployed system, which partitions the GPUs at each boot. Modes that survive a
restart are set here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from ironic_python_agent import disk_utils
from ironic_python_agent import errors
from ironic_python_agent import hardware
from ironic_python_agent import utils
from oslo_concurrency import processutils
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.baremetal import node
from cyborg_gpu_driver.baremetal import ramdisk as ramdisk_module
from cyborg_gpu_driver.baremetal import tree
from cyborg_gpu_driver.host.snapshot import choice
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.partition.layout import file as layout_file
from cyborg_gpu_driver.program.ready import apply

LOG = logging.getLogger(__name__)

PROGRAM = 'cyborg-gpu'
_PLACES = tuple(f'{place}/{PROGRAM}' for place in (
    'usr/local/sbin', 'usr/local/bin', 'usr/sbin', 'usr/bin', 'sbin', 'bin'))
"""Where systemd looks for the programs of a unit (systemd.exec(5), PATH)."""

Wanted = Mapping[int, 'target.Wanted | None']
"""What is wanted of GPUs by their index; None if that is not known before
NVML sees the GPU."""

_AT_BOOT = 'set at each boot'
_OFF = 'off after a reboot'
_MODE = {apply.Status.UNCHANGED: 'already set',
         apply.Status.CHANGED: 'set now',
         apply.Status.PENDING: 'set at the reboot'}


def apply_layout(ramdisk: ramdisk_module.Ramdisk, value: Any,
                 files: Iterable[layout_file.LayoutFile]) -> dict[str, Any]:
    """Check a layout, put it into the image, and set lasting modes.

    A repeated call replaces the layout that the image has.

    :param value: a step's ``layout``, see :func:`.node.entry_of`.
    :raises DocumentError: if the layout does not suit these GPUs.
    :raises ChangeRefused: if the layout cannot be put into the image.
    :raises StepFailed: naming the GPUs whose MIG mode cannot be set.
    """
    host = ramdisk.snapshot()
    entry = node.entry_of(value, host.gpus, files)
    wanted = check(host, entry, ramdisk.ignored(host))
    gpus = {index: choice.gpus(host)[index] for index in sorted(wanted)}
    with mounted() as image:
        there = image.find_program(_PLACES) is not None
        needed = any(_needs_program(gpu, wanted[index])
                     for index, gpu in gpus.items())
        if needed and not there:
            raise exception.ChangeRefused(
                f'the deployed image: there is no {PROGRAM} in any of '
                + ', '.join(f'/{place}' for place in _PLACES)
                + ', so nothing would partition the GPUs when the system '
                'boots: build an image that contains cyborg_gpu_driver '
                "and NVIDIA's driver")
        # First, so that an unsuitable image leaves the modes unchanged.
        placed = _stage(image, entry) if there else []
        modes = _set_modes(ramdisk, gpus, wanted)
    otherwise = _AT_BOOT if placed else _OFF
    return {'layout': entry.name, 'staged': placed, 'gpus': [
        _tell(gpu, wanted[index], modes.get(gpu.address, otherwise))
        for index, gpu in gpus.items()]}


def _set_modes(ramdisk, gpus, wanted):
    """Set each MIG mode that outlives the restart which follows.

    The mode takes effect with that restart.
    """
    outcomes = ramdisk.applier.apply_all(
        [(gpu, wanted[index]) for index, gpu in gpus.items()
         if wanted[index] is not None and cleaning.keeps_mig_mode(gpu)
         and not ramdisk.ignores(gpu)],
        apply.Options(mode_only=True, may_reset=False))
    failed = [ramdisk_module.named(outcome.gpu, outcome.error)
              for outcome in outcomes
              if outcome.status is apply.Status.FAILED]
    if failed:
        raise exception.StepFailed(reason='; '.join(failed))
    return {outcome.gpu: _MODE[outcome.status] for outcome in outcomes}


def check(host: model.Host, entry: layout_file.Entry,
          ignored: Collection[model.PciAddress]) -> Wanted:
    """Return what a layout wants of the GPUs that it selects.

    :raises DocumentError: if the layout does not suit the GPUs.
    :raises StepFailed: if the layout selects no GPU, if NVML cannot reach a
        selected GPU, or if the layout cannot be checked without NVML.
    """
    gpus = choice.gpus(host)
    if host.nvml_problem is None:
        chosen = [index for index in entry.chosen(gpus)
                  if gpus[index].address not in ignored]
        unreachable = [reason for index in chosen
                       if (reason := choice.obstacle(host, gpus[index]))]
        if unreachable:
            raise exception.StepFailed(reason='; '.join(unreachable))
        if not chosen:
            raise exception.StepFailed(
                reason=f'layout {entry.name} matches no GPU of this node, '
                'which has ' + _boards(host))
        return entry.for_chosen(gpus, chosen)
    if not node.suits(gpus, entry):
        raise exception.StepFailed(
            reason=f'layout {entry.name} cannot be checked without NVML '
            f'({host.nvml_problem}), so each item with MIG mode on must have '
            'a device-filter; this node has '
            + _boards(host))
    return {index: None for index, gpu in enumerate(gpus)
            if any(section.devices.include(index, gpu)
                   for section in entry.sections)}


def _needs_program(gpu, wanted):
    """Whether a GPU needs a change when the system boots."""
    if wanted is None:
        return True
    return bool(wanted.devices) or (
        wanted.enabled and not cleaning.keeps_mig_mode(gpu))


def _stage(image, entry):
    """Write the files that the system needs; return their paths."""
    text = layout_file.LayoutFile((entry,), entry.source).dump()
    image.write(cleaning.LAYOUT_PATH, text, 0o644)
    image.write(cleaning.UNIT_PATH, cleaning.unit_text(), 0o644)
    image.link(cleaning.WANTS_PATH, f'/{cleaning.UNIT_PATH}')
    placed = [f'/{path}' for path in (
        cleaning.LAYOUT_PATH, cleaning.UNIT_PATH, cleaning.WANTS_PATH)]
    LOG.info('Wrote layout %(layout)s to the image: %(paths)s',
             {'layout': entry.name, 'paths': ', '.join(placed)})
    return placed


def _tell(gpu, wanted, mode):
    LOG.info('GPU %(gpu)s: %(wanted)s; MIG mode %(mode)s', {
        'gpu': gpu.address, 'wanted': wanted or 'not known without NVML',
        'mode': mode})
    return {'gpu': str(gpu.address),
            'wanted': None if wanted is None else str(wanted),
            'mig_mode': mode}


def _boards(host):
    return ', '.join(sorted({layout_file.board(gpu)
                             for gpu in host.gpus})) or 'none'


# The root file system of the image that was deployed to this node.

_UNITS = 'etc/systemd/system'
"""A directory that only the root file system has."""
_LVM = 'lvm'
"""One of parted's flags of a partition."""


@contextlib.contextmanager
def mounted() -> Iterator[tree.Tree]:
    """Mount the root file system, and unmount it at the end.

    The agent's own ``inject_files.find_partition_with_path`` cannot be used,
    because it takes partition 2 of /dev/md0 for /dev/md02. The names of
    partitions are those of ``disk_utils.list_partitions``.

    :raises ChangeRefused: if no partition of the root device contains it.
    """
    with contextlib.ExitStack() as stack:
        yield tree.Tree(_enter(stack) + '/')


def _enter(stack):
    """Mount the partition with systemd's units; return the mount point."""
    try:
        device = hardware.dispatch_to_managers('get_os_install_device')
        partitions = disk_utils.list_partitions(device)
    except (errors.RESTError, processutils.ProcessExecutionError) as error:
        raise exception.ChangeRefused(
            'the deployed image: its partitions cannot be listed: '
            f'{error}') from error
    seen = []
    for item in partitions:
        if _LVM in item['flags']:
            seen.append(f'{item["path"]} (LVM)')
            continue
        try:
            with contextlib.ExitStack() as attempt:
                place = attempt.enter_context(utils.mounted(item['path']))
                if os.path.isdir(os.path.join(place, _UNITS)):
                    stack.push(attempt.pop_all())
                    LOG.info('The root file system is on %s', item['path'])
                    return place
        except processutils.ProcessExecutionError as error:
            LOG.warning('Partition %(path)s: %(error)s',
                        {'path': item['path'], 'error': error})
            seen.append(f'{item["path"]} (cannot be mounted)')
        else:
            seen.append(item['path'])
    raise exception.ChangeRefused(
        f'the deployed image: no partition has /{_UNITS}: a layout can only '
        'be written to a system with systemd, whose root is a separate file '
        'system without LVM, encryption or subvolumes; checked '
        + (', '.join(seen) or 'none'))
