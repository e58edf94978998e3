# SPDX-License-Identifier: Apache-2.0

"""Checks of cyborg-agent's user and of Cyborg's configuration."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg_gpu_driver.cmd.doctor import facts as facts_module
from cyborg_gpu_driver.cmd.doctor.rules import finding
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.partition import policy

# Checks of cyborg-agent's user and that user's permissions.

DEFAULT_HELPER = 'sudo privsep-helper'
"""The command that cyborg-agent starts if none is configured."""
_SAMPLES = ('see the samples in etc/sudoers.d and etc/rootwrap.d of this '
            'library')
MOST_PROVIDERS = 64
"""About one request a second to Placement. In each boot, Placement and
nova-compute need half a second of CPU for them (benchmarks/providers.py)."""
_READ = facts_module.Right.READ
_WRITE = facts_module.Right.WRITE


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


def privileges(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the agent can change GPUs, as root or with its helper."""
    user = facts.machine.agent
    if user is None:
        yield _unseen()
        return
    if user.uid != 0 and any(True for _ in facts.with_vgpus()):
        yield from _helper(facts, user)


def _unseen() -> finding.Finding:
    return finding.unknown(
        None, 'no cyborg-agent process was found', 'Start it and run the '
        'doctor again. If it runs in a container, run the doctor there')


def _helper(facts: facts_module.Facts, user: services.User
            ) -> Iterator[finding.Finding]:
    """Check the helper; whether sudo permits it is not checked."""
    name = 'helper_command of [cyborg_gpu_privileged]'
    programs = helper_programs(facts.cyborg.helper_command)
    if not programs:
        yield finding.error(None, f'{name} is malformed',
                            f'Correct it in cyborg.conf; {_SAMPLES}')
        return
    missing = [program for program in programs
               if facts.programs(program) is False]
    if missing:
        yield finding.error(
            None, f'cyborg-agent runs with uid {user.uid}, and its '
            f'helper program {missing[0]} cannot be run',
            f'Install it, or set another {name}; {_SAMPLES}')
    elif not _becomes_root(programs):
        yield finding.error(
            None, f'cyborg-agent runs with uid {user.uid}, and its '
            f'helper {programs[0]} does not run as root',
            f'Start {name} with sudo; {_SAMPLES}')


def _becomes_root(programs: Sequence[str]) -> bool:
    return posixpath.basename(''.join(programs[:1])) in ('sudo', 'doas')


