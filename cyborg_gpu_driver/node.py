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


"""One host with its GPUs: what agent, commands and ramdisk work with.

Everything that needs the machine, the policies or the records of a host gets
them from here, so that all programs put the same parts together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from oslo_config import cfg

from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import model
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.program import apply
from cyborg_gpu_driver.program import fixed
from cyborg_gpu_driver.program import hardware
from cyborg_gpu_driver.program import health
from cyborg_gpu_driver.program import journal
from cyborg_gpu_driver.program import live
from cyborg_gpu_driver.program import orphans
from cyborg_gpu_driver.program import prepare
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.program import reset
from cyborg_gpu_driver.program import restore
from cyborg_gpu_driver.report import claims


class Node:
    """The parts of one host, each made at its first use.

    So nothing is opened in a process that only forks another one, and a
    command makes only what it needs.

    :param conf: with ``[gpu]`` registered.
    :param settings: the operator's policies; None reads them from ``conf``.
    :param claimed: says why a GPU may have servers that leave no trace on
        the host, ``''`` if it has none; None goes by the agent's last report.
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 settings: policies.Settings | None = None,
                 claimed: Callable[[model.PciAddress], str] | None = None):
        self.conf = conf
        self._settings = settings
        self._claimed = claimed

    @functools.cached_property
    def settings(self) -> policies.Settings:
        """The operator's policies.

        :raises InvalidConfiguration: naming what is wrong.
        """
        return self._settings or policies.read(self.conf)

    @functools.cached_property
    def state_path(self) -> str:
        """Where records and locks are: ``[gpu] state_path``."""
        return gpu_conf.state_path(self.conf)

    @functools.cached_property
    def platform(self) -> platform.Platform:
        """The machine itself, real or simulated.

        :raises SimulationError: if ``[gpu] simulate`` names none.
        """
        return platform.from_conf(self.conf)

    @functools.cached_property
    def reader(self) -> reader.HostReader:
        """Takes snapshots."""
        return reader.HostReader(self.platform)

    @functools.cached_property
    def live(self) -> live.LiveHost:
        """The last snapshot, kept up to date with our own changes."""
        return live.LiveHost(self.reader, self.settings, self.journal.entries)

    @functools.cached_property
    def journal(self) -> journal.Journal:
        """What is bound to attach handles."""
        return journal.Journal(self.state_path)

    @functools.cached_property
    def health(self) -> health.HealthKeeper:
        """How the GPUs are."""
        return health.HealthKeeper(
            self.platform, self.state_path,
            clean_checks=self.conf.gpu.health_clean_checks,
            ignored_xids=self.conf.gpu.health_ignored_xids)

    @functools.cached_property
    def hardware(self) -> hardware.Hardware:
        """Makes and removes what handles stand for."""
        return hardware.Hardware(self.platform)

    @functools.cached_property
    def applier(self) -> apply.Applier:
        """Changes layouts."""
        return apply.Applier(self.platform, self.state_path)

    @functools.cached_property
    def preparer(self) -> prepare.Preparer:
        """Makes GPUs ready for their policies."""
        return prepare.Preparer(self.platform, self._taker, self.state_path,
                                self.settings, self.claimed,
                                unfit=self._unfit)

    @functools.cached_property
    def fixed(self) -> fixed.FixedVgpus:
        """Makes and removes the fixed vGPUs of policies."""
        return fixed.FixedVgpus(self.platform, self._taker, self.state_path,
                                self.settings)

    @functools.cached_property
    def restorer(self) -> restore.Restorer:
        """Makes again after a reboot what was there before."""
        return restore.Restorer(self.platform, self.applier, self.state_path,
                                self.settings, self.claimed)

    @functools.cached_property
    def vgpus(self) -> orphans.Keeper:
        """Knows whose the vGPUs are."""
        return orphans.Keeper(self.platform, self.state_path, self.settings)

    @functools.cached_property
    def resetter(self) -> reset.Resetter:
        """Resets GPUs."""
        return reset.Resetter(self.platform)

    @functools.cached_property
    def _taker(self):
        return prepare.StepTaker(self.platform, self.reader)

    def act_here(self) -> None:
        """Make privileged changes in this process, and not in a daemon."""
        privileged.run_here(self.platform)

    def ignores(self, gpu: model.Gpu) -> bool:
        """Whether ``[gpu] ignored_devices`` names the GPU."""
        return self.settings.ignores(gpu)

    def claimed(self, address: model.PciAddress) -> str:
        """Why a GPU may have servers that leave no trace on this host.

        :returns: ``''`` if it has none.
        """
        if self._claimed is not None:
            return self._claimed(address)
        return claims.of_reports(self.state_path, address)

    def _unfit(self, address):
        """Why a GPU must not be given to a server now; or ``''``."""
        verdict = self.health.sick(address)
        return '; '.join(verdict.reasons) if verdict else ''
