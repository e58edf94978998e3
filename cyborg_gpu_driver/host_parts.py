# SPDX-License-Identifier: Apache-2.0

"""The parts that read a host: policies, platform, snapshots, records.

Nothing here imports code that changes a GPU, so a command that only reads
starts quickly.
"""

from __future__ import annotations

import functools

from oslo_config import cfg

from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import store


class HostParts:
    """The parts that read a host, each created at its first use.

    So a process that only forks another one opens nothing, and a command
    creates only what it needs.
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 settings: policies.Settings | None = None):
        self.conf = conf
        self._settings = settings

    @functools.cached_property
    def settings(self) -> policies.Settings:
        """The operator's policies."""
        return self._settings or policies.read(self.conf)

    @functools.cached_property
    def state_path(self) -> str:
        """The directory of records and locks: ``[gpu] state_path``."""
        return gpu_conf.state_path(self.conf)

    @functools.cached_property
    def platform(self) -> platform.Platform:
        """The machine itself, real or simulated."""
        return platform.from_conf(self.conf)

    @functools.cached_property
    def reader(self) -> reader.HostReader:
        """Takes snapshots."""
        return reader.HostReader(self.platform)

    @functools.cached_property
    def records(self) -> store.Store:
        """The records of the GPUs, with what is bound to attach handles."""
        return store.of(self.state_path)

    def ignores(self, gpu: model.Gpu) -> bool:
        """Whether ``[gpu] ignored_devices`` names the GPU."""
        return self.settings.ignores(gpu)

    def ignored(self, host: model.Host) -> frozenset[model.PciAddress]:
        """The GPUs of a snapshot that the operator excluded."""
        return frozenset(gpu.address for gpu in host.gpus
                         if self.ignores(gpu))
