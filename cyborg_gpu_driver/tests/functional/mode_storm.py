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

"""Switches of MIG modes with agent, watcher and commands all at work.

usage: python -m cyborg_gpu_driver.tests.functional.mode_storm
           DIRECTORY MACHINE ROUNDS SEED [USER]

Root starts this program. With USER (``nobody``) the agent drops root's
privileges, and the daemon of oslo.privsep changes GPUs for it. The commands
run as root. DIRECTORY has the simulated machine's state file and a directory
``user``. The program prints how many switches were made.
"""

import itertools
import multiprocessing
import os
import random
import sys
import threading

from oslo_config import cfg
from oslo_privsep import priv_context

from cyborg_gpu_driver import agent
from cyborg_gpu_driver import locks
from cyborg_gpu_driver import privsep
from cyborg_gpu_driver.cmd import main as command
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.program.steps import reset
from cyborg_gpu_driver.simulator.driver import gpu as driver_gpu
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import empty_placement
from cyborg_gpu_driver.tests import nobody

_LAYOUT = """version: v1
mig-configs:
  'True': [{devices: all, mig-enabled: true, mig-devices: {}}]
  'False': [{devices: all, mig-enabled: false, mig-devices: {}}]
"""
_SECONDS = 300


class Operator:
    """An operator who runs commands as root, one after the other.

    Each command runs in a process of its own. The parent of these processes
    is forked before anything is opened.
    """

    def __init__(self, options, load):
        self._options = options
        self._load = load
        self._mine, theirs = multiprocessing.Pipe()
        if os.fork() == 0:
            self._mine.close()
            self._serve(theirs)
            os._exit(0)
        theirs.close()

    def begin(self, *arguments):
        """Start a command, or ``xid``: let an error happen to a GPU."""
        self._mine.send(arguments)

    def end(self):
        """Wait for the command; return its exit code.

        :raises TimeoutError: if the command hangs.
        """
        if not self._mine.poll(_SECONDS):
            raise TimeoutError
        return self._mine.recv()

    def _serve(self, connection):
        while True:
            try:
                arguments = connection.recv()
            except (EOFError, ConnectionResetError):
                return
            child = os.fork()
            if child == 0:
                os._exit(self._run(arguments))
            connection.send(os.waitstatus_to_exitcode(
                os.waitpid(child, 0)[1]))

    def _run(self, arguments):
        if arguments[0] == 'xid':
            self._load().raise_xid(*arguments[1:])
            return 0
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        return command.main(['--config-file', self._options, *arguments])


class Storm:
    """The rounds of one agent.

    :param world: the simulated machine.
    """

    def __init__(self, world, operators, conf, layouts, rng):
        self._world = world
        self._operators = operators
        self._layouts = layouts
        self._rng = rng
        self._state_path = conf.gpu.state_path
        self._agent = agent.Agent(conf, policies.read(conf), 'host1',
                                  empty_placement.EmptyPlacement)
        self._machine = self._agent._node.platform
        self._reader = reader.HostReader(self._machine)
        self._over = threading.Event()
        self._failures = []
        self.switches = 0

    def run(self, rounds):
        reports = threading.Thread(target=self._report, daemon=True)
        reports.start()
        try:
            for _ in range(rounds):
                self._round()
                if self._failures:
                    raise self._failures[0]
        finally:
            self._over.set()
            reports.join(_SECONDS)
        if reports.is_alive():
            raise TimeoutError('the agent')
        self._agent.stop()

    def _round(self):
        addresses = [gpu.address for gpu in self._world.gpus]
        number = self._rng.randrange(len(addresses))
        address = addresses[number]
        enable = self._rng.random() < 0.5
        who = self._rng.choice(('command', 'agent', 'both'))
        self._operators[1].begin('gpu', 'list')
        if who != 'agent':
            self._operators[0].begin('layout', 'apply', '-f', self._layouts,
                                     '-c', str(enable))
        self._operators[2].begin('xid', address, 13)
        if who != 'command':
            self._switch(model.PciAddress.parse(address), enable)
        for operator in self._operators[:1] * (who != 'agent') + (
                self._operators[1:]):
            code = operator.end()
            if code:
                raise AssertionError(f'a command ended with {code}')
        self._check(addresses if who != 'agent' else [address], enable)

    def _switch(self, address, enable):
        with locks.gpu(self._state_path, address):
            gpu = self._reader.gpu(address)
            if gpu.problems:
                raise AssertionError(gpu.problems)
            if not reset.switch(self._machine, gpu, enable):
                raise AssertionError('the mode is pending')

    def _check(self, addresses, enable):
        self.switches += len(addresses)
        with self._world.operation():
            modes = {gpu.address: gpu.state.mig for gpu in self._world.gpus}
        wrong = [address for address in addresses
                 if modes[address] != enable]
        if wrong:
            raise AssertionError(f'MIG mode of {wrong} is not {enable}')

    def _report(self):
        for _ in itertools.takewhile(lambda _: not self._over.is_set(),
                                     itertools.count()):
            try:
                self._agent.report()
            except Exception as error:
                self._failures.append(error)
                return


def truth(world):
    """Return what went wrong on the machine, as text; ``''`` if nothing."""
    with world.operation():
        held = [gpu.address for gpu in world.gpus
                if set(gpu.holders()) - {driver_gpu.PERSISTENCED}]
    return '; '.join(filter(None, (
        f'unbinds that had to wait: {world.blocked_unbinds}'
        if world.blocked_unbinds else '',
        f'damage: {world.damage}' if world.damage else '',
        f'still held: {held}' if held else '')))


def main(directory, machine, rounds, seed, user=''):
    own = os.path.join(directory, 'user')
    state = os.path.join(directory, 'hardware.json')
    options = os.path.join(own, 'options.conf')
    layouts = os.path.join(own, 'layouts.yaml')
    with open(layouts, 'w', encoding='utf-8') as stream:
        stream.write(_LAYOUT)
    with open(options, 'w', encoding='utf-8') as stream:
        stream.write(f'[gpu]\nsimulate = {machine}\nprepare = false\n'
                     f'simulate_state = {state}\nstate_path = {own}\n')

    def load():
        return simulator.Machine.load(machine, state)

    load()
    operators = [Operator(options, load) for _ in range(3)]
    gpu_conf.register_opts(cfg.CONF)
    cfg.CONF(['--config-file', options])
    if user:
        privsep.gpu_context.start(priv_context.Method.FORK)
        nobody.give(own)
        nobody.become()
    world = load()
    storm = Storm(world, operators, cfg.CONF, layouts,
                  random.Random(int(seed)))
    storm.run(int(rounds))
    trouble = truth(world)
    print(f'{storm.switches} switches; {trouble or "no trouble"}')
    return 1 if trouble else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
