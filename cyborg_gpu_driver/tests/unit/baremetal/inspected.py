# SPDX-License-Identifier: Apache-2.0

"""Simulated machines as an inspection finds them."""

import functools
import json

from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.partition import health
from cyborg_gpu_driver.simulator import platform
from cyborg_gpu_driver.simulator.machine import machine as simulator


@functools.cache
def snapshot(name):
    """The snapshot of a new machine; kept, because it takes a second."""
    machine = simulator.Machine.load(name)
    opened = platform.open_platform(machine)
    try:
        return reader.HostReader(opened).snapshot()
    finally:
        machine.uninstall()


def sent(host, unhealthy=None):
    """The data that the ramdisk of a host sends, as Ironic receives it.

    :param unhealthy: codes of the conditions of GPUs, by index; None if the
        ramdisk could query no GPU. It can never query a GPU that NVML does
        not see.
    """
    conditions = {} if unhealthy is None else {
        gpu.address: [health.Condition(code, 1, 2)
                      for code in unhealthy.get(index, ())]
        for index, gpu in enumerate(host.gpus) if gpu.visible_to_nvml}
    return json.loads(json.dumps(inventory.to_dict(host, conditions)))


def found(name, unhealthy=None):
    """The inventory of a machine."""
    return inventory.parse(sent(snapshot(name), unhealthy or {}))
