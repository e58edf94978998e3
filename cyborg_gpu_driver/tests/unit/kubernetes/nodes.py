# SPDX-License-Identifier: Apache-2.0

"""Nodes for tests, with boards as NVML describes them."""

import dataclasses

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.kubernetes import node
from cyborg_gpu_driver.partition import target
from cyborg_gpu_driver.tests.unit.partition import boards

A100 = boards.gpu(
    boards.A100_40, model='NVIDIA A100-SXM4-40GB', architecture='ampere',
    memory_mib=40960)
A100_80 = boards.gpu(
    boards.A100_80, model='NVIDIA A100-SXM4-80GB', architecture='ampere',
    memory_mib=81920)
L40S = boards.gpu(
    (), model='NVIDIA L40S', architecture='ada', memory_mib=46068,
    class_code='0302', mig=None)
T4 = boards.gpu((), model='Tesla T4', architecture='turing',
                memory_mib=15360, mig=None)
V100 = boards.gpu((), model='Tesla V100-SXM2-16GB', architecture='volta',
                  memory_mib=16384, mig=None)
RTX = boards.gpu(
    boards.RTX_PRO_6000, architecture='blackwell', memory_mib=97887,
    model='NVIDIA RTX PRO 6000 Blackwell Server Edition')


def cut(gpu, devices=None):
    """Return a GPU with a layout.

    :param devices: counts of MIG devices by name; None without MIG mode.
    """
    return node.NodeGpu(gpu, target.wanted(
        gpu, devices is not None, devices or {}))


def of(*gpus, **options):
    """Return a node of GPUs from :func:`cut`, at an address each."""
    return node.Node(**{'name': 'halves', 'gpus': tuple(
        dataclasses.replace(item, gpu=dataclasses.replace(
            item.gpu, address=model.PciAddress(0, 7 + index, 0, 0)))
        for index, item in enumerate(gpus)), **options})
