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


"""Which of the services run on this machine, from procfs."""

from __future__ import annotations

import dataclasses
import os

from cyborg_gpu_driver.check.rules import access

STOCK = 'nova-compute'
OURS = 'cyborg-gpu-nova-compute'
AGENT = 'cyborg-agent'
_LIMIT = 1 << 16


@dataclasses.dataclass(frozen=True)
class Running:
    """The services that were seen."""

    commands: frozenset[str] = frozenset()
    agent: access.User | None = None
    """As whom cyborg-agent runs; None if it was not seen."""

    @property
    def nova_commands(self) -> frozenset[str]:
        """The names under which nova-compute runs."""
        return self.commands & {STOCK, OURS}


def running(proc: str = '/proc') -> Running | None:
    """Look through the processes.

    :param proc: where procfs is mounted.
    :returns: None where processes cannot be listed.
    """
    try:
        names = os.listdir(proc)
    except OSError:
        return None
    found = {}
    for name in sorted(filter(str.isdigit, names), key=int):
        command = _command(f'{proc}/{name}/cmdline')
        if command in (STOCK, OURS, AGENT):
            found.setdefault(command, f'{proc}/{name}/status')
    return Running(frozenset(found),
                   _user(found[AGENT]) if AGENT in found else None)


def _command(path):
    """The program's name; that of the script where Python runs one."""
    words = _read(path).split('\0')
    name = os.path.basename(words[0])
    if name.startswith('python'):
        scripts = (word for word in words[1:] if not word.startswith('-'))
        name = os.path.basename(next(scripts, ''))
    return name


def _user(path):
    """Effective user and all groups; None if the process has ended."""
    fields = {
        line.partition(':')[0]: line.partition(':')[2].split()
        for line in _read(path).splitlines()}
    try:
        return access.User(
            uid=int(fields['Uid'][1]),
            gids=frozenset(map(int, (fields['Gid'][1], *fields['Groups']))))
    except (KeyError, IndexError, ValueError):
        return None


def _read(path):
    try:
        with open(path, 'rb') as stream:
            return stream.read(_LIMIT).decode(errors='replace')
    except OSError:
        # It has ended, or is not ours to see.
        return ''
