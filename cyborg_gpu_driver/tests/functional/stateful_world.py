# SPDX-License-Identifier: Apache-2.0

"""A host with several GPUs, what an outsider does to it, and its true state.

The true state comes from the simulator, never from the driver under test. The
simulator's state file says what exists. To find out what can still be made,
the test makes it on a copy.
"""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import json
import os
import shutil
import time

import fixtures
import pynvml
from cyborg import context
from cyborg.agent import rpcapi
from cyborg.api import app as cyborg_app
from oslo_config import cfg

from cyborg_gpu_driver import agent
from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import condition
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.partition import reconcile
from cyborg_gpu_driver.record import gpu as gpu_record
from cyborg_gpu_driver.record import store
from cyborg_gpu_driver.simulator import faults
from cyborg_gpu_driver.simulator import state
from cyborg_gpu_driver.simulator.driver import gpu as gpu_module
from cyborg_gpu_driver.simulator.driver import mig
from cyborg_gpu_driver.simulator.driver import vgpu as vgpus
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests.functional import base
from cyborg_gpu_driver.tests.functional import commands_apart
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.functional import outages
from cyborg_gpu_driver.tests.functional import stateful_kinds
from cyborg_gpu_driver.tests.unit.cloud import keystone

TOO_HOT = 120
_CLOUD = {'not-examined', *(kind.value for kind in (
    reconcile.Kind.NO_REQUEST, reconcile.Kind.NOT_RECORDED,
    reconcile.Kind.ALLOCATED, reconcile.Kind.NOT_ALLOCATED,
    reconcile.Kind.RESERVED))}
"""Codes of the doctor's differences between this host and the cloud."""
"""Degrees Celsius that are too hot for every board."""
_NVML_SECONDS = 2
_PLACEMENT_SECONDS = 2
SLOW_SECONDS = 0.1
A_WHILE = 20
"""Seconds: more than a bind that waits for nothing takes, and less than the
deadline of a bind that waits."""


@dataclasses.dataclass(frozen=True)
class Live:
    """A vGPU on the simulated hardware."""

    gpu: str
    name: str
    """The mdev's UUID, or the address of its function."""
    function: str
    type_id: int
    number: int
    """A number that no other vGPU ever had."""
    placement: int | None
    """The placement, on a GPU with vGPUs of mixed sizes."""
    instance: int | None
    """Serial number of the GPU instance that it lies on."""
    guest: bool


@dataclasses.dataclass
class Held:
    """A handle that Cyborg has bound, and what it stood for then."""

    arq: dict
    what: Live | int
    """For a whole GPU: how often it was reset or got another driver."""

    @property
    def handle(self):
        return self.arq['attach_handle_uuid']

    @property
    def function(self):
        return '{domain}:{bus}:{device}.{function}'.format(
            **self.arq['attach_handle_info'])

    @property
    def whole(self):
        return self.arq['attach_handle_type'] == 'PCI'

    @property
    def strings(self):
        """The arguments of a request to the agent."""
        return (self.function, self.arq['attach_handle_info']['asked_type'],
                self.handle)


