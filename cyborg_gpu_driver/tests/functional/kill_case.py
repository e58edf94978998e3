# SPDX-License-Identifier: Apache-2.0

"""Processes that are killed at every step, and what they leave.

A step is a change on the disk or a request to Placement. Changes on the disk
are those of the library's own records and those of the simulated hardware,
whose state is also a file. A process first reaches its end and counts its
steps. The test then kills (SIGKILL) another one before its first step, another
one before its second step, and so on. Without ``tools/test all`` only the
first, the last and some steps between them are tried. After each kill, new
processes do what comes next.
"""

import functools
import os
import signal
import sys
import traceback

import fixtures
import pynvml
from cliff import commandmanager
from oslo_config import cfg
from oslotest import base

from cyborg_gpu_driver import agent
from cyborg_gpu_driver.cloud import placement_client
from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.conf import policies
from cyborg_gpu_driver.program.privileged import mig as privileged
from cyborg_gpu_driver.simulator.library import library
from cyborg_gpu_driver.simulator.machine import machine as simulator
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import base as functional
from cyborg_gpu_driver.tests.functional import host_files
from cyborg_gpu_driver.tests.unit.program import nodes
from demo_lib import client
from demo_lib import configfile
from demo_lib import placement_service

GPU = '0000:41:00.0'
_WRITES = os.O_WRONLY | os.O_RDWR
_CHANGES = frozenset({'os.rename', 'os.remove', 'os.link', 'os.mkdir',
                      'os.rmdir', 'os.chmod', 'os.chown'})


def no_placement():
    """Fail like an unreachable Placement: no server has an allocation."""
    raise ConnectionError('no Placement here')


@functools.cache
def _import_commands():
    """Import the commands once, and not in each forked process."""
    commandmanager.CommandManager(main.NAMESPACE)


def _placement_client(directory, url):
    """Return the commands' Placement client, from a file like cyborg.conf."""
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[configfile.write(
        os.path.join(directory, 'credentials.conf'),
        {'placement': {'auth_type': 'admin_token', 'token': 'admin',
                       'endpoint': url, 'endpoint_override': url}})])
    return placement_client.Placement(conf)


class _Killer:
    """Counts this process's steps below a directory and ends it before one.

    :param number: the step before which the process is killed; None for
        never.
    :param locks: whether the creation of a lock file is a step.
    """

    def __init__(self, directory, number, locks):
        self._directory = directory
        self._number = number
        self._locks = locks
        self.steps = 0
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if event == 'http.client.send' or self._is_change(event, arguments):
            if self.steps == self._number:
                os.kill(os.getpid(), signal.SIGKILL)
            self.steps += 1

    def _is_change(self, event, arguments):
        if event == 'open':
            path, _mode, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITES:
                return False
        elif event in _CHANGES:
            path = arguments[0]
        else:
            return False
        if isinstance(path, int):
            path = os.readlink(f'/proc/self/fd/{path}')
        if not (isinstance(path, str) and path.startswith(self._directory)):
            return False
        # The simulator opens its lock for each read, too.
        return not path.endswith('.lock') and (
            self._locks or '/locks' not in path and '/.locks' not in path)


