# SPDX-License-Identifier: Apache-2.0

"""The driver for ``[agent] enabled_drivers = cyborg_gpu_driver``."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Any

from cyborg.accelerator.drivers.gpu import base
from cyborg.common import placement_client
from oslo_config import cfg
from oslo_log import log as logging

from cyborg_gpu_driver import agent
from cyborg_gpu_driver import cyborg_hooks
from cyborg_gpu_driver import exception
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import log_once
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.metrics import state
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.report import objects

LOG = logging.getLogger(__name__)

_IN_TREE = 'nvidia_gpu_driver'
_PLACEMENT_TIMEOUT = 20
"""Seconds for one answer. A bind ends with a write to Placement, and Cyborg
waits ``[DEFAULT] rpc_response_timeout``, 60 seconds, for the bind."""


class GPUDriver(base.GPUDriver):
    """NVIDIA GPUs: whole, as vGPU and as MIG slices created at bind.

    The agent creates the driver in its master process, then calls
    :meth:`discover` in a forked one. So the constructor opens nothing of the
    machine. It reads the configuration once: a restart of the agent, which
    servers do not notice, applies a change. A worker that the master process
    replaces keeps the settings of the start.

    :raises InvalidConfiguration: if ``[gpu]`` or a policy is wrong,
        ``[placement]`` has no credentials, the host has another name than
        before, or another agent works on it; the agent then does not start.
    """

    VENDOR = 'cyborg_gpu_driver'

    def __init__(self) -> None:
        self._conf = cfg.CONF
        gpu_conf.register_opts(self._conf)
        _check_placement(self._conf.placement)
        self._settings = policies.read(self._conf)
        _check_name(self._conf)
        # An agent that cannot write there starts. Its reports say why.
        with contextlib.suppress(exception.JournalError):
            self._role = locks.agent(gpu_conf.state_path(self._conf))
        self._mutex = threading.Lock()
        self._agent: agent.Agent | None = None
        self._process: int | None = None
        self._failure = log_once.LogOnce()
        atexit.register(_stop, weakref.ref(self))
        self._mdev_problem = cyborg_hooks.mismatch()
        if not self._mdev_problem:
            cyborg_hooks.install(self.bind, self.unbind)
            self._mdev_problem = capability.mdev_problem()
        if self._mdev_problem:
            LOG.error('Servers cannot have vGPUs and MIG slices with these '
                      'releases of Cyborg and Nova: %s. Only whole GPUs are '
                      'offered.', self._mdev_problem)

    def discover(self) -> list[Any]:
        """Everything to report, as Cyborg's driver objects.

        If the report fails, the driver tells Cyborg to leave everything as it
        is, and logs the reason once.

        :raises Exception: if the last report is not available either. The
            agent then loses the reports of all its drivers until the next
            report. But an empty list would delete all devices of this driver.
        """
        with self._failure.noted(
                LOG.error, 'The GPUs cannot be reported, and Cyborg keeps '
                'the last report'):
            return objects.driver_devices(self._running().report_changes())
        return objects.driver_devices(self._running().held())

    def stop(self) -> None:
        """Stop all work of this process between two reports.

        cyborg-agent does not notify its drivers when it ends, so this method
        is also called at the exit of the interpreter. A later call of the
        driver starts everything again.
        """
        with self._mutex:
            running = self._agent if self._process == os.getpid() else None
            self._agent = None
        if running is not None:
            running.stop()

    def bind(self, pci_addr: str, asked_type: str, ah_uuid: str) -> None:
        """Create what an MDEV handle stands for; called by the hooks.

        :raises GpuDriverError: if the driver cannot create it; nothing has
            changed.
        """
        running = self._running()
        if self._is_in_trees(running, pci_addr):
            cyborg_hooks.original('create_mdev_privileged')(
                pci_addr, asked_type, ah_uuid)
            return
        try:
            running.bind(pci_addr, asked_type, ah_uuid)
        except exception.GpuDriverError as error:
            LOG.error('Bind of handle %(handle)s failed: %(error)s',
                      {'handle': ah_uuid, 'error': error})
            raise

    def unbind(self, pci_addr: str, asked_type: str, ah_uuid: str) -> None:
        """Remove what an MDEV handle stands for; called by the hooks.

        Never raises, because Cyborg would keep the handle in use forever.
        The driver logs and ignores a malformed request and one for a device
        of another driver. What it cannot remove now, a later report removes.
        """
        try:
            running = self._running()
            if self._is_in_trees(running, pci_addr):
                cyborg_hooks.original('remove_mdev_privileged')(
                    pci_addr, asked_type, ah_uuid)
                return
            running.unbind(pci_addr, asked_type, ah_uuid)
        except exception.GpuDriverError as error:
            LOG.error('Unbind of handle %(handle)r: %(error)s',
                      {'handle': ah_uuid, 'error': error})
        except Exception:
            LOG.exception('Unbind of handle %r failed', ah_uuid)

    def _running(self) -> agent.Agent:
        """This process's agent, created at its first use."""
        with self._mutex:
            if self._agent is None or self._process != os.getpid():
                self._agent = agent.Agent(
                    self._conf, self._settings, self._conf.host,
                    self._placement, self._mdev_problem)
                self._process = os.getpid()
            return self._agent

    def _placement(self) -> placement_client.PlacementClient:
        """Cyborg's Placement client, which waits no longer than a bind may.

        Without ``[placement] timeout``, keystoneauth waits forever.
        """
        if self._conf.placement.timeout is None:
            self._conf.set_default('timeout', _PLACEMENT_TIMEOUT,
                                   'placement')
        return placement_client.PlacementClient()

    def _is_in_trees(self, running: agent.Agent, pci_addr: str) -> bool:
        """Whether a handle belongs to Cyborg's in-tree GPU driver.

        The operator may enable that driver beside this one, for GPUs that
        this driver ignores or for GPUs of another vendor.
        """
        return (_IN_TREE in self._conf.agent.enabled_drivers
                and not running.owns(model.PciAddress.parse(pci_addr)))


def _stop(reference: weakref.ReferenceType[GPUDriver]) -> None:
    """Stop a driver at the exit of the interpreter, if it still exists."""
    driver = reference()
    if driver is not None:
        driver.stop()


def _check_placement(group: cfg.ConfigOpts.GroupAttr) -> None:
    """Check that ``[placement]`` has credentials."""
    if not (group.auth_type or group.auth_section):
        raise exception.InvalidConfiguration(
            group='placement', option='auth_type', value=group.auth_type,
            reason='the driver writes the free capacity of a GPU to '
            'Placement: set auth_type and the options that it needs in '
            'cyborg.conf of this host, as in nova.conf of nova-compute')


def _check_name(conf: cfg.ConfigOpts) -> None:
    """Check that a host with servers has the name of its last report."""
    path = gpu_conf.state_path(conf)
    with contextlib.suppress(exception.JournalError):
        before = state.read(path)
        if before is not None and before.hostname != conf.host and any(
                record.ledger.running
                for record in store.Store(path).records().values()):
            raise exception.InvalidConfiguration(
                group='DEFAULT', option='host', value=conf.host,
                reason='servers have GPUs of this host, which Cyborg, Nova '
                f'and Placement know as {before.hostname}: give it that name '
                'until these servers are deleted')
