# SPDX-License-Identifier: Apache-2.0

"""The facts that the checks examine, gathered once."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import glob
import os
import re
import shutil
import socket
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from importlib import metadata
from typing import cast

from keystoneauth1 import loading
from oslo_config import cfg
from oslo_utils import importutils

from cyborg_gpu_driver import cyborg_hooks
from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd.doctor import placement as placement_module
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.conf import validation
from cyborg_gpu_driver.host import open_files
from cyborg_gpu_driver.host import services
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.nova import conf_file
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import roles as partition_roles

_RELEASE = re.compile(r'(\d+)\.(\d+)', re.ASCII)
_ESCAPED = re.compile(r'\\([0-7]{3})')
_UNIFIED_LIMITS = 'nova.quota.UnifiedLimitsDriver'
_CREDENTIALS = loading.get_auth_common_conf_options()
_VGPU_MODES = (policy.Mode.VGPU, policy.Mode.MIG)


class Right(enum.IntFlag):
    """The bits of one octal digit of a file's mode."""

    EXECUTE = 1
    WRITE = 2
    READ = 4


@dataclasses.dataclass(frozen=True)
class Node:
    """Owner and permissions of a file."""

    uid: int
    gid: int
    mode: int
    """``st_mode``; access control lists are ignored."""

    def allows(self, user: services.User, right: Right) -> bool:
        """Whether a user has a right.

        As in the kernel, the first match of owner, group and others decides.
        """
        if user.uid == 0:
            return True
        shift = (6 if user.uid == self.uid
                 else 3 if self.gid in user.gids else 0)
        return right & (self.mode >> shift) == right


# The facts about a real machine, beside its GPUs, that checks examine.


@dataclasses.dataclass(frozen=True)
class Names:
    """The names of this machine."""

    short: str
    """``uname -n``; this can be the full name too."""
    full: str
    """The canonical name from the resolver; empty if there is none."""

    @property
    def libvirt(self) -> str:
        """The host name that libvirt reports, thus hypervisor_hostname.

        As virGetHostname() in src/util/virutil.c: the machine's name if it
        has a domain, else the canonical name if that has a domain.
        """
        if '.' in self.short or self.short.startswith('localhost'):
            return self.short
        if '.' not in self.full or self.full.startswith('localhost'):
            return self.short
        return self.full


@dataclasses.dataclass(frozen=True)
class Release:
    """The Cyborg release in the environment of this program."""

    version: str | None = None
    """None if Cyborg is not installed."""
    mismatch: str = ''
    """See :func:`cyborg_gpu_driver.cyborg_hooks.mismatch`."""
    wants_service_token: bool = True
    """Whether the API accepts a bind only from a service."""

    @property
    def major(self) -> int | None:
        """The first number of the version; None if there is none."""
        found = re.match(r'\d+', self.version or '', re.ASCII)
        return int(found[0]) if found else None


@dataclasses.dataclass(frozen=True)
class Mount:
    """A mounted file system."""

    kind: str
    """Its type, such as ``ext4`` or ``overlay``."""
    read_only: bool = False


@dataclasses.dataclass(frozen=True)
class Machine:
    """The facts about the machine that the services run on."""

    names: Names = Names('', '')
    release: Release = Release()
    nova: str = ''
    """Version of Nova in the environment of this program; empty if Nova is
    not installed."""
    mdev_problem: str = ''
    """See :func:`cyborg_gpu_driver.nova.capability.mdev_problem`."""
    quota_problem: str = ''
    """See :func:`cyborg_gpu_driver.nova.capability.quota_problem`."""
    kernel: tuple[int, int] | None = None
    """Major and minor release of the kernel."""
    modules: frozenset[str] = frozenset()
    """Loaded kernel modules."""
    running: services.Running | None = None
    """None if processes cannot be listed."""
    devices: Mapping[str, Node] = dataclasses.field(
        default_factory=dict)
    """NVIDIA's device nodes by path, including :attr:`mig_device`."""
    mig_device: str | None = None
    """The device node, or the file, that grants the use of MIG."""
    state: Node | None = None
    """``[gpu] state_path``; None if it does not exist."""
    programs: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """Whether each program exists and can be run, by name or path."""
    shows_all: bool = True
    """Whether the processes of all PID namespaces are visible."""
    state_mount: Mount | None = None
    """Where ``[gpu] state_path`` is, or would be; None if that is unknown."""
    sysfs: Mount | None = None

    @property
    def agent(self) -> services.User | None:
        """The user that cyborg-agent runs as; None if no agent was found."""
        return self.running.agent if self.running else None


