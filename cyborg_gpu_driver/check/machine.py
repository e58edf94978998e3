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


"""The facts about a real machine, beside its GPUs, that checks examine."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import shutil
import socket
from collections.abc import Iterable
from collections.abc import Mapping
from importlib import metadata

from oslo_utils import importutils

from cyborg_gpu_driver import cyborg_hooks
from cyborg_gpu_driver.check import processes
from cyborg_gpu_driver.check.rules import access
from cyborg_gpu_driver.nova import capability

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
    running: processes.Running | None = None
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


def look(state_path: str, programs: Iterable[str], proc: str = '/proc',
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
        running=processes.running(proc),
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
