# SPDX-License-Identifier: Apache-2.0

"""Run the program in this process, as a person would."""

from __future__ import annotations

import contextlib
import json
import os

import fixtures
from oslotest import base

from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator.driver import mig
from cyborg_gpu_driver.simulator.machine import machine
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests.unit.program import machines


class CommandCase(base.BaseTestCase):
    """Commands on simulated hosts."""

    def setUp(self):
        super().setUp()
        # At the end, remove the machines that the test puts under pynvml.
        stack = contextlib.ExitStack()
        stack.enter_context(machine.kept())
        self.addCleanup(stack.close)

    def run_program(self, *arguments, code=0):
        """Run the program and check its exit code.

        :returns: standard output and standard error.
        """
        result, output, errors = command.run(*arguments)
        self.assertEqual(code, result, errors)
        return output, errors

    def rows(self, *arguments):
        """The rows that a command prints as JSON."""
        return json.loads(self.run_program(*arguments, '-f', 'json')[0])

    def part(self, name, gpus=2):
        """The file of a simulated host with only its first GPUs."""
        return machines.write(
            self.useFixture(fixtures.TempDir()).path, name, gpus)

    def create_instance(self, machine, gpu, profile_id, start, size):
        """Create a GPU instance as another tool does.

        :param gpu: the index of its GPU.
        """
        with machine.operation(write=True):
            mig.create(machine.gpus[gpu], profile_id, (start, size))

    def configure(self, text, directory):
        """Write a configuration file with this text and return its path."""
        path = f'{directory}/cyborg.conf'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        return path


class HostCase(CommandCase):
    """Commands on one simulated host that keeps its state between them.

    :cvar gpus: how many GPUs of the host to use; 0 for all.
    :cvar config: the text of cyborg.conf.
    """

    host = 'dgx-a100-80'
    gpus = 2
    config = ''

    def setUp(self):
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.state = f'{self.directory}/machine.json'
        self.state_path = f'{self.state}.records'
        self.conf = self.configure(self.config, self.directory)
        if self.gpus:
            self.host = self.part(self.host, self.gpus)

    def fail_nvml(self):
        """Return a list of faults that each command meets.

        Each is an NVML call, the error and the address of a GPU.
        """
        faults, load = [], machine.Machine.load.__func__

        def loaded(cls, *arguments):
            found = load(cls, *arguments)
            for symbol, code, address in faults:
                found.faults.fail(symbol, code, times=None, address=address)
            return found

        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.simulator.machine.machine.Machine.load',
            classmethod(loaded)))
        return faults

    def damage_record(self, address, text='{'):
        """Write this as the record of a GPU; return its path."""
        path = store.Store(self.state_path).path(
            model.PciAddress.parse(address))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        return path

    def machine(self):
        """The host's hardware, as another process would see it."""
        return machine.Machine.load(self.host, self.state)

    def write(self, name, text):
        path = f'{self.directory}/{name}'
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write(text)
        return path

    def run_on_host(self, *arguments, code=0):
        return self.run_program(
            '--config-file', self.conf, '--simulate', self.host, '--state',
            self.state, *arguments, code=code)

    def rows_on_host(self, *arguments, code=0):
        """The rows that a command prints as JSON."""
        return json.loads(self.run_on_host(*arguments, '-f', 'json',
                                           code=code)[0])