def access(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the agent may open NVIDIA's devices and its own directory."""
    user = facts.machine.agent
    if user is None:
        yield _unseen()
        return
    if user.uid == 0:
        return
    yield from _devices(facts, facts.machine, user)
    state = facts.machine.state
    owner = f'install -d -o {user.uid} -m 0750 {facts.state_path}'
    if state is None:
        yield finding.warning(
            None, f'[gpu] state_path {facts.state_path} does not exist',
            f'Create it: {owner}')
    elif not state.allows(user, _READ | _WRITE
                          | facts_module.Right.EXECUTE):
        yield finding.error(
            None, f'cyborg-agent, uid {user.uid}, cannot write to '
            f'[gpu] state_path {facts.state_path}',
            f'Change its owner: {owner}')


def _devices(facts: facts_module.Facts, machine: facts_module.Machine,
             user: services.User) -> Iterator[finding.Finding]:
    devices, mig = machine.devices, machine.mig_device
    closed = [path for path, node in devices.items()
              if path != mig
              and not node.allows(user, _READ | _WRITE)]
    if closed:
        yield finding.error(
            None, f'cyborg-agent, uid {user.uid}, cannot open '
            f'{", ".join(sorted(closed))}, so NVML refuses to start',
            'Set NVreg_DeviceFileMode, NVreg_DeviceFileUID and '
            'NVreg_DeviceFileGID of the nvidia module to permit it, or add '
            'the user to the group that owns the files')
    slicing = any(policy.Mode.MIG in governing.modes
                  for _, governing in facts.governed())
    if slicing and mig and not devices[mig].allows(user, _READ):
        yield finding.warning(
            None, f'cyborg-agent, uid {user.uid}, cannot read {mig}: '
            'NVML may hide MIG placements from it',
            'Permit it at each boot, for example with setfacl -m '
            f'u:{user.uid}:r {mig}')


# Checks of Cyborg's release, configuration and access to Placement.

_DRIVER = 'cyborg_gpu_driver'
_IN_TREE = 'nvidia_gpu_driver'
_TESTED = (16, 17)
"""Releases 2026.1 and 2026.2, which the functional tests run on."""


def release(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether this Cyborg has the features that the driver needs."""
    found = facts.machine.release
    if found.version is None:
        yield finding.error(
            None, 'Cyborg is not installed in the environment of this '
            'command',
            'Install cyborg_gpu_driver where cyborg-agent is installed, and '
            'run this command from there')
    elif found.mismatch:
        yield _mismatch(facts, found)
    elif found.major not in _TESTED:
        yield finding.warning(
            None, f'Cyborg {found.version} was not tested with this '
            f'release of {_DRIVER}; Cyborg {min(_TESTED)} to {max(_TESTED)} '
            'were',
            'Use a tested release, or try it on one host first')


def _mismatch(facts: facts_module.Facts, found: facts_module.Release
              ) -> finding.Finding:
    details = (f'Cyborg {found.version}: {found.mismatch}; only whole GPUs '
               'are offered')
    advice = ('Install a release of cyborg_gpu_driver that supports this '
              'Cyborg, or a release of Cyborg that it supports')
    if any(True for _ in facts.with_vgpus()):
        return finding.error(None, details, advice)
    return finding.warning(None, details, advice)


def drivers(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the agent loads this driver, and no other for the GPUs."""
    enabled = facts.cyborg.enabled_drivers
    if _DRIVER not in enabled:
        yield finding.error(
            None, '[agent] enabled_drivers has '
            f'{", ".join(enabled) or "nothing"}: no GPU is reported',
            f'Add {_DRIVER} to it in cyborg.conf')
    elif _IN_TREE in enabled and any(True for _ in facts.governed()):
        yield finding.warning(
            None, f'[agent] enabled_drivers has both {_IN_TREE} and '
            f'{_DRIVER}, so the same GPUs are reported twice',
            f'Remove {_IN_TREE}, unless [gpu] ignored_devices lists all GPUs '
            'that it reports')


def host_name(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the agent uses the name that Nova has for this host."""
    ours, named = facts.cyborg.host, facts.cyborg.provider_name
    if named and named != ours:
        yield finding.error(
            None, f'[agent] resource_provider_name is {named}, but '
            f'[DEFAULT] host is {ours}: Nova cannot reach the agent to bind',
            'Set both in cyborg.conf to the hypervisor_hostname of this '
            'compute node ("openstack hypervisor list")')
        return
    asked = facts.placement
    if asked and asked.providers:
        if ours not in asked.providers:
            yield _other_name(ours, min(asked.providers), 'Placement has')
    elif ours == facts.machine.names.libvirt:
        return
    elif _first_label(ours) == _first_label(facts.machine.names.libvirt):
        yield _other_name(ours, facts.machine.names.libvirt, 'libvirt has')
    else:
        yield finding.warning(
            None, f'[DEFAULT] host is {ours}, and libvirt calls this '
            f'machine {facts.machine.names.libvirt}',
            'Compare [DEFAULT] host with hypervisor_hostname ("openstack '
            'hypervisor list"); they must be equal')


def _other_name(ours: str, other: str, has: str) -> finding.Finding:
    return finding.error(
        None, f'[DEFAULT] host is {ours}, but {has} {other}: Nova '
        'cannot reach the agent to bind',
        f'Set [DEFAULT] host = {other} in cyborg.conf')


def _first_label(name: str) -> str:
    return name.partition('.')[0].lower()


def names(facts: facts_module.Facts) -> frozenset[str]:
    """Return every name that this compute node may have in Placement."""
    found = {facts.machine.names.short, facts.machine.names.full,
             facts.machine.names.libvirt, facts.cyborg.host,
             facts.cyborg.provider_name}
    return frozenset(name for name in found if name)


def placement(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the agent can query Placement and has a provider there."""
    asked = facts.placement
    if not facts.cyborg.has_placement_user:
        yield finding.error(
            None, 'the agent has no credentials for Placement, and '
            'does not start with this driver',
            'Set auth_type and the options that it needs in [placement] of '
            'cyborg.conf')
    elif asked is None:
        return
    elif asked.problem:
        yield finding.error(None, asked.problem, asked.advice)
    elif not asked.providers:
        yield finding.error(
            None, 'Placement has no compute node named '
            f'{" or ".join(sorted(names(facts)))}: '
            'cyborg-agent does not start',
            'Start nova-compute on this host first. If it is running, set '
            '[DEFAULT] host in cyborg.conf to its hypervisor_hostname')


def providers(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether the GPUs have so many providers that boots become slow."""
    if facts.providers > MOST_PROVIDERS:
        yield finding.warning(
            None, f'the GPUs of this host have {facts.providers} resource '
            'providers: nova-compute asks Placement for the allocations of '
            'each one in every boot and deletion, and once a minute',
            'Offer fewer profiles in the policies, and remove what is not '
            'offered any more with "openstack gpu orphan clean --providers"')


def candidates(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether servers created at the same time are spread over the GPUs.

    Nova claims the first allocation candidate of a host. If the order is
    fixed, that is the same GPU for every request until the GPU is full.
    """
    if (not facts.placement_conf.randomizes
            and len(list(facts.governed())) > 1):
        yield finding.warning(
            None, 'Placement returns allocation candidates in a fixed order: '
            'servers that are created at the same time all request the same '
            'GPU, and fail although others are free',
            'Set randomize_allocation_candidates = true in [placement] of '
            'placement.conf, and restart Placement')


def claims(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Whether Placement allocates no more than the inventories have.

    The second try of a claim finds the allocations that the first try wrote,
    and takes them for an older excess. With 0 tries, Placement allocates
    nothing (replace_all in placement/objects/allocation.py, Placement 16).
    """
    if facts.placement_conf.tries != 1:
        yield finding.warning(
            None, 'allocation_conflict_retry_count is '
            f'{facts.placement_conf.tries}: above 1, Placement can give one '
            'slice to two servers, and the bind of the second fails; with 0 '
            'it refuses every claim',
            'Set allocation_conflict_retry_count = 1 in [placement] of '
            'placement.conf, and restart Placement')


def service_roles(facts: facts_module.Facts) -> Iterator[finding.Finding]:
    """Which role Cyborg requires in Nova's service token."""
    roles = facts.cyborg.service_roles
    release_ = facts.machine.release if facts.machine else None
    if release_ and release_.version and not release_.wants_service_token:
        yield finding.error(
            None, f'Cyborg {release_.version} requires no service '
            'token: users can bind, unbind and delete accelerator requests '
            'without Nova',
            'Upgrade Cyborg to 16.0.1 or later; configure Nova to send the '
            'token first')
    elif not roles:
        yield finding.error(
            None, '[keystone_authtoken] service_token_roles is '
            'empty: cyborg-api answers every bind with 403',
            'Set it to service in cyborg.conf')
