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


"""Checks of cyborg-agent's user and that user's permissions."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator

from cyborg_gpu_driver.check import facts as facts_module
from cyborg_gpu_driver.check.rules import access as access_module
from cyborg_gpu_driver.check.rules import result
from cyborg_gpu_driver.partition import policy

DEFAULT_HELPER = 'sudo privsep-helper'
"""The command that cyborg-agent starts if none is configured."""
_SAMPLES = ('see the samples in etc/sudoers.d and etc/rootwrap.d of this '
            'library')
_READ = access_module.Right.READ
_ALL = _READ | access_module.Right.WRITE | access_module.Right.EXECUTE


def helper_programs(command: str | None) -> tuple[str, ...]:
    """Return the programs that the helper's command line runs, in order.

    :param command: ``[cyborg_gpu_privileged] helper_command``.
    :returns: empty if the command is malformed.
    """
    try:
        words = shlex.split(command or DEFAULT_HELPER)
    except ValueError:
        return ()
    # After options of sudo, it is unknown which word is the program.
    behind = [word for word in words[1:2] if not word.startswith('-')]
    return (*words[:1], *(behind if _becomes_root(words[:1]) else ()))


def privileges(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether the agent can change GPUs, as root or with its helper."""
    assert facts.machine is not None
    user = facts.machine.agent
    if user is None:
        yield _unseen()
        return
    if user.uid == 0:
        yield result.success(result.HOST, 'cyborg-agent runs as root')
        return
    if not any(True for _ in facts.with_vgpus()):
        return
    yield _helper(facts, user)


def _unseen():
    return result.skipped(
        result.HOST, 'no cyborg-agent process was found', 'Start it and '
        'run the check again. If it runs in a container, run the check there')


def _helper(facts, user):
    name = 'helper_command of [cyborg_gpu_privileged]'
    programs = helper_programs(facts.cyborg.helper_command)
    if not programs:
        return result.failure(result.HOST, f'{name} is malformed',
                              f'Correct it in cyborg.conf; {_SAMPLES}')
    missing = [program for program in programs
               if facts.programs(program) is False]
    if missing:
        return result.failure(
            result.HOST, f'cyborg-agent runs with uid {user.uid}, and its '
            f'helper program {missing[0]} cannot be run',
            f'Install it, or set another {name}; {_SAMPLES}')
    if not _becomes_root(programs):
        return result.failure(
            result.HOST, f'cyborg-agent runs with uid {user.uid}, and its '
            f'helper {programs[0]} does not run as root',
            f'Start {name} with sudo; {_SAMPLES}')
    return result.success(
        result.HOST, f'cyborg-agent runs with uid {user.uid} and starts its '
        f'helper with {programs[0]}; whether {programs[0]} permits this was '
        f'not checked ({_SAMPLES})')


def _becomes_root(programs):
    return posixpath.basename(''.join(programs[:1])) in ('sudo', 'doas')


def access(facts: facts_module.Facts) -> Iterator[result.Finding]:
    """Whether the agent may open NVIDIA's devices and its own directory."""
    assert facts.machine is not None
    user = facts.machine.agent
    if user is None:
        yield _unseen()
        return
    if user.uid == 0:
        return
    yield from _devices(facts, user)
    state = facts.machine.state
    owner = f'install -d -o {user.uid} -m 0750 {facts.state_path}'
    if state is None:
        yield result.warning(
            result.HOST, f'[gpu] state_path {facts.state_path} does not exist',
            f'Create it: {owner}')
    elif not state.allows(user, _ALL):
        yield result.failure(
            result.HOST, f'cyborg-agent, uid {user.uid}, cannot write to '
            f'[gpu] state_path {facts.state_path}',
            f'Change its owner: {owner}')


def _devices(facts, user):
    devices = facts.machine.devices
    mig = facts.machine.mig_device
    closed = [path for path, node in devices.items()
              if path != mig
              and not node.allows(user, _READ | access_module.Right.WRITE)]
    if closed:
        yield result.failure(
            result.HOST, f'cyborg-agent, uid {user.uid}, cannot open '
            f'{", ".join(sorted(closed))}, so NVML refuses to start',
            'Set NVreg_DeviceFileMode, NVreg_DeviceFileUID and '
            'NVreg_DeviceFileGID of the nvidia module to permit it, or add '
            'the user to the group that owns the files')
    slicing = any(policy.Mode.MIG in governing.modes
                  for _, governing in facts.governed())
    if slicing and mig and not devices[mig].allows(user, _READ):
        yield result.warning(
            result.HOST, f'cyborg-agent, uid {user.uid}, cannot read {mig}: '
            'NVML may hide MIG placements from it',
            'Permit it at each boot, for example with setfacl -m '
            f'u:{user.uid}:r {mig}')
