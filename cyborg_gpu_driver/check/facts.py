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

"""The facts that the checks examine, gathered once."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import shutil
import socket
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from importlib import metadata

from oslo_utils import importutils

from cyborg_gpu_driver import cyborg_hooks
from cyborg_gpu_driver.check import placement as placement_module
from cyborg_gpu_driver.check import services
from cyborg_gpu_driver.check.rules import access
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import domain
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.nova import conf_file
from cyborg_gpu_driver.partition import policy
from cyborg_gpu_driver.partition import roles as partition_roles

# The facts about a real machine, beside its GPUs, that checks examine.

_RELEASE = re.compile(r'(\d+)\.(\d+)', re.ASCII)


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
    running: placement_module.Running | None = None
    """None if processes cannot be listed."""
    devices: Mapping[str, access.Node] = dataclasses.field(
        default_factory=dict)
    """NVIDIA's device nodes by path, including :attr:`mig_device`."""
    mig_device: str | None = None
    """The device node, or the file, that grants the use of MIG."""
    state: access.Node | None = None
    """``[gpu] state_path``; None if it does not exist."""
    programs: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """Whether each program exists and can be run, by name or path."""

    @property
    def agent(self) -> access.User | None:
        """The user that cyborg-agent runs as; None if no agent was found."""
        return self.running.agent if self.running else None


def read_machine(state_path: str, programs: Iterable[str], proc: str = '/proc',
                 dev: str = '/dev') -> Machine:
    """Gather the facts about this machine.

    :param state_path: ``[gpu] state_path``.
    :param programs: the programs to look for, by name or path.
    :param proc: where procfs is mounted.
    :param dev: the directory of the device nodes.
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
        running=placement_module.running(proc),
        devices={path: node for path in paths if (node := _node(path))},
        mig_device=mig_device, state=_node(state_path),
        programs={name: bool(shutil.which(name)) for name in programs})


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
    return access.Node(found.st_uid, found.st_gid, found.st_mode & 0o7777)


_VGPU_MODES = (policy.Mode.VGPU, policy.Mode.MIG)


@dataclasses.dataclass(frozen=True)
class Facts:
    """A host with its services' configuration.

    None means that the fact was not gathered. On a simulated machine, only
    the GPUs and the configuration are gathered. A check runs only with the
    facts that :mod:`cyborg_gpu_driver.check.run` says it needs.
    """

    host: model.Host
    settings: policies.Settings
    cyborg: services.Cyborg | None = None
    cyborg_problem: str = ''
    """Why ``cyborg`` is None."""
    nova: conf_file.NovaConf | None = None
    """The PCI devices and mdevs that ``nova.conf`` configures."""
    nova_services: services.Nova | None = None
    """The other options of ``nova.conf``; None if ``nova`` is None."""
    nova_problem: str = ''
    """Why ``nova`` and ``nova_services`` are None."""
    remembered: Mapping[model.PciAddress, str] = dataclasses.field(
        default_factory=dict)
    """The fixed vGPUs that virtual functions had before a reboot."""
    machine: Machine | None = None
    """None if the machine is simulated."""
    placement: placement_module.Answer | None = None
    placement_conf: services.Placement | None = None
    """None if ``placement.conf`` was not read."""
    placement_conf_problem: str = ''
    """Why ``placement_conf`` is None."""
    by_role: Mapping[model.PciAddress, partition_roles.FactsByRole] = (
        dataclasses.field(default_factory=dict))
    """The facts about each GPU in mode auto, as read in each of its roles."""
    fabric: model.Fabric | None = None
    """None without NVSwitches."""
    migrations: Mapping[model.PciAddress, domain.Migration] = (
        dataclasses.field(default_factory=dict))
    """Migration facts of the GPUs that make vGPUs without mdev."""
    peers: tuple[placement_module.Peer, ...] = ()
    """The hosts that servers migrate live to and from."""
    state_path: str = ''
    """``[gpu] state_path``."""
    sriov_manage: str = ''
    """Path of NVIDIA's script."""
    mdevctl: str = ''
    """Name of the program."""

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

    def on(self, seen: Machine) -> Facts:
        """Return these facts with those of the machine."""
        return dataclasses.replace(self, machine=seen)

    def compared(self, peers: tuple[placement_module.Peer, ...]) -> Facts:
        """Return these facts with the hosts to compare with."""
        return dataclasses.replace(self, peers=peers)

    def asked(self, answer: placement_module.Answer) -> Facts:
        """Return these facts with Placement's answer."""
        return dataclasses.replace(self, placement=answer)

    def programs(self, name: str) -> bool | None:
        """Whether the machine can run a program; None if that was not
        examined.
        """
        assert self.machine is not None
        return self.machine.programs.get(name)
