# SPDX-License-Identifier: Apache-2.0

"""The services that run on this machine, read from procfs."""

from __future__ import annotations

import dataclasses
import os

from cyborg_gpu_driver.host import open_files

NOVA_COMPUTE = 'nova-compute'
OURS = 'cyborg-gpu-nova-compute'
AGENT = 'cyborg-agent'
API = 'cyborg-api'
PATCHED = OURS[:15]
"""The kernel's name (comm) of a nova-compute with our patches, which the
command gives its process. comm has at most 15 characters (TASK_COMM_LEN in
linux/sched.h)."""
_LIMIT = 1 << 16


@dataclasses.dataclass(frozen=True)
class User:
    """The user and the groups that a process runs with."""

    uid: int
    gids: frozenset[int] = frozenset()
    bounding: int | None = None
    """The capabilities that it can have, as root or through a helper, as a
    mask; None if that was not read."""


@dataclasses.dataclass(frozen=True)
class Running:
    """The services that were found."""

    commands: frozenset[str] = frozenset()
    agent: User | None = None
    """The user that cyborg-agent runs as; None if no agent was found."""

    @property
    def nova_commands(self) -> frozenset[str]:
        """``OURS`` if one has our patches, ``NOVA_COMPUTE`` if one has none.
        """
        return self.commands & {NOVA_COMPUTE, OURS}

    @property
    def nova_unpatched(self) -> bool:
        """Whether nova-compute is known to run without our patches.

        A process in another PID namespace is not visible, and cyborg-agent
        may start first: then it is not known. A host with Ironic may have
        a second nova-compute, which needs no patches.
        """
        return self.nova_commands == {NOVA_COMPUTE}


def running(proc: str = '/proc') -> Running | None:
    """Return the services that run here; None if that is not known."""
    try:
        names = os.listdir(proc)
    except OSError:
        return None
    found: dict[str, str] = {}
    for name in sorted(filter(str.isdigit, names), key=int):
        command = _command(f'{proc}/{name}/cmdline')
        if command in (NOVA_COMPUTE, OURS):
            command = OURS if open_files.process_name(
                int(name), proc) == PATCHED else NOVA_COMPUTE
        if command in (NOVA_COMPUTE, OURS, AGENT, API):
            found.setdefault(command, f'{proc}/{name}/status')
    return Running(frozenset(found),
                   _user(found[AGENT]) if AGENT in found else None)


def _command(path: str) -> str:
    """Return the name of the program, or of the script that Python runs."""
    words = _read(path).split('\0')
    name = os.path.basename(words[0])
    if name.startswith('python'):
        scripts = (word for word in words[1:] if not word.startswith('-'))
        name = os.path.basename(next(scripts, ''))
    return name


def _user(path: str) -> User | None:
    """Return the effective user and all groups; None if the process ended."""
    fields = {
        line.partition(':')[0]: line.partition(':')[2].split()
        for line in _read(path).splitlines()}
    try:
        return User(
            uid=int(fields['Uid'][1]),
            gids=frozenset(map(int, (fields['Gid'][1], *fields['Groups']))),
            bounding=int(fields['CapBnd'][0], 16)
            if 'CapBnd' in fields else None)
    except (KeyError, IndexError, ValueError):
        return None


def _read(path: str) -> str:
    try:
        with open(path, 'rb') as stream:
            return stream.read(_LIMIT).decode(errors='replace')
    except OSError:
        # The process has ended, or this user may not read the file.
        return ''
