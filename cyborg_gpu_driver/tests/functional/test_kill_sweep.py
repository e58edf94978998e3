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

"""The agent is killed at every step of a bind, an unbind, getting ready.

A step is any change on the disk: those of the library's own records, and
those of the simulated hardware, whose state is a file too. The agent's
process is killed (SIGKILL) before the first step, then in another try before
the second, and so on until it comes through; each time a new process does
what an agent does when it starts and what Cyborg asks of it again.
"""

import json
import os
import signal
import sys
import traceback
import uuid

import fixtures
import pynvml
import testscenarios
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import agent
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.host import reader
from cyborg_gpu_driver.program import prepare
from cyborg_gpu_driver.program import privileged
from cyborg_gpu_driver.simulator import library
from cyborg_gpu_driver.simulator import state

load_tests = testscenarios.load_tests_apply_scenarios

GPU = '0000:41:00.0'
_LIMIT = 500
"""More steps than anything here takes."""
_WRITES = os.O_WRONLY | os.O_RDWR
_CHANGES = frozenset({'os.rename', 'os.remove'})


def _no_placement():
    """Where Placement is out of reach: nobody has an allocation."""
    raise ConnectionError('no Placement here')


class _Killer:
    """Kills this process before its n-th change below a directory."""

    def __init__(self, directory, number):
        self._directory = directory
        self._left = number
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if event == 'open':
            path, _mode, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event in _CHANGES:
            path = arguments[0]
        else:
            return
        if not (isinstance(path, str) and path.startswith(self._directory)
                and '/locks/' not in path and not path.endswith('.lock')):
            return
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


class KillCase(base.BaseTestCase):
    """One GPU, and processes that work on it one after the other."""

    model = 'a100-40'
    framework = 'mdev'
    prepared = True
    mig = True
    options: dict = {}

    def setUp(self):
        super().setUp()
        self.points = 0
        self.host = os.path.join(self.useFixture(fixtures.TempDir()).path,
                                 'host.yaml')
        gpu = {'model': self.model, 'address': GPU, 'numa_node': 0,
               'framework': self.framework}
        if self.prepared:
            gpu.update({'vfs': 'all'} if self.model != 't4' else {},
                       **({'mig': True} if self.mig else {}))
        with open(self.host, 'w', encoding='utf-8') as stream:
            json.dump({'driver_version': '570.124.03', 'cuda_version': 12080,
                       'gpus': [gpu]}, stream)

    def begin(self):
        """A new machine, and nothing known of it."""
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.hardware = os.path.join(self.directory, 'hardware.json')

    def process(self, work, number=None):
        """Run ``work(agent)`` in a process of its own.

        :param number: before which change it is killed; None for never.
        :returns: whether it came to its end.
        """
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                running = self._agent()
                if number is not None:
                    _Killer(self.directory, number)
                work(running)
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            self.assertEqual(signal.SIGKILL, os.WTERMSIG(status))
            return False
        self.assertEqual(0, os.WEXITSTATUS(status), 'see standard error')
        return True

    def _agent(self):
        while isinstance(pynvml.nvmlLib, library.Library):
            pynvml.nvmlLib.machine.uninstall()
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[])
        for name, value in (('simulate', self.host),
                            ('simulate_state', self.hardware),
                            ('state_path', self.directory),
                            ('policies', ['p']), ('health_events', False),
                            ('nova_vfio_handles', True)):
            conf.set_override(name, value, group='gpu')
        gpu_conf.register_policy(conf, 'p')
        for name, value in self.options.items():
            conf.set_override(name, value, group='gpu_policy:p')
        return agent.Agent(conf, policies.read(conf), 'host1', _no_placement)

    def get_ready(self, running):
        """Make the GPU ready as ``cyborg-gpu gpu prepare`` does."""
        machine = privileged.machine()
        host_reader = reader.HostReader(machine)
        outcome = prepare.Preparer(
            machine, prepare.StepTaker(machine, host_reader),
            self.directory, running._settings, lambda _: '').prepare(
                host_reader.snapshot().gpus[0])
        self.assertEqual('', outcome.reason)

    def handle(self, running, handle):
        """What Cyborg calls the agent with for the first handle."""
        first = next(
            one for device in running.report()
            for deployable in device.deployables
            for one in deployable.handles)
        return str(first.address), first.asked_type, handle

    def truth(self):
        """(instances, (mdev or function) of each vGPU) of the hardware."""
        with open(self.hardware, encoding='utf-8') as stream:
            gpu = state.from_json(json.load(stream)['state']).gpus[GPU]
        return (sorted((item.profile_id, item.start)
                       for item in gpu.instances.values()),
                [vgpu.uuid or vgpu.function for vgpu in gpu.vgpus],
                (gpu.mig, gpu.vfs, gpu.heterogeneous))

    def journal(self):
        path = os.path.join(self.directory, 'journal.json')
        if not os.path.exists(path):
            return []
        with open(path, encoding='utf-8') as stream:
            return json.load(stream)['content']

    def sweep(self, prepare, work, check):
        """Kill ``work`` at every point, each on a machine of its own."""
        for number in range(_LIMIT):
            self.begin()
            self.assertTrue(self.process(prepare))
            ended = self.process(work, number)
            check()
            if ended:
                self.points += number
                return
        self.fail(f'not done after {_LIMIT} steps')


