# SPDX-License-Identifier: Apache-2.0

"""Checks of what a container hides from cyborg-agent.

The doctor sees the container in which it runs, so run it in that of the agent.
"""

from __future__ import annotations

from collections.abc import Iterator

from cyborg_gpu_driver.cmd.doctor import facts as facts_module
from cyborg_gpu_driver.cmd.doctor.rules import finding

_NVIDIA = 'nvidia'
_VOLATILE = ('overlay', 'aufs', 'tmpfs', 'ramfs')
"""File systems of a container's own files, and of memory."""
_CAPABILITIES = {2: 'CAP_DAC_READ_SEARCH', 19: 'CAP_SYS_PTRACE',
                 21: 'CAP_SYS_ADMIN'}
"""What privsep.gpu_context keeps, by number (linux/capability.h)."""
_PRIVILEGED = ('Start the container of cyborg-agent with more rights '
               '(--privileged)')


def limits(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the agent has what it needs of the host."""
    machine = facts.machine
    if not any(True for _ in facts.governed()):
        return
    if not machine.shows_all:
        yield finding.error(
            None, 'only the processes of this container are visible: it is '
            'unknown whether a GPU is in use, so it is neither reset nor '
            'given to the next server',
            "Start the container in the host's PID namespace (--pid host; "
            'kolla-ansible needs the patch in contrib/upstream)')
    mount = machine.state_mount
    if mount and mount.kind in _VOLATILE:
        yield finding.error(
            None, f'[gpu] state_path {facts.state_path} is on {mount.kind}: '
            'which server has which GPU is lost with the container or at a '
            'reboot', 'Mount a directory of the host there')
    if machine.sysfs and machine.sysfs.read_only:
        yield finding.error(
            None, '/sys is read-only: no driver of a GPU can be changed and '
            'no virtual function created', _PRIVILEGED)
    yield from _capabilities(machine)
    yield from _nodes(facts, machine)


def _capabilities(machine: facts_module.Machine
                  ) -> Iterator[finding.Finding]:
    mask = machine.agent.bounding if machine.agent else None
    missing = [name for number, name in _CAPABILITIES.items()
               if mask is not None and not mask >> number & 1]
    if missing:
        yield finding.error(
            None, 'cyborg-agent and its helper cannot have '
            f'{", ".join(missing)}: they cannot change a GPU or see who uses '
            'it', _PRIVILEGED)


def _nodes(facts: facts_module.Facts, machine: facts_module.Machine
           ) -> Iterator[finding.Finding]:
    bound = sum(gpu.driver == _NVIDIA for gpu in facts.host.gpus)
    if not bound or _NVIDIA not in machine.modules:
        return
    names = {path.rpartition('/')[2] for path in machine.devices}
    there = sum(name.removeprefix(_NVIDIA).isdigit() for name in names)
    if 'nvidiactl' not in names or there < bound:
        yield finding.error(
            None, f"NVIDIA's driver has {bound} GPU(s), and /dev has "
            f'{there} of their nodes' + (
                '' if 'nvidiactl' in names else ' and no nvidiactl'),
            'Mount /dev of the host into the container; on the host, run '
            '"nvidia-modprobe -c 0"')


def library(facts: facts_module.Facts) -> str:
    """Return what to do if NVML's library is missing, but not the driver."""
    if (facts.machine is None or _NVIDIA not in facts.machine.modules
            or 'libnvidia-ml' not in (facts.host.nvml_problem or '')):
        return ''
    return ("Install the libraries of the host's NVIDIA driver; in a "
            'container, mount libnvidia-ml.so.1 of the host')
