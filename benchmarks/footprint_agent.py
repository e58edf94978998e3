# SPDX-License-Identifier: Apache-2.0

"""The agent that footprint.py measures; prints JSON.

usage: python benchmarks/footprint_agent.py HOST REPEAT CONFIG_FILE...

The program imports what cyborg-agent imports, and no other service.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import pathlib
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / 'tools'))

# Imported before the modules that would select eventlet.
import demo_lib  # isort: skip # noqa: F401

import counting
import oslo_messaging
import pynvml
import stopwatch
from cyborg import context
from cyborg import objects
from cyborg import privsep
from cyborg.agent import manager
from cyborg.cmd import agent as _command  # noqa: F401 what it imports
from cyborg.common import config as cyborg_config
from cyborg.common import constants
from cyborg.common import rpc
from cyborg.objects import base as objects_base
from oslo_config import cfg
from oslo_messaging.rpc import dispatcher

from cyborg_gpu_driver.simulator.machine import machine as machine_module

_SETTLED = 5
"""Reports until a report contains nothing new."""


class Conductor:
    """Accepts the agent's reports as cyborg-conductor does; discards them."""

    target = oslo_messaging.Target(version='1.0')

    def __init__(self):
        self.devices = 0

    def report_data(self, context, hostname, driver_device_list):
        """Count the devices; the released agent calls this through RPC."""
        self.devices = len(driver_device_list)


def serve(host: str, repeat: str, *paths: str) -> None:
    """Run as an agent, and print the cost as JSON.

    :param host: the simulated machine. If no device was reported, its
        memory is measured afterwards.
    :param repeat: how many reports.
    :param paths: the paths of configuration files for Cyborg.
    """
    cyborg_config.parse_args(['cyborg', *(
        word for path in paths for word in ('--config-file', path))])
    objects.register_all()
    # Running without a privsep daemon favors the in-tree driver.
    privsep.sys_admin_pctxt.set_client_mode(False)
    logging.disable(logging.CRITICAL)
    conductor = Conductor()
    with _served(conductor), counting.requests_sent() as sent:
        answer = _agent(conductor, sent, int(repeat))
    if not answer['devices']:
        before = memory()
        machine = machine_module.Machine.load(host)
        answer['simulator_memory'] = memory() - before
        machine.opens.close()
    json.dump(answer, sys.stdout)


@contextlib.contextmanager
def _served(conductor):
    """Serve the conductor's side of the RPC, as demo.cyborg_service does."""
    server = oslo_messaging.get_rpc_server(
        rpc.TRANSPORT, oslo_messaging.Target(
            topic=constants.CONDUCTOR_TOPIC, server=cfg.CONF.host),
        [conductor], executor='threading',
        serializer=rpc.RequestContextSerializer(
            objects_base.CyborgObjectSerializer()),
        access_policy=dispatcher.DefaultRPCAccessPolicy)
    server.start()
    try:
        yield
    finally:
        server.stop()
        server.wait()


def _agent(conductor, sent, repeat):
    agent = manager.AgentManager(constants.AGENT_TOPIC, cfg.CONF.host)
    for _ in range(_SETTLED):
        agent.update_available_resource(context.get_admin_context())
    watch, machine = stopwatch.Stopwatch(), getattr(
        pynvml.nvmlLib, 'machine', None)
    if machine is not None:
        watch.wrap(machine.library, 'call')
        watch.wrap(machine.os, *stopwatch.SYSTEM_CALLS)
    taken, simulated = [], []
    before, asked = _objects(), len(sent)
    for _ in range(repeat):
        watch.reset()
        start = time.process_time()
        agent.update_available_resource(context.get_admin_context())
        taken.append(time.process_time() - start)
        simulated.append(watch.cpu)
    kept, asked = _objects() - before, len(sent) - asked
    answer = {
        'devices': conductor.devices, 'memory': memory(),
        'cpu': 1e3 * statistics.median(taken), 'reports': repeat,
        'simulator_cpu': 1e3 * statistics.median(simulated),
        'requests': asked / repeat, 'kept': max(0, kept),
        'threads': threading.active_count()}
    for driver in agent._rt.acc_drivers:
        if hasattr(driver, 'stop'):
            driver.stop()
    return answer


def _objects():
    gc.collect()
    return len(gc.get_objects())


def memory() -> float:
    """Return the resident memory of this process in MiB (proc(5), statm)."""
    with open('/proc/self/statm', encoding='ascii') as stream:
        pages = int(stream.read().split()[1])
    return pages * os.sysconf('SC_PAGE_SIZE') / (1 << 20)


if __name__ == '__main__':
    serve(*sys.argv[1:])
