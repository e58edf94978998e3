# SPDX-License-Identifier: Apache-2.0

"""The GPUs of a node, which the ramdisk uses exclusively."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver import node
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host.snapshot import model

LOG = logging.getLogger(__name__)


class Ramdisk(node.Node):
    """The host that ironic-python-agent runs on.

    This process makes the privileged changes, because in a ramdisk it runs as
    root.

    :param conf: ironic-python-agent's options; ``[gpu]`` is registered.
    :raises HostUnusable, InvalidConfiguration: if ``[gpu]`` is wrong.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        super().__init__(conf, policies.read(conf))
        self.act_here()

    def snapshot(self) -> model.Host:
        """Return the current machine, with all its GPUs."""
        return self.reader.snapshot()

    def ours(self, host: model.Host | None = None) -> model.Host:
        """Return the machine without GPUs that the operator wants left alone.

        :param host: a snapshot; None takes one.
        """
        host = host or self.snapshot()
        return dataclasses.replace(host, gpus=tuple(
            gpu for gpu in host.gpus if not self.ignores(gpu)))


def each(gpus: Iterable[model.Gpu],
         act: Callable[[model.Gpu], dict[str, Any]]) -> list[dict[str, Any]]:
    """Call ``act`` for each GPU, even if it fails on another.

    :raises StepFailed: naming each GPU on which ``act`` failed, and why.
    """
    done, failures = [], []
    for gpu in gpus:
        try:
            done.append({'gpu': str(gpu.address), **act(gpu)})
            LOG.info('GPU %(gpu)s: %(done)s', {'gpu': gpu.address,
                                               'done': done[-1]})
        except exception.GpuDriverError as error:
            failures.append(named(gpu.address, error))
            LOG.error('%s', failures[-1])
    if failures:
        raise exception.StepFailed(reason='; '.join(failures))
    return done


def named(address: model.PciAddress, reason: object) -> str:
    """Return a reason that names the GPU."""
    text = str(reason)
    return text if str(address) in text else f'GPU {address}: {text}'


def may_have_gpus(conf: cfg.ConfigOpts) -> bool:
    """Whether there is any NVIDIA GPU, or that is unknown.

    In ``[gpu]`` only the options that choose the machine need to be valid.
    """
    try:
        host = node.Node(conf).reader.snapshot()
    except exception.GpuDriverError:
        return True
    return bool(host.gpus or host.problems)