class StatefulCase(gpu_cloud.GpuTestCase):
    """One cloud after the other, each with a new host of three GPUs."""

    kind = stateful_kinds.MDEV

    clean_checks = 1

    def setUp(self):
        self._stack = contextlib.ExitStack()
        self.machine = self._host_file()
        self.overrides = {
            'gpu': {'policies': 'p0,p1,p2',
                    'orphan_grace': 0, 'nvml_timeout': _NVML_SECONDS},
            **self.kind['configurations'][0]}
        self.commands = self.useFixture(commands_apart.Commands(
            lambda: self.cloud.cloud.config_path))
        super().setUp()
        self.addCleanup(self.stop)

    def _host_file(self):
        directory = self.useFixture(fixtures.TempDir()).path
        return host_files.write_host(directory, [
            {'model': name, 'address': address, 'numa_node': 0,
             'framework': self.kind['framework']}
            for name, address in zip(self.kind['models'],
                                     stateful_kinds.GPUS, strict=True)])

    def use_cloud(self, **kwargs):
        """Start a cloud that lasts until :meth:`stop`.

        Only its agent reaches Placement through a door.
        """
        cloud = self._stack.enter_context(base.CloudFixture(**kwargs))
        self.door = self._stack.enter_context(outages.Door(
            cloud.cloud.placement_service.url))
        self._write_options(cloud.cloud.config_path, {'placement': {
            'endpoint_override': self.door.url, 'connect_retries': '0',
            'timeout': str(_PLACEMENT_SECONDS)}})
        cfg.CONF.reload_config_files()
        return cloud

    def start(self, **overrides):
        """Start a cloud that has the device profiles of all classes."""
        super().start(**overrides)
        self.gate = outages.Gate(cyborg_app.load_app())
        accounts = self._stack.enter_context(
            keystone.KeystoneFixture(self.gate))
        accounts.write_clouds(here=accounts.auth_url)
        accounts.log_in(self.driver._conf)
        self.world = simulator.Machine.load(self.machine, self.hardware_path)
        self.profiles = [self.profile(f'CUSTOM_NVIDIA_{name}')
                         for name in self.kind['classes']]
        self.profiles.append(self.profile('PGPU'))
        # The agent did not know the accounts until now.
        self.cloud.report()
        self.untouched = self.everything()
        self._used = False
        # Stop before the directories of this start are removed.
        self.addCleanup(self.stop)

    def renew(self):
        """Provide a cloud to which nothing has happened yet."""
        if self._used:
            self.stop()
            self.start()
        self._used = True

    def stop(self):
        """End the cloud that was started last."""
        self._stack.close()

    # The operator

    def restart_agent(self):
        """Restart the agent, which reads its files like a new process."""
        cfg.CONF.reload_config_files()
        self.end_agent()
        type(self.driver).__init__(self.driver)

    def configure(self, number):
        """Write the policies of a configuration and restart the agent."""
        wanted = self.kind['configurations'][number]
        self._write_options(self.cloud.cloud.config_path, wanted, wanted)
        self.restart_agent()

    @staticmethod
    def _write_options(path, sections, without=()):
        """Write options to cyborg.conf.

        :param without: sections whose other options are removed.
        """
        parser = configparser.RawConfigParser(default_section='')
        parser.read(path, encoding='utf-8')
        for section in without:
            parser.remove_section(section)
        parser.read_dict(sections)
        with open(path, 'w', encoding='utf-8') as stream:
            parser.write(stream)

    def apart(self, *arguments, stop=None):
        """Run ``cyborg-gpu`` on this host, in a process of its own.

        :param stop: the step before which it stops; None for none.
        """
        done = self.commands.run(*arguments, stop=stop,
                                 steps=self.state_path,
                                 spare=self.hardware_path)
        self.assertNotIn('Traceback', done.errors)
        return done

    def restore(self):
        """Run what the systemd unit runs before nova-compute starts."""
        return self.apart('layout', 'restore')

    def write_layout(self, gpu, counts):
        """Write a layout file for a GPU; return the arguments to name it."""
        path = os.path.join(self.state_path, 'layouts.yaml')
        index = [item.address for item in self.world.gpus].index(gpu)
        with open(path, 'w', encoding='utf-8') as stream:
            # JSON is YAML.
            json.dump({'version': 'v1', 'mig-configs': {'one': [{
                'devices': [index], 'mig-enabled': True,
                'mig-devices': counts}]}}, stream)
        return '-f', path, '-c', 'one'

    @contextlib.contextmanager
    def impatient(self):
        """Shorten waits for a GPU, which something keeps for long."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(fixtures.MonkeyPatch(
                'cyborg_gpu_driver.conf.gpu.ACCESS_SECONDS', 1.0))
            stack.enter_context(fixtures.MonkeyPatch(
                f'{agent.__name__}.Agent.bind_timeout', 1.0))
            for name in ('REPORT_SECONDS', '_RECORD_SECONDS'):
                stack.enter_context(fixtures.MonkeyPatch(
                    f'{locks.__name__}.{name}', 0.5))
            yield

    # What Cyborg's conductor asks of the agent

    def create_by_rpc(self, *strings):
        rpcapi.AgentAPI().create_vgpu_mdev(
            context.get_admin_context(), cfg.CONF.host, *strings)

    def remove_by_rpc(self, *strings):
        rpcapi.AgentAPI().remove_vgpu_mdev(
            context.get_admin_context(), cfg.CONF.host, *strings)

    # What happens to the machine

    def faults(self):
        """Return the faults of the machine that the driver works on."""
        return pynvml.nvmlLib.machine.faults

    def raise_xid(self, gpu, xid):
        """Tell the agent of an error, as its watcher's thread does."""
        self.driver._running().health.event(condition.Event(
            model.PciAddress.parse(gpu), xid))

    def heal(self, gpu):
        """Clear every health problem that a GPU reports."""
        self.world.find_gpu(gpu)
        self.world.set_remapped_rows(gpu)
        self.world.set_health(gpu, uncorrected=0, celsius=31, recovery=0)

    def hang(self, gpu):
        """Let no NVML call about a GPU return."""
        self.world.hang_gpu(gpu)

    def answer(self, gpu):
        """Let these calls continue; return when the agent's have ended."""
        self.world.hang_gpu(gpu, False)
        end = time.monotonic() + 3 * A_WHILE
        while deadline.stuck():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def outsider_cuts(self, gpu, pick):
        """Make an instance or vGPU by hand; return it, None if none fits."""
        with self.world.operation(write=True):
            board = self.world.gpu(gpu)
            if board.state.driver != 'nvidia' or board.state.lost:
                return None
            if board.state.mig:
                kinds = board.model.mig.profiles
                profile = kinds[pick % len(kinds)].profile_id
                try:
                    number = mig.create(board, profile)
                except faults.Refused:
                    return None
                return 'instance', board.state.instances[number].serial
            # Without mdev a vGPU has no name. On the function of a handle in
            # the journal it would look like a leftover of that handle.
            spoken_for = {entry['function'] for entry in self.journal()
                          if entry['vfio']}
            places = [(kind, function)
                      for kind in board.model.vgpu_types
                      for function in board.vgpu_functions()
                      if function not in spoken_for
                      and vgpus.available(board, kind, function)]
            if not places:
                return None
            kind, function = places[pick * 31 % len(places)]
            made = vgpus.create(board, kind, function,
                                self._name_of_outsiders(board))
            return 'vgpu', made.vgpu_id

    def _name_of_outsiders(self, board):
        if board.framework != 'mdev':
            return None
        return f'0b9d1c2e-0000-4000-8000-{board.machine.state.number():012}'

    def outsider_returns(self, what, number):
        """Remove what an outsider made; an instance only if it is unused."""
        with self.world.operation(write=True):
            for board in self.world.gpus:
                if what == 'vgpu':
                    board.state.vgpus = [
                        vgpu for vgpu in board.state.vgpus
                        if vgpu.vgpu_id != number]
                    continue
                for key, item in list(board.state.instances.items()):
                    if item.serial == number:
                        with contextlib.suppress(faults.Refused):
                            mig.destroy(board, key)

    # The true state

    def state(self):
        """Return the state of all GPUs by address, from the file."""
        with open(self.hardware_path, encoding='utf-8') as stream:
            return state.from_json(json.load(stream)['state']).gpus

    def live(self):
        """Return all vGPUs by name."""
        return {vgpu.uuid or vgpu.function: Live(
            address, vgpu.uuid or vgpu.function, vgpu.function, vgpu.type_id,
            vgpu.vgpu_id, vgpu.placement if gpu.heterogeneous else None,
            None if vgpu.instance is None
            else gpu.instances[vgpu.instance].serial, vgpu.guest)
            for address, gpu in self.state().items() for vgpu in gpu.vgpus}

    def explained(self):
        """Return (GPU, profile, start) of each GPU instance in a record."""
        found = set()
        for address, record in store.Store(self.state_path).records().items():
            known = set(record.owned_instances)
            if record.change is not None:
                known.update(record.change.touched,
                             record.change.before.bare)
            found.update((str(address), item.profile_id,
                          item.placement.start) for item in known)
        return found

    def bound_places(self, gpu):
        """Return (profile, start) of each GPU instance that handles have."""
        return {(entry['profile_id'], entry['placement']['start'])
                for entry in self.journal()
                if entry['gpu'] == gpu and entry['placement']}

    def given_back(self):
        """Return the handles that the agent knows to be given back.

        While a stopped command holds a record, only the agent knows.
        """
        return {entry.handle
                for entry in self.driver._running().records.claims()
                if entry.phase is gpu_record.Phase.UNBINDING}

    def differences(self):
        """Return doctor's findings, each as a mapping."""
        done = self.apart('doctor', '--os-cloud', 'here', '-f', 'json')
        return [row for row in json.loads(done.output)
                if row['code'] in _CLOUD and 'nova.conf' not in row['message']]

    def unhealthy(self):
        """Return the addresses of GPUs that report to be unhealthy."""
        return {address for address, gpu in self.state().items()
                if gpu.driver == 'nvidia' and (
                    gpu.lost or gpu.ecc[1] or gpu.celsius >= TOO_HOT
                    or gpu.recovery)}

    def capacities(self):
        """Return how many of each (GPU, label) Placement has left."""
        found = {}
        for name, provider in self.cloud.placement.providers().items():
            _, there, rest = name.partition('_gpu_')
            if not there:
                continue
            uuid = provider['uuid']
            ((kind, item),) = self.cloud.placement.inventories(uuid).items()
            used = self.cloud.placement.usages(uuid).get(kind, 0)
            gpu, _, label = rest.partition('_')
            found[gpu, label] = item['total'] - item['reserved'] - used
        return found

    def room(self, gpu, label):
        """Return how many more of a label the hardware can really make.

        The method tries it out on a copy of the hardware.
        """
        copy = os.path.join(self.state_path, 'copy.json')
        shutil.copyfile(self.hardware_path, copy)
        machine = simulator.Machine(self.world.host, copy)
        with machine.operation(write=True):
            board = machine.gpu(gpu)
            if label == stateful_kinds.WHOLE:
                return int(board.state.driver == 'vfio-pci' and not (
                    board.state.lost or board.busy() or board.state.vfs
                    or board.state.mig))
            if not board.bound or board.state.lost:
                return 0
            profile = next(
                (item for item in (board.model.mig.profiles if
                                   board.model.mig else ())
                 if item.name.replace('+', '.') == label), None)
            if profile is not None:
                return _instances_left(board, profile)
            return _vgpus_left(board, next(
                kind for kind in board.model.vgpu_types
                if kind.name == label))


def _instances_left(board: gpu_module.Gpu, profile) -> int:
    """Make as many instances as fit; return how many servers can use."""
    left = 0
    # For intervals of one size, taking the first free one each time packs
    # the most of them.
    for start in sorted(profile.starts):
        with contextlib.suppress(faults.Refused):
            mig.create(board, profile.profile_id, (start, profile.size))
            left += 1
    return min(left, sum(not board.vgpus_on(function)
                         for function in board.vgpu_functions()))


def _vgpus_left(board: gpu_module.Gpu, kind) -> int:
    """Make as many vGPUs as fit, with instances; return their number."""
    count = 0
    while True:
        function = next((item for item in board.vgpu_functions()
                         if vgpus.available(board, kind, item)), None)
        if function is not None:
            vgpus.create(board, kind, function, f'{count}')
            count += 1
            continue
        if kind.profile_id is None:
            return count
        try:
            mig.create(board, kind.profile_id)
        except faults.Refused:
            return count
        if not any(vgpus.available(board, kind, item)
                   for item in board.vgpu_functions()):
            return count