class BindTest(KillCase):

    scenarios = [
        ('slices on mdev', {'options': {
            'mode': 'mig', 'profiles': ['2g.10gb']}}),
        ('time slices on mdev', {'mig': False, 'options': {
            'mode': 'vgpu', 'vgpu_types': ['A100-10C']}}),
        ('mixed sizes on mdev', {'mig': False, 'options': {
            'mode': 'vgpu', 'vgpu_types': ['A100-10C', 'A100-20C'],
            'mixed_sizes': True}}),
        ('on the GPU itself', {'model': 't4', 'mig': False, 'options': {
            'mode': 'vgpu', 'vgpu_types': ['T4-4C']}}),
        ('slices without mdev', {'framework': 'vendor-vfio', 'options': {
            'mode': 'mig', 'profiles': ['2g.10gb']}}),
        ('several an instance', {
            'model': 'rtx-pro-6000', 'framework': 'vendor-vfio', 'options': {
                'mode': 'mig', 'vgpu_types': ['DC-1-8Q']}}),
    ]

    def setUp(self):
        super().setUp()
        self.name = str(uuid.uuid4())

    def test_bind(self):
        def check():
            self._restart()

            def again(running):
                handle = self.handle(running, self.name)
                running.bind(*handle)

            self.process(again)
            self._one_is_bound()
            self._nothing_is_left_after_unbind()

        self.sweep(self.get_ready, lambda running: running.bind(
            *self.handle(running, self.name)), check)
        self._say('bind')

    def test_unbind(self):
        def check():
            self._restart()
            self._nothing_is_left_after_unbind()

        def bind(running):
            self.get_ready(running)
            running.bind(*self.handle(running, self.name))

        self.sweep(bind, lambda running: running.unbind(
            *self.handle(running, self.name)), check)
        self._say('unbind')

    def _restart(self):
        """What was under way is finished or undone by the first report."""
        self.process(lambda running: running.report())
        phases = [entry['phase'] for entry in self.journal()]
        self.assertIn(phases, ([], ['bound']))
        self.assertEqual(len(phases), len(self.truth()[1]))

    def _one_is_bound(self):
        (entry,) = self.journal()
        self.assertEqual((self.name, 'bound'),
                         (entry['handle'], entry['phase']))
        instances, vgpus, _ = self.truth()
        self.assertEqual(1, len(vgpus))
        self.assertEqual(1 if self.mig else 0, len(instances))
        self.assertEqual(entry['function'] if entry['vfio'] else self.name,
                         vgpus[0])

    def _nothing_is_left_after_unbind(self):
        self.process(lambda running: (
            running.report(),
            running.unbind(*self.handle(running, self.name)),
            running.report()))
        self.assertEqual([], self.journal())
        self.assertEqual(([], []), self.truth()[:2])

    def _say(self, what):
        self.assertGreater(self.points, 4)
        print(f'{what}: killed at {self.points} points')


class ReadyTest(KillCase):
    """Modes and virtual functions that a policy wants and nobody has made."""

    prepared = False
    scenarios = [
        ('MIG on Ampere', {'ends': (True, 16, False), 'options': {
            'mode': 'mig', 'profiles': ['2g.10gb']}}),
        ('MIG on Hopper', {'model': 'h100-80', 'ends': (True, 20, False),
                           'options': {'mode': 'mig',
                                       'profiles': ['2g.20gb']}}),
        ('mixed sizes', {'ends': (False, 16, True), 'options': {
            'mode': 'vgpu', 'vgpu_types': ['A100-10C', 'A100-20C'],
            'mixed_sizes': True, 'vgpu_scheduler': 'equal-share'}}),
    ]

    def test_getting_ready(self):
        def check():
            self.process(self.get_ready)
            self.assertEqual(([], [], self.ends), self.truth())

        self.sweep(lambda running: None, self.get_ready, check)
        self.assertGreater(self.points, 3)
        print(f'getting ready: killed at {self.points} points')
