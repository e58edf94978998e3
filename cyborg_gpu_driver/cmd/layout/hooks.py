# SPDX-License-Identifier: Apache-2.0

"""Hooks around an apply, from files in mig-parted's format::

    version: v1
    hooks:
      pre-apply-mode:
        - workdir: /etc/gpu
          command: /usr/bin/systemctl
          args: [stop, nvidia-dcgm]
          envs: {LANG: C}

A command runs without a shell, with its arguments unchanged, for at most
SECONDS.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from oslo_concurrency import processutils

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import schema
from cyborg_gpu_driver.partition.layout import yaml as layout_yaml
from cyborg_gpu_driver.program.privileged import child

START = 'apply-start'
MODE = 'pre-apply-mode'
CONFIG = 'pre-apply-config'
EXIT = 'apply-exit'
NAMES = (START, MODE, CONFIG, EXIT)
"""In this order, hooks run at the start; before MIG modes change; before
instances change; and at the end, even if the apply failed."""
SECONDS = 600
"""How long a command may take. mig-parted has no limit; most services stop
within the 90 s of systemd's DefaultTimeoutStopSec."""

_HOOK = schema.mapping({
    'command': {'type': 'string', 'minLength': 1, 'description': 'a program',
                'examples': ['/usr/bin/systemctl']}}, {
    'workdir': schema.nullable(schema.TEXT),
    'args': schema.nullable(schema.listing(schema.TEXT)),
    'envs': schema.nullable({'type': 'object',
                             'additionalProperties': schema.TEXT})})
HOOKS_FILE = schema.mapping({'version': {'const': 'v1'}}, {
    'hooks': schema.nullable(schema.mapping(
        {}, {name: schema.listing(_HOOK) for name in NAMES}))})
"""The schema of a hooks file."""

_Timeout = processutils.subprocess.TimeoutExpired


@dataclasses.dataclass(frozen=True)
class Hook:
    """One command of a hook."""

    command: str
    args: tuple[str, ...] = ()
    envs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    workdir: str | None = None


@dataclasses.dataclass(frozen=True)
class Hooks:
    """Hooks by name, with their environment variables.

    :param say: called with the output of hooks.
    """

    source: str
    by_name: Mapping[str, tuple[Hook, ...]]
    envs: Mapping[str, str]
    say: Callable[[str], None]

    def run(self, name: str) -> None:
        """Run the hooks of a name, one after the other.

        :raises StepFailed: if a hook cannot be run, fails, or takes too long;
            then it is killed, with the programs that it has started.
        """
        for number, hook in enumerate(self.by_name.get(name, ())):
            # Hooks get only PATH from the environment of this process.
            envs = {'PATH': os.environ.get('PATH', os.defpath),
                    **hook.envs, **self.envs}
            try:
                output, errors = processutils.execute(
                    hook.command, *hook.args, cwd=hook.workdir or None,
                    env_variables=envs, timeout=SECONDS,
                    on_completion=child.kill, preexec_fn=os.setsid)
            except (OSError, ValueError, _Timeout,
                    processutils.ProcessExecutionError) as error:
                raise exception.StepFailed(
                    f'{self.source}: {name}[{number}]: {hook.command}: '
                    f'{_reason(error)}') from error
            for text in (output, errors):
                if text.strip():
                    self.say(text.rstrip())


def parse(text: str, source: str, envs: Mapping[str, str],
          say: Callable[[str], None]) -> Hooks:
    """Read a hooks file.

    :param source: the file's name for error messages.
    :param envs: variables for each hook, which override its own ``envs``.
    :raises DocumentError: if it is malformed; says what was expected.
    """
    place = schema.Place(source)
    content = layout_yaml.plain(text, place)
    schema.check(content, HOOKS_FILE, place)
    return Hooks(source, {
        name: tuple(map(_hook, items))
        for name, items in (content.get('hooks') or {}).items()},
        dict(envs), say)


def _hook(item: dict[str, Any]) -> Hook:
    return Hook(item['command'], tuple(item.get('args') or ()),
                item.get('envs') or {}, item.get('workdir'))


def _reason(error):
    if isinstance(error, (OSError, ValueError)):
        # ValueError: an argument that no program can get, such as a null
        # byte.
        return f'cannot be run: {error}'
    if isinstance(error, _Timeout):
        return f'did not end within {SECONDS:g} s'
    said = f'{error.stdout}{error.stderr}'.strip()
    return f'exit code {error.exit_code}' + (f': {said}' if said else '')
