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

"""The collector that ironic-python-agent runs at an inspection.

Named ``nvidia-gpus`` in ``ipa-inspection-collectors``. It reads and sends;
what becomes of it is decided by the hook of the same name in Ironic's
conductor.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from oslo_config import cfg

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.baremetal.inventory import inventory
from cyborg_gpu_driver.baremetal.inventory import modes
from cyborg_gpu_driver.baremetal.inventory import names
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host.health import reader as health_reader
from cyborg_gpu_driver.host.nvml import modes as nvml_modes
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health

_DRIVER = 'nvidia'


def collect(data: dict[str, Any], failures: Any) -> None:
    """Add the machine's GPUs to what is sent to Ironic.

    A machine without GPUs sends that it has none. Without NVIDIA's driver
    in the ramdisk it is sent what sysfs tells.

    :param data: what is sent; gets the key ``nvidia_gpus``.
    :param failures: ironic_python_agent.utils.AccumulatedFailures; gets one
        where it cannot be told which GPUs there are, as the inspection is
        then to fail and not to find a node without any.
    """
    gpu_conf.register_opts(cfg.CONF)
    try:
        machine = node.Node(cfg.CONF)
        session = machine.platform.nvml
    except exception.GpuDriverError as error:
        failures.add('NVIDIA GPUs: %s', error)
        return
    try:
        host = machine.reader.snapshot()
        if host.problems and not host.gpus:
            failures.add('NVIDIA GPUs: %s', '; '.join(host.problems))
            return
        data[names.KEY] = inventory.to_dict(
            host, _health(host, session), _modes(host, session),
            _cliques(host, session))
    finally:
        # What keeps a GPU open stands in the way of its reset.
        session.reset()


def _modes(host: model.Host, session: nvml.NvmlSession) -> modes.Modes:
    """Modes that a tenant could change; without those that are not told."""
    if host.nvml_problem is not None:
        return modes.Modes()
    ecc = {}
    for gpu in host.gpus:
        if gpu.visible_to_nvml:
            with contextlib.suppress(exception.NvmlError):
                found = nvml_modes.ecc(session, gpu.address)
                if found is not None:
                    ecc[gpu.address] = found.pending
    mode = None
    with contextlib.suppress(exception.NvmlError):
        mode = nvml_modes.confidential_computing(session)
    return modes.Modes(ecc, confidential_computing=mode)


def _cliques(host: model.Host, session: nvml.NvmlSession
             ) -> dict[model.PciAddress, str]:
    """NVLink cliques of the GPUs that are in one and tell it."""
    found = {}
    if host.nvml_problem is None:
        for gpu in host.gpus:
            if gpu.visible_to_nvml:
                with contextlib.suppress(exception.NvmlError):
                    clique = nvml_modes.clique(session, gpu.address)
                    if clique is not None:
                        found[gpu.address] = clique
    return found


def _health(host: model.Host, session: nvml.NvmlSession
            ) -> dict[model.PciAddress, tuple[health.Condition, ...]]:
    """What ails the GPUs that NVIDIA's driver has."""
    found = {}
    if host.nvml_problem is None:
        asked = health_reader.HealthReader(session)
        for gpu in host.gpus:
            if gpu.driver == _DRIVER or not gpu.in_pci_sysfs:
                facts = asked.read(gpu.address)
                if facts.answered:
                    found[gpu.address] = health.seen((), facts, time.time())
    return found
