# SPDX-License-Identifier: Apache-2.0

"""A cloud whose compute node has simulated GPUs, and ways to inspect them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys

import fixtures
import pynvml
from cyborg import context
from cyborg.objects import attach_handle

from cyborg_gpu_driver.report.content import names
from cyborg_gpu_driver.simulator import state
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests.functional import base
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.functional import reported_cloud

HOST = 'compute1'
USED = (1, 1)
"""Reserved and used of a whole GPU that a server has."""
TWO_GPUS = str(pathlib.Path(__file__).parents[1] / 'data' / 'hosts'
               / 'a100x2.yaml')
"""A machine with two A100. Each additional GPU makes each report longer."""


class _NoRoute:
    """A Placement client whose requests all fail."""

    def get(self, *args, **kwargs):
        raise ConnectionError('no route')

    put = get


class GpuTestCase(base.TestCase):
    """A test on the released services with simulated GPUs.

    Tests read the state of the hardware from the simulator's state file,
    never from the driver under test.
    """

    machine = TWO_GPUS
    gpu = '0000:07:00.0'
    overrides: dict = {}
    clean_checks = 5
    """Reports in a row without a problem that heal a GPU."""
    starts_reported = False
    """Whether a test starts with the files of another cloud with the same
    machine and options that has reported all. The test's agent is then a
    restarted one. This has no effect if the hardware is not below state_path.
    """
    hardware_directory: str | None = None
    """Directory of the simulator's state file; state_path unless given."""
    root = None
    """A root_beside.Root, if this process is not root's."""

    def setUp(self):
        super().setUp()
        # The driver installs its machine under pynvml for the life of its
        # process. Uninstalling this machine ends that with the test.
        guard = simulator.Machine.load(self.machine).install()
        self.addCleanup(guard.uninstall)
        # All servers of a test end within seconds.
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.program.bind.binder.CAME_UP_SECONDS', 0.0))
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.node.CLEAN_CHECKS', self.clean_checks))
        self.start()

    def before_start(self):
        """Begin what must exist before the services of the test's cloud."""

    def before_report(self):
        """Begin what the agent must find when it starts, at its report."""

    def start(self, **overrides):
        """Start the cloud, with more options of cyborg.conf."""
        self.state_path = self.useFixture(fixtures.TempDir()).path
        self.hardware_path = os.path.join(
            self.hardware_directory or self.state_path, 'hardware.json')
        merged = {group: dict(options) for group, options
                  in {**self.overrides, **overrides}.items()}
        reported = None
        if self.starts_reported and self.hardware_directory is None:
            reported = reported_cloud.find(
                self.machine, merged,
                lambda target: self._make_reported(merged, target))
            reported.copy_state(self.state_path)
        self.before_start()
        merged.setdefault('gpu', {}).update(
            simulate_state=self.hardware_path, state_path=self.state_path)
        self.cloud = self.use_cloud(host=HOST, simulate=self.machine,
                                    overrides=merged, templates=reported)
        self.before_report()
        if reported:
            self.cloud.report()
        else:
            self.report()
        self.untouched = self.everything()

    def _make_reported(self, overrides, target):
        """Save the files of a new cloud that has reported all."""
        directory = self.useFixture(fixtures.TempDir()).path
        state = {'state_path': directory,
                 'simulate_state': os.path.join(directory, 'hardware.json')}
        with base.CloudFixture(HOST, self.machine, overrides={
                **overrides,
                'gpu': {**overrides.get('gpu', {}), **state}}) as cloud:
            known = None
            while known != (known := {*cloud.placement.providers()}):
                cloud.report()
            reported_cloud.save(cloud.directory, directory, target)

    def report(self):
        """Report twice: Cyborg creates the providers in the first report."""
        self.cloud.report()
        self.cloud.report()

    def look_between(self):
        """Do what the agent's thread does between two reports."""
        agent = self.driver._running()
        agent.look_between()
        for gpu in agent.live.host().gpus:
            agent.publisher.settle(gpu.address)

    def restore(self):
        """Run what the systemd unit runs before nova-compute starts."""
        arguments = ('--config-file', self.cloud.cloud.config_path,
                     'layout', 'restore')
        if self.root is not None:
            code, said = self.root.command(*arguments)
        else:
            done = subprocess.run(
                [sys.executable, '-m', 'cyborg_gpu_driver.cmd.main',
                 *arguments], capture_output=True, text=True, check=False)
            code, said = done.returncode, done.stdout + done.stderr
        self.assertEqual(0, code, said)

    @functools.cached_property
    def world(self):
        """The simulated machine, to change it from outside the driver."""
        return simulator.Machine.load(self.machine, self.hardware_path)

    def happen(self, act, *arguments):
        """Call a method of the simulated machine, with root's rights."""
        if self.root is not None:
            self.root.world(act, *arguments)
        else:
            getattr(self.world, act)(*arguments)

    def command(self, *arguments):
        """Run ``cyborg-gpu`` on this host.

        :returns: the exit code, standard output and standard error.
        """
        return command.run('--config-file', self.cloud.cloud.config_path,
                           *arguments)

    def uncordon(self, gpu=None):
        """Open a GPU whose record was damaged, as an operator would."""
        code, output, errors = self.command('gpu', 'uncordon',
                                            gpu or self.gpu)
        self.assertEqual(0, code, output + errors)

    @property
    def driver(self):
        """The driver under test, as the agent has loaded it."""
        return self.cloud.agent._rt.acc_drivers[0]

    def change_policy(self, name, **options):
        """Change options of a policy and restart the agent."""
        conf, group = self.driver._conf, f'gpu_policy:{name}'
        for option, value in options.items():
            conf.set_override(option, value, group=group)
            self.addCleanup(conf.clear_override, option, group=group)
        self.end_agent()
        type(self.driver).__init__(self.driver)

    def end_agent(self):
        """End the agent, as if its process had ended.

        The next call starts a new agent. What this process has open in NVML
        would keep a GPU from its server.
        """
        if self.driver._agent is not None:
            self.driver._agent.stop()
        self.driver._agent = None
        machine = getattr(pynvml.nvmlLib, 'machine', None)
        if machine is not None:
            # The next agent loads the library anew. What a session of this
            # one still has open would otherwise stay open until Python
            # collects the session.
            with machine.operation():
                machine.opens.close()

    @contextlib.contextmanager
    def no_placement(self):
        """Keep the driver, but not Cyborg, from reaching Placement."""
        tree = self.driver._running().tree
        client, tree._client = tree.client, _NoRoute()
        try:
            yield
        finally:
            tree._client = client

    def without_allocations(self):
        """Let this agent bind handles that no server has claimed."""
        self.driver._running().allocated = lambda item: None

    def hardware(self, gpu=None):
        """Return the state of a simulated GPU."""
        with open(self.hardware_path, encoding='utf-8') as stream:
            document = json.load(stream)
        return state.from_json(document['state']).gpus[gpu or self.gpu]

    def placements(self, gpu=None):
        """Return (profile id, start) of every GPU instance, sorted."""
        return sorted((item.profile_id, item.start) for item
                      in self.hardware(gpu).instances.values())

    def mdevs(self, gpu=None):
        """Return (function, type id) of every mdev of a GPU, by UUID."""
        return {vgpu.uuid: (vgpu.function, vgpu.type_id)
                for vgpu in self.hardware(gpu).vgpus}

    def name(self, label, gpu=None):
        """Return the name of the provider of a profile."""
        return f'{HOST}_gpu_{gpu or self.gpu}_{label}'

    def reserved(self, gpu=None, withdrawn=False):
        """Return (total, reserved) of a GPU's providers, by profile label.

        :param withdrawn: whether to include what is not offered any more.
        """
        prefix = self.name('', gpu)
        return {
            name[len(prefix):]: (item['total'], item['reserved'])
            for name, provider in self.cloud.placement.snapshot().items()
            if name.startswith(prefix)
            and (withdrawn or names.WITHDRAWN not in provider['traits'])
            for item in provider['inventories'].values()}

    def everything(self):
        """Return all that must be as before once everything is released."""
        gpus = {}
        if os.path.exists(self.hardware_path):
            with open(self.hardware_path, encoding='utf-8') as stream:
                gpus = {
                    address: (gpu['instances'], gpu['vgpus'])
                    for address, gpu in json.load(
                        stream)['state']['gpus'].items()}
        return {'placement': self.cloud.placement.snapshot(),
                'arqs': self.cloud.cyborg.arqs(), 'gpus': gpus,
                'journal': self.journal()}

    def journal(self):
        """Return the entries of the driver's journal."""
        return host_files.journal(self.state_path)

    def handles_in_use(self):
        """Return how many attach handles Cyborg considers in use."""
        return sum(handle.in_use for handle in attach_handle.AttachHandle
                   .list(context.get_admin_context()))

    def profile(self, resource_class, name=None, **traits):
        """Create a device profile for one unit of a resource class."""
        name = name or resource_class.lower().replace('_', '-')
        group = {f'resources:{resource_class}': '1'}
        group.update((f'trait:{trait}', value)
                     for trait, value in traits.items())
        self.cloud.cyborg.create_device_profile(name, group)
        return name
