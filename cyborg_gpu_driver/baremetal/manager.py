# SPDX-License-Identifier: Apache-2.0

"""The hardware manager that ironic-python-agent loads on GPU nodes."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

from ironic_python_agent import errors
from ironic_python_agent import hardware
from oslo_config import cfg
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.baremetal import cleaning
from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.baremetal import layout_sources
from cyborg_gpu_driver.baremetal import layouter
from cyborg_gpu_driver.baremetal import modes
from cyborg_gpu_driver.baremetal import ramdisk
from cyborg_gpu_driver.conf import baremetal as baremetal_conf
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import health as host_health
from cyborg_gpu_driver.host.nvml import modes as nvml_modes
from cyborg_gpu_driver.host.nvml import session as nvml
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import health

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

_INTERFACE = 'deploy'
_LAYOUT_ARGS = {
    'layout': {
        'description': (
            'The layout of the GPUs in the deployed system: the name of a '
            'layout of "cyborg-gpu layout generate" or of [gpu_baremetal] '
            'layout_files; or the layout itself, as in a mig-parted file: the '
            'items of one entry, or {NAME: items}. The step writes it to the '
            'image, so it must run after the image is written and before the '
            'boot loader is installed: priorities 61 to 79.'),
        'required': True,
    },
}


class NvidiaGpuHardwareManager(hardware.HardwareManager):
    """Steps on the NVIDIA GPUs of the node that the ramdisk runs on.

    A node is offered the steps that its GPUs and the ramdisk support.
    """

    HARDWARE_MANAGER_NAME = 'nvidia-gpus'
    HARDWARE_MANAGER_VERSION = '1.0'

    @functools.cached_property
    def _ramdisk(self):
        """The ramdisk, opened on first use, after the options are read."""
        baremetal_conf.register_opts(CONF)
        return ramdisk.Ramdisk(CONF)

    def evaluate_hardware_support(self) -> int:
        """Return SERVICE_PROVIDER on every machine.

        Only the node's properties, which are not known here, show whether a
        machine without GPUs has lost them. An exception here would end the
        agent before it could report the reason.
        """
        return hardware.HardwareSupport.SERVICE_PROVIDER

    def get_clean_steps(self, node, ports) -> list[dict[str, Any]]:
        """Return the steps of cleaning, which run automatically."""
        return self._offered(node, {
            name: _step(name, priority, abortable=name == cleaning.VERIFY)
            for name, priority in cleaning.CLEAN_PRIORITIES.items()})

    def get_deploy_steps(self, node, ports) -> list[dict[str, Any]]:
        """Return the steps of deployments, which run if a template asks."""
        return self._offered(node, {inventory.APPLY_LAYOUT: _step(
            inventory.APPLY_LAYOUT, argsinfo=_LAYOUT_ARGS)})

    def get_service_steps(self, node, ports) -> list[dict[str, Any]]:
        """Return the steps for a node with a tenant, which run on request."""
        return self._offered(node, {
            inventory.APPLY_LAYOUT: _step(inventory.APPLY_LAYOUT,
                                          argsinfo=_LAYOUT_ARGS),
            **{name: _step(name, abortable=name == cleaning.VERIFY)
               for name in cleaning.CLEAN_PRIORITIES}})

    def apply_gpu_layout(self, node, ports, layout) -> dict[str, Any]:
        """Put a layout into the deployed image, and set lasting modes."""
        with _told(node):
            return layouter.apply_layout(self._ramdisk, layout,
                                         layout_sources.of_operator(CONF))

    def clear_gpu_partitions(self, node, ports) -> dict[str, Any]:
        """Remove everything that partitions the GPUs."""
        with _told(node):
            return {'gpus': cleaning.Cleaner(self._ramdisk).clear(
                _properties(node))}

    def reset_gpus(self, node, ports) -> dict[str, Any]:
        """Reset every GPU and check it."""
        with _told(node):
            return {'gpus': ramdisk.each(
                self._ramdisk.ours().gpus,
                lambda gpu: self._ramdisk.resetter.reset(gpu, lambda: None))}

    def verify_gpus(self, node, ports) -> dict[str, Any]:
        """Check that the GPUs are the node's, healthy, idle and whole."""
        with _told(node):
            return {'gpus': cleaning.Cleaner(self._ramdisk).verify(
                _properties(node),
                # If the node has a tenant, the modes are the tenant's.
                has_tenant=_is_service(node))}

    def _offered(self, node, candidates):
        inspected = cleaning.had_gpus(_properties(node))
        try:
            host = self._ramdisk.ours()
        except exception.GpuDriverError as error:
            LOG.error('NVIDIA GPUs: %s', error)
            # Each step fails with that error, so that Ironic shows the error.
            return (list(candidates.values())
                    if inspected or ramdisk.may_have_gpus(CONF) else [])
        recorded = cleaning.recorded_modes(_properties(node))
        resettable = [gpu.address for gpu in host.gpus
                      if self._ramdisk.resetter.can_reset(gpu)]
        found = []
        for name, step in candidates.items():
            obstacle = cleaning.obstacle(name, host, resettable, inspected,
                                         bool(recorded.ecc))
            if obstacle:
                LOG.info('Step %(step)s is not available: %(reason)s',
                         {'step': name, 'reason': obstacle})
            else:
                found.append(step)
        return found


