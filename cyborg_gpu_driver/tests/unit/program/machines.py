# SPDX-License-Identifier: Apache-2.0


"""Simulated machines that are no larger than a test needs."""

from __future__ import annotations

import dataclasses
import json
import os

import fixtures
import yaml
from oslotest import base

from cyborg_gpu_driver.host.snapshot import gpu_record
from cyborg_gpu_driver.simulator import files
from cyborg_gpu_driver.simulator.machine import machine as simulator


def load(name: str, state: str | None = None, gpu: str | None = None,
         gpus: int | None = 2) -> simulator.Machine:
    """Return a machine with some GPUs of a host and all other functions.

    A second GPU shows what a change of the first one does to others. More
    GPUs take time: each has up to 20 virtual functions, and each new reader
    reads them.

    :param name: name of the host, or path of its file.
    :param state: file of the state, which processes share; None keeps the
        state in this process.
    :param gpu: address of a GPU to keep; by default the first one.
    :param gpus: number of GPUs to keep; None keeps all.
    """
    host = files.load(name)
    tested = [item for item in host.gpus if item.address == gpu]
    others = [item for item in host.gpus if item.address != gpu]
    kept = sorted([*tested, *others][:gpus],
                  key=lambda item: item.address)
    machine = simulator.Machine(
        dataclasses.replace(host, gpus=tuple(kept)), state)
    # This creates the state file.
    with machine.operation(write=True):
        return machine


def write(directory: str, name: str,
          gpus: int | tuple[str, ...] | None = 2) -> str:
    """Write the file of a host with some of its GPUs; return its path.

    :param name: name of a host that comes with the simulator.
    :param gpus: how many of its first GPUs to keep, or their addresses; None
        keeps all.
    """
    with open(files.HERE / 'hosts' / f'{name}.yaml',
              encoding='utf-8') as stream:
        content = yaml.safe_load(stream)
    content['gpus'] = (
        [gpu for gpu in content['gpus'] if gpu['address'] in gpus]
        if isinstance(gpus, tuple) else content['gpus'][:gpus])
    path = os.path.join(directory, f'{name}.yaml')
    with open(path, 'w', encoding='utf-8') as stream:
        # JSON is YAML.
        json.dump(content, stream)
    return path


class MachineCase(base.BaseTestCase):
    """Tests that run privileged operations on a machine in this process."""

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.privileged.mig._platform', None))

    def simulate(self, name: str, content: str) -> None:
        """Simulate the machine of a host file.

        :param name: of the file, without suffix.
        :param content: of the file.
        """
        path = os.path.join(self.directory, f'{name}.yaml')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(content)
        self.machine = simulator.Machine.load(path)
        self.addCleanup(self.machine.uninstall)


class Records(gpu_record.Records):
    """Records in memory."""

    def __init__(self):
        self._kept = {}

    def board(self, address):
        return self._kept.get(address)

    def keep_board(self, address, record):
        self._kept[address] = record
