# SPDX-License-Identifier: Apache-2.0

"""Simulated hosts with as many GPUs as a benchmark needs."""

from __future__ import annotations

import pathlib

_HEAD = """
driver_version: '550.144.02'
gpus:
"""
_GPU = """
  - model: a100-80
    address: '0000:{bus:02x}:00.0'
    numa_node: 0
    mig: true
    vfs: all
    framework: mdev
"""


def describe(directory: str, gpus: int) -> str:
    """Write the file of a host, and return its path for ``[gpu] simulate``.

    :param gpus: how many A100 with 80 GB the host has.
    """
    path = pathlib.Path(directory, 'machine.yaml')
    path.write_text(_HEAD + ''.join(
        _GPU.format(bus=number) for number in range(1, gpus + 1)),
        encoding='utf-8')
    return str(path)
