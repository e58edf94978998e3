# SPDX-License-Identifier: Apache-2.0

"""A cloud whose one host is full, and clocks around other software."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import time
import warnings

import pynvml
import stopwatch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / 'tools'))
# The deprecation warnings of the released services do not concern this
# program.
warnings.simplefilter('ignore')

from cyborg_gpu_driver.report import drift  # noqa: E402
from demo_lib import cloud as demo_cloud  # noqa: E402
from demo_lib import database  # noqa: E402

HOST = 'dgx-a100-80'
INSTANCES_PER_GPU = 7
RESOURCE_CLASS = 'CUSTOM_NVIDIA_1G_10GB'
TIMEOUT = 600
"""Seconds for the first report, however busy this machine is."""
PROFILE = 'slice'
"""The device profile that asks for one :data:`RESOURCE_CLASS`."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one operation. Times are in milliseconds."""

    calls: int
    total: float
    placement: float
    simulator: float
    disk: float
    cpu: float
    """CPU time of the driver's own code in the thread of the operation."""

    @property
    def own(self):
        return self.total - self.placement - self.simulator - self.disk


class FullHost:
    """The cloud with its full host, and clocks around other software.

    :param directory: an empty directory.
    :param host: the simulated host, whose GPUs take seven 1g.10gb each.
    :param shared: whether other processes and commands can see the machine.
        The machine is then kept in a file, which makes it slower.
    """

    def __init__(self, directory: str, host: str = HOST,
                 shared: bool = False):
        drift.INTERVAL = 0.0  # Each report is a full one.
        templates = database.Templates(subdirectory(directory, 'templates'))
        templates.make()
        self.cloud = demo_cloud.Cloud(
            subdirectory(directory, 'cloud'), templates, 'compute1',
            ['cyborg_gpu_driver'],
            {'DEFAULT': {'rpc_response_timeout': TIMEOUT},
             'gpu': {'simulate': host,
                     'state_path': subdirectory(directory, 'state'),
                     **({'simulate_state': os.path.join(
                         directory, 'hardware.json')} if shared else {})}})
        self.driver = self.cloud.agent._rt.acc_drivers[0]
        self.placement, self.simulator, self.disk = (
            stopwatch.Stopwatch(), stopwatch.Stopwatch(),
            stopwatch.Stopwatch())
        self.machine = None
        try:
            # Cyborg creates the providers at the first report.
            self.cloud.report()
            self.cloud.report()
            self.machine = pynvml.nvmlLib.machine
            self.servers = self._fill()
            self.placement.wrap(self.driver._running().tree.client,
                                'get', 'put')
            self.simulator.wrap(self.machine.library, 'call')
            self.simulator.wrap(self.machine.os, *stopwatch.SYSTEM_CALLS)
            self.disk.wrap(os, 'fsync', 'replace')
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the cloud and the clocks."""
        for watch in (self.placement, self.simulator, self.disk):
            watch.unwrap()
        self.cloud.stop()
        if self.machine is not None:
            self.machine.uninstall()

    def _fill(self):
        self.cloud.cyborg.create_device_profile(
            PROFILE, {f'resources:{RESOURCE_CLASS}': '1'})
        return [self.cloud.nova.create_server(PROFILE) for _ in range(
            INSTANCES_PER_GPU * len(self.machine.gpus))]

    def measure(self, operation, *arguments):
        """Carry out an operation and return its cost."""
        self.machine.reset_calls()
        watches = (self.placement, self.simulator, self.disk)
        for watch in watches:
            watch.reset()
        start, cpu = time.perf_counter(), time.thread_time()
        operation(*arguments)
        total, cpu = time.perf_counter() - start, time.thread_time() - cpu
        return Cost(sum(self.machine.calls.values()), total * 1e3,
                    *(watch.seconds * 1e3 for watch in watches),
                    1e3 * (cpu - sum(watch.cpu for watch in watches)))


def handle(server) -> tuple[str, str, str]:
    """Return the agent's arguments for the accelerator of a server."""
    (arq,) = server.arqs
    info = arq['attach_handle_info']
    address = '{domain}:{bus}:{device}.{function}'.format(**info)
    return address, info['asked_type'], arq['attach_handle_uuid']


def admin():
    """Return the context with which the agent reports."""
    from cyborg import context
    return context.get_admin_context()


def subdirectory(parent: str, name: str) -> str:
    """Create a directory in another one, and return its path."""
    path = os.path.join(parent, name)
    os.makedirs(path)
    return path