def read_machine(state_path: str, programs: Iterable[str], proc: str = '/proc',
                 dev: str = '/dev') -> Machine:
    """Gather the facts about this machine.

    :param programs: the programs to look for, by name or path.
    """
    mig_device = next(filter(os.path.exists, _mig_devices(proc, dev)), None)
    paths = (*glob.glob(f'{dev}/nvidia[0-9]*'), f'{dev}/nvidiactl',
             *filter(None, (mig_device,)))
    return Machine(
        names=_names(), release=_cyborg(), nova=capability.nova_version(),
        mdev_problem=capability.mdev_problem(),
        quota_problem=capability.quota_problem(),
        kernel=release(os.uname().release),
        modules=frozenset(line.split()[0] for line
                          in _lines(f'{proc}/modules') if line.strip()),
        running=services.running(proc),
        devices={path: node for path in paths if (node := _node(path))},
        mig_device=mig_device, state=_node(state_path),
        programs={name: bool(shutil.which(name)) for name in programs},
        shows_all=open_files.shows_all(proc),
        state_mount=_mount(proc, os.path.realpath(state_path)),
        sysfs=_mount(proc, '/sys'))


def _mount(proc: str, path: str) -> Mount | None:
    """Return the mount of a path, from proc_pid_mountinfo(5)."""
    found, longest = None, ''
    for line in _lines(f'{proc}/self/mountinfo'):
        before, _, after = line.partition(' - ')
        fields, kind = before.split(), after.split()[:1]
        if len(fields) < 6 or not kind:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        # A later mount on the same point hides the earlier one.
        if (f'{path}/'.startswith(f'{point.rstrip("/")}/')
                and len(point) >= len(longest)):
            longest = point
            found = Mount(kind[0], 'ro' in fields[5].split(','))
    return found


def release(text: str) -> tuple[int, int] | None:
    """Return (6, 8) for ``6.8.0-31-generic``; None for a malformed text."""
    found = _RELEASE.match(text)
    return (int(found[1]), int(found[2])) if found else None


def _names():
    short = socket.gethostname()
    try:
        full = socket.getaddrinfo(short, None,
                                  flags=socket.AI_CANONNAME)[0][3]
    except OSError:
        full = ''
    return Names(short, full)


def _cyborg():
    try:
        version = metadata.version('openstack-cyborg')
    except metadata.PackageNotFoundError:
        return Release()
    return Release(
        version, cyborg_hooks.mismatch(), importutils.try_import(
            'cyborg.common.service_token_utils') is not None)


def _mig_devices(proc, dev):
    """Yield the paths that can grant the use of MIG, the preferred first.

    From the MIG user guide ("Device Nodes and Capabilities"): a node below
    ``/dev/nvidia-caps`` with the number from ``mig-minors``, or the file in
    procfs if the driver creates no such nodes.
    """
    for line in _lines(f'{proc}/driver/nvidia-caps/mig-minors'):
        name, _, minor = line.partition(' ')
        if name == 'config' and minor.strip().isdigit():
            yield f'{dev}/nvidia-caps/nvidia-cap{minor.strip()}'
    yield f'{proc}/driver/nvidia/capabilities/mig/config'


