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

"""Hooks around an apply, from files in mig-parted's format.

    version: v1
    hooks:
      pre-apply-mode:
        - workdir: /etc/gpu
          command: /usr/bin/systemctl
          args: [stop, nvidia-persistenced]
          envs: {LANG: C}

A command is run with its arguments as they stand; no shell reads them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from oslo_concurrency import processutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.partition import layout_yaml

START = 'apply-start'
MODE = 'pre-apply-mode'
CONFIG = 'pre-apply-config'
EXIT = 'apply-exit'
NAMES = (START, MODE, CONFIG, EXIT)
"""Before all; before MIG modes change; before instances change; at the end,
also of an apply that failed."""

_VERSION = 'v1'
_KEYS = frozenset({'workdir', 'command', 'args', 'envs'})


@dataclasses.dataclass(frozen=True)
class Hook:
    """One command."""

    command: str
    args: tuple[str, ...] = ()
    envs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    workdir: str | None = None


@dataclasses.dataclass(frozen=True)
class Hooks:
    """Hooks by name, and what they are told in their environment.

    :param say: takes what hooks print.
    """

    source: str
    by_name: Mapping[str, tuple[Hook, ...]]
    envs: Mapping[str, str]
    say: Callable[[str], None]

    def run(self, name: str) -> None:
        """Run the hooks of a name, one after the other.

        :raises HookError: if one cannot be run, or fails.
        """
        for number, hook in enumerate(self.by_name.get(name, ())):
            # Of this process's environment only where programs are.
            envs = {'PATH': os.environ.get('PATH', os.defpath),
                    **hook.envs, **self.envs}
            try:
                output, errors = processutils.execute(
                    hook.command, *hook.args, cwd=hook.workdir or None,
                    env_variables=envs)
            except (OSError, ValueError,
                    processutils.ProcessExecutionError) as error:
                raise exception.HookError(
                    source=self.source, where=f'{name}[{number}]',
                    reason=f'{hook.command}: {_reason(error)}') from error
            for text in (output, errors):
                if text.strip():
                    self.say(text.rstrip())


@dataclasses.dataclass(frozen=True)
class _File:
    """Where a complaint about the whole file belongs."""

    source: str

    def error(self, problem: str, expected: str) -> exception.HookError:
        return _error(self.source, 'the file', f'{problem}; {expected}')


def parse(text: str, source: str, envs: Mapping[str, str],
          say: Callable[[str], None]) -> Hooks:
    """Read a hooks file.

    :param source: its name, for complaints.
    :param envs: given to each hook, over its own ``envs``.
    :raises HookError: saying what would be right.
    """
    content = layout_yaml.plain(text, _File(source))
    if not isinstance(content, dict) or content.get('version') != _VERSION:
        raise _error(source, 'version', f'expected {_VERSION}')
    unknown = sorted(set(content) - {'version', 'hooks'})
    if unknown:
        raise _error(source, 'the file', f'unknown key {unknown[0]!r}; '
                     'expected version and hooks')
    named = content.get('hooks') or {}
    if not isinstance(named, dict):
        raise _error(source, 'hooks', 'expected hooks by name')
    for name in named:
        if name not in NAMES:
            raise _error(source, f'hooks.{name}', 'unknown hook; expected '
                         + ', '.join(NAMES))
    return Hooks(source, {
        name: tuple(_hook(item, source, f'hooks.{name}[{number}]')
                    for number, item in enumerate(_list(
                        items, source, f'hooks.{name}')))
        for name, items in named.items()}, dict(envs), say)


def _hook(item: Any, source: str, where: str) -> Hook:
    if not isinstance(item, dict) or not set(item) <= _KEYS:
        raise _error(source, where, 'expected ' + ', '.join(sorted(_KEYS)))
    command = item.get('command')
    if not isinstance(command, str) or not command:
        raise _error(source, where, 'command: expected a program')
    args = _list(item.get('args') or [], source, f'{where}.args')
    envs = item.get('envs') or {}
    workdir = item.get('workdir')
    if not all(isinstance(value, str) for value in args):
        raise _error(source, f'{where}.args', 'expected texts')
    if not isinstance(envs, dict) or not all(
            isinstance(value, str) for pair in envs.items()
            for value in pair):
        raise _error(source, f'{where}.envs', 'expected texts by name')
    if not isinstance(workdir, (str, type(None))):
        raise _error(source, f'{where}.workdir', 'expected a directory')
    return Hook(command, tuple(args), envs, workdir)


def _list(value, source, where):
    if not isinstance(value, list):
        raise _error(source, where, 'expected a list')
    return value


def _reason(error):
    if isinstance(error, (OSError, ValueError)):
        # The latter of what no program can be given, such as a null byte.
        return f'cannot be run: {error}'
    said = f'{error.stdout}{error.stderr}'.strip()
    return f'exit code {error.exit_code}' + (f': {said}' if said else '')


def _error(source, where, reason):
    return exception.HookError(source=source, where=where, reason=reason)