def _step(name, priority=0, **others):
    return {'step': name, 'priority': priority, 'interface': _INTERFACE,
            'reboot_requested': False, **others}


@contextlib.contextmanager
def _told(node):
    """Raise errors as Ironic's, to show them in the node's ``last_error``."""
    try:
        yield
    except exception.GpuDriverError as error:
        raise _error_class(node)(str(error)) from error


def _error_class(node):
    """Return the error class of the kind of step that is executed."""
    if _is_service(node):
        return errors.ServicingError
    if node.get('clean_step'):
        return errors.CleaningError
    return errors.DeploymentError


def _properties(node):
    return node.get('properties') or {}


def _is_service(node):
    return bool(node.get('service_step'))


# The collector that ironic-python-agent runs at an inspection.
#
# Its name is ``nvidia-gpus`` in ``ipa-inspection-collectors``. It only reads
# and sends. The hook of the same name in Ironic's conductor decides what to do
# with the result.

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
        data[inventory.KEY] = inventory.to_dict(
            host, *_facts(host, session))
    finally:
        # An open GPU cannot be reset.
        session.reset()


def _facts(host: model.Host, session: nvml.NvmlSession) -> tuple:
    """Return what NVML says of the GPUs, as far as readable.

    :returns: the health conditions of the GPUs that use NVIDIA's driver, the
        modes that a tenant could change, and the NVLink cliques.
    """
    conditions: dict[model.PciAddress, tuple[health.Condition, ...]] = {}
    ecc: dict[model.PciAddress, bool] = {}
    cliques: dict[model.PciAddress, str] = {}
    if host.nvml_problem is not None:
        return conditions, modes.Modes(), cliques
    for gpu in host.gpus:
        if gpu.driver == _DRIVER:
            facts = host_health.read(session, gpu.address)
            if facts.answered:
                conditions[gpu.address] = health.seen((), facts, time.time())
        if gpu.visible_to_nvml:
            with contextlib.suppress(exception.NvmlError):
                found = nvml_modes.ecc(session, gpu.address)
                if found is not None:
                    ecc[gpu.address] = found.pending
            with contextlib.suppress(exception.NvmlError):
                clique = nvml_modes.clique(session, gpu.address)
                if clique is not None:
                    cliques[gpu.address] = clique
    mode = None
    with contextlib.suppress(exception.NvmlError):
        mode = nvml_modes.confidential_computing(session)
    return conditions, modes.Modes(ecc, confidential_computing=mode), cliques