def _lines(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def _node(path):
    try:
        found = os.stat(path)
    except OSError:
        return None
    return Node(found.st_uid, found.st_gid, found.st_mode & 0o7777)


# Options of Cyborg, Nova and Placement that affect how they cooperate.


@dataclasses.dataclass(frozen=True)
class Cyborg:
    """Options of ``cyborg.conf`` for the agent and the services it uses."""

    host: str
    """``[DEFAULT] host``: the name under which the agent is called."""
    provider_name: str | None = None
    """``[agent] resource_provider_name``; None if the agent chooses it."""
    enabled_drivers: tuple[str, ...] = ()
    service_roles: tuple[str, ...] = ('service',)
    """``[keystone_authtoken] service_token_roles``."""
    has_placement_user: bool = False
    """Whether ``[placement]`` has credentials."""
    helper_command: str | None = None
    """``[cyborg_gpu_privileged] helper_command``."""
    api: tuple[str, int] = ('127.0.0.1', 6666)
    """``[api] host_ip`` and ``port``."""


@dataclasses.dataclass(frozen=True)
class Nova:
    """Options of ``nova.conf``."""

    assigned: conf_file.NovaConf
    """Its PCI devices and mdevs."""
    sends_service_token: bool = False
    has_service_user: bool = False
    """Whether ``[service_user]`` has credentials."""
    resumes_guests: bool = False
    unified_limits: bool = False
    """Whether ``[quota] driver`` uses Keystone's unified limits."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """Options of ``placement.conf`` for concurrent requests."""

    randomizes: bool
    """Whether allocation candidates have a random order."""
    tries: int
    """How often Placement tries a claim that loses races."""


@contextlib.contextmanager
def _read(what: str, paths: Sequence[str]) -> Iterator[None]:
    """Report an option or a file that cannot be read."""
    try:
        yield
    except (cfg.Error, OSError, ValueError) as error:
        raise exception.InvalidValue(
            what=what, value=', '.join(paths),
            expected=f'expected files of oslo.config: {error}') from error


def cyborg(conf: cfg.ConfigOpts) -> Cyborg:
    """Read the files of ``cyborg.conf`` that this program started with.

    Names and defaults are those of cyborg/conf/agent.py and
    cyborg/conf/api.py (Cyborg 17), keystonemiddleware and oslo.privsep.

    :param conf: parsed, with ``[DEFAULT] host`` registered.
    :raises InvalidValue: if an option cannot be read.
    """
    conf.register_opts([
        cfg.ListOpt('enabled_drivers', default=['fake_driver']),
        cfg.StrOpt('resource_provider_name')], group='agent')
    conf.register_opts([
        cfg.HostAddressOpt('host_ip', default='127.0.0.1'),
        cfg.PortOpt('port', default=6666)], group='api')
    conf.register_opt(cfg.ListOpt('service_token_roles',
                                  default=['service']),
                      group='keystone_authtoken')
    conf.register_opts(_CREDENTIALS, group='placement')
    conf.register_opt(cfg.StrOpt('helper_command'),
                      group='cyborg_gpu_privileged')
    with _read('cyborg.conf', list(validation.files(conf))):
        return Cyborg(
            host=conf.host, provider_name=conf.agent.resource_provider_name,
            enabled_drivers=tuple(conf.agent.enabled_drivers),
            service_roles=tuple(
                conf.keystone_authtoken.service_token_roles),
            has_placement_user=_has_user(conf.placement),
            helper_command=conf.cyborg_gpu_privileged.helper_command,
            api=(conf.api.host_ip, conf.api.port))


def nova(paths: Sequence[str]) -> Nova:
    """Read ``nova.conf``.

    Names and defaults are those of nova/conf/service_token.py,
    nova/conf/compute.py and nova/conf/quota.py of Nova 34.

    :param paths: the files; a later file overrides an earlier one.
    :raises InvalidValue: if a file or an option cannot be read.
    """
    conf = cfg.ConfigOpts()
    conf.register_opts([
        cfg.BoolOpt('send_service_user_token', default=False),
        *_CREDENTIALS], group='service_user')
    conf.register_opt(cfg.BoolOpt('resume_guests_state_on_host_boot',
                                  default=False))
    conf.register_opt(cfg.StrOpt('driver', default=''), group='quota')
    with _read('nova.conf', paths):
        conf([], project='nova', default_config_files=list(paths),
             default_config_dirs=[])
        return Nova(
            conf_file.read(paths),
            sends_service_token=conf.service_user.send_service_user_token,
            has_service_user=_has_user(conf.service_user),
            resumes_guests=conf.resume_guests_state_on_host_boot,
            unified_limits=conf.quota.driver == _UNIFIED_LIMITS)


def placement(paths: Sequence[str]) -> Placement:
    """Read ``placement.conf``.

    Names and defaults are those of placement/conf/placement.py (Placement
    16). The parameter and the exception are those of :func:`nova`.
    """
    conf = cfg.ConfigOpts()
    conf.register_opts([
        cfg.BoolOpt('randomize_allocation_candidates', default=False),
        cfg.IntOpt('allocation_conflict_retry_count', default=10)],
        group='placement')
    with _read('placement.conf', paths):
        conf([], project='placement', default_config_files=list(paths),
             default_config_dirs=[])
        return Placement(conf.placement.randomize_allocation_candidates,
                         conf.placement.allocation_conflict_retry_count)


def _has_user(group):
    return bool(group.auth_type or group.auth_section)


@dataclasses.dataclass(frozen=True)
class Facts:
    """A host with its services' configuration.

    None means that the fact was not gathered. On a simulated machine, only
    the GPUs and the configuration are gathered. A check runs only with the
    facts that it needs, so the types do not have None.
    """

    host: model.Host
    settings: policies.Settings
    cyborg: Cyborg = cast('Cyborg', None)
    cyborg_problem: str = ''
    """Why ``cyborg`` is None."""
    nova: Nova = cast('Nova', None)
    nova_problem: str = ''
    remembered: Mapping[model.PciAddress, str] = dataclasses.field(
        default_factory=dict)
    """The fixed vGPUs that virtual functions had before a reboot."""
    machine: Machine = cast('Machine', None)
    """None if the machine is simulated."""
    placement: placement_module.Answer | None = None
    placement_conf: Placement = cast('Placement', None)
    """None if this host has no ``placement.conf`` that can be read."""
    placement_conf_problem: str = ''
    by_role: Mapping[model.PciAddress, partition_roles.FactsByRole] = (
        dataclasses.field(default_factory=dict))
    """The facts about each GPU in mode auto, as read in each of its roles."""
    fabric: model.Fabric | None = None
    """None without NVSwitches."""
    migrations: Mapping[model.PciAddress, bool | None] = (
        dataclasses.field(default_factory=dict))
    """Whether the vGPUs of GPUs without mdev can be live-migrated."""
    providers: int = 0
    """How many resource providers the GPUs of this host have or would have."""
    state_path: str = ''
    """``[gpu] state_path``."""

    def governed(self) -> Iterator[tuple[model.Gpu, policy.Policy]]:
        """The GPUs that are offered in some mode, with their policies."""
        for gpu in self.host.gpus:
            governing = self.settings.policy_for(gpu)
            if governing and governing.mode is not policy.Mode.OFF:
                yield gpu, governing

    def with_vgpus(self) -> Iterator[tuple[model.Gpu, policy.Policy]]:
        """The governed GPUs that may carry vGPUs, with or without MIG.

        A GPU in mode auto that has no such role now appears as it would be in
        one.
        """
        for gpu, governing in self.governed():
            roles = [role for role in governing.modes if role in _VGPU_MODES]
            if roles:
                yield self._in_role(gpu, roles), governing

    def _in_role(self, gpu: model.Gpu, roles: Iterable[policy.Mode]
                 ) -> model.Gpu:
        for role in () if gpu.visible_to_nvml else roles:
            known = self.by_role.get(gpu.address, {}).get(role.value)
            if known is not None and not known.problem:
                return partition_roles.gpu_in_role(gpu, role, known)
        return gpu

    def programs(self, name: str) -> bool | None:
        """Whether the machine can run a program; None if that was not
        examined.
        """
        return self.machine.programs.get(name)