class KillCase(base.BaseTestCase):
    """One GPU, and processes that work on it one after the other."""

    model = 'a100-40'
    framework = 'mdev'
    prepared = True
    mig = True
    options: dict = {}
    owner: int | None = None
    """The user who owns the records' directory; root unless given."""
    placement = staticmethod(no_placement)
    hostname = 'host1'

    def setUp(self):
        super().setUp()
        self.points = self.number = 0
        gpu = {'model': self.model, 'address': GPU, 'numa_node': 0,
               'framework': self.framework}
        if self.prepared:
            gpu.update({'vfs': 'all'} if self.model != 't4' else {},
                       **({'mig': True} if self.mig else {}))
        self.host = host_files.write_host(
            self.useFixture(fixtures.TempDir()).path, [gpu])

    def use_placement(self):
        """Start the released Placement, which outlives killed processes."""
        directory = self.useFixture(fixtures.TempDir()).path
        service = placement_service.PlacementService(
            directory, functional.make_templates().copy(directory)[1])
        self.addCleanup(service.stop)
        self.placement = lambda: _placement_client(
            directory, service.url)
        self.cloud = client.Placement(service.url)

    def begin(self):
        """Start with a new machine and no records of it."""
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.hardware = os.path.join(self.directory, 'hardware.json')
        self.state_path = os.path.join(self.directory, 'state')
        os.mkdir(self.state_path)
        if self.owner is not None:
            os.chown(self.state_path, self.owner, self.owner)
        self.config_path = self.write_config(self.options)

    def write_config(self, options):
        """Write cyborg.conf, with the options of the one policy."""
        return configfile.write(
            os.path.join(self.directory, 'cyborg.conf'),
            {'gpu': {'simulate': self.host, 'policies': 'p',
                     'simulate_state': self.hardware,
                     'state_path': self.state_path, 'health_events': False,
                     'clean_poll_interval': 0},
             'gpu_policy:p': options})

    def process(self, work, number=None):
        """Run ``work(agent)`` in a process of its own.

        :param number: the step before which the process is killed; None for
            never.
        :returns: whether the process reached its end.
        """
        def run():
            work(self._agent())
            return 0

        return self._fork(run, number)

    def command(self, *arguments, number=None, code=0):
        """Run ``cyborg-gpu`` as :meth:`process` runs work.

        :param code: the exit code at the end.
        """
        _import_commands()
        return self._fork(lambda: main.main(
            ['--config-file', self.config_path, *arguments]), number, code)

    def _fork(self, work, number, expected=0):
        """Fork a process; whether it reaches its end.

        :param work: returns the exit code of the process.
        :param expected: the exit code at the end.
        """
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                while isinstance(pynvml.nvmlLib, library.Library):
                    pynvml.nvmlLib.machine.uninstall()
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                killer = _Killer(self.directory, number,
                                 self.owner is not None)
                code = work()
                os.write(writing, str(killer.steps).encode())
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(code)
        os.close(writing)
        with os.fdopen(reading) as stream:
            steps = stream.read()
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            self.assertEqual(signal.SIGKILL, os.WTERMSIG(status))
            return False
        self.assertEqual(expected, os.WEXITSTATUS(status),
                         'see standard error')
        self.steps = int(steps)
        return True

    def _agent(self):
        conf = cfg.ConfigOpts()
        gpu_conf.register_opts(conf)
        conf([], default_config_files=[self.config_path])
        return agent.Agent(conf, policies.read(conf), self.hostname,
                           self.placement)

    def get_ready(self, running):
        """Make the GPU ready as ``cyborg-gpu gpu prepare`` does."""
        node = nodes.Node(privileged.machine(), self.state_path,
                          running.settings)
        outcome = node.preparer.prepare(node.live.host().gpus[0])
        self.assertEqual('', outcome.reason)

    def handle(self, running, handle):
        """Return Cyborg's arguments to the agent for the first handle."""
        running.report()
        # Without Placement a report leaves out a GPU that no report has had:
        # a server may have it through Cyborg's own driver.
        (gpu,) = running.live.host().gpus
        first = next(
            one for deployable in running.device(
                gpu, running._offers(gpu)).deployables
            for one in deployable.handles)
        return str(first.address), first.asked_type, handle

    def world(self):
        """Return the machine, to change it from outside the driver."""
        return simulator.Machine.load(self.host, self.hardware)

    def gpu(self):
        """Return the state of the simulated GPU."""
        world = self.world()
        with world.operation():
            return world.state.gpus[GPU]

    def truth(self):
        """Return the hardware's instances, vGPUs (mdev or function), modes."""
        gpu = self.gpu()
        return (sorted((item.profile_id, item.start)
                       for item in gpu.instances.values()),
                [vgpu.uuid or vgpu.function for vgpu in gpu.vgpus],
                (gpu.mig, gpu.vfs, gpu.heterogeneous))

    def journal(self):
        """Return the entries of the journal of binds."""
        return host_files.journal(self.state_path)

    def not_the_owners(self):
        """Return the records that a root process has left owned by root.

        A file that never got its final name does no harm.
        """
        if self.owner is None:
            return []
        return [path for place, directories, files in os.walk(
                    self.state_path)
                for name in (*directories, *files)
                for path in (os.path.join(place, name),)
                if os.stat(path).st_uid != self.owner
                and not name.endswith('.new')]

    def sweep(self, prepare, work, check):
        """Kill a process at every step, each time on a new machine.

        :param prepare: called before the process starts.
        :param work: called with the number of the step, or with None to reach
            the end.
        :param check: called after the process has ended.
        """
        def attempt(number):
            self.number = number or 0
            self.begin()
            prepare()
            work(number)
            steps = self.steps
            check()
            return steps

        self.points = attempt(None)
        for number in scope.some(range(self.points)):
            attempt(number)

    def say(self, what, least=4):
        """Print how many steps there were."""
        self.assertGreater(self.points, least)
        print(f'{what}: {self.points} points')
