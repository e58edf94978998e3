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

Its name is ``nvidia-gpus`` in ``ipa-inspection-collectors``. It only reads and
sends. The hook of the same name in Ironic's conductor decides what to do with
the result.
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
    """Add the machine's GPUs to the data for Ironic.

    For a machine without GPUs the collector sends that there are none.
    Without NVIDIA's driver in the ramdisk it sends the facts of sysfs.

    :param data: the data to send; gets the key ``nvidia_gpus``.
    :param failures: ironic_python_agent.utils.AccumulatedFailures; gets a
        failure if the GPUs cannot be determined. Then the inspection fails
        instead of finding a node without GPUs.
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
        # An open GPU cannot be reset.
        session.reset()


def _modes(host: model.Host, session: nvml.NvmlSession) -> modes.Modes:
    """Return the modes that a tenant could change, as far as readable."""
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
    """Return the NVLink cliques of the GPUs that report one."""
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
    """Return the health conditions of the GPUs that use NVIDIA's driver."""
    found = {}
    if host.nvml_problem is None:
        asked = health_reader.HealthReader(session)
        for gpu in host.gpus:
            if gpu.driver == _DRIVER or not gpu.in_pci_sysfs:
                facts = asked.read(gpu.address)
                if facts.answered:
                    found[gpu.address] = health.seen((), facts, time.time())
    return found
