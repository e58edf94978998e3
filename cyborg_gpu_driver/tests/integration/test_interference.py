# SPDX-License-Identifier: Apache-2.0

"""Measure applications in pairs of servers whose guests the test runs."""

import base64
import json
import os
import pathlib
import signal
import subprocess
import threading

import fixtures

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.cloud import interference as made
from cyborg_gpu_driver.osc import interference
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.unit.osc import running

_LOOK = 0.5


class Guests(fixtures.Fixture):
    """Runs the user data of servers, as their guests would.

    :param test: the test, which has the connections to the cloud.
    """

    def __init__(self, test):
        self._test = test
        self._running = {}
        self._over = threading.Event()
        self.gpus = {}
        """Host and address of the GPUs of each server."""
        self.together = set()
        """Sets of servers that ran at the same time."""

    def _setUp(self):
        thread = threading.Thread(target=self._run)
        self.addCleanup(self._end)
        self.addCleanup(thread.join)
        self.addCleanup(self._over.set)
        thread.start()

    def _run(self):
        # A separate connection for this thread: keystoneauth's sessions are
        # thread-safe, the SDK's connections are not.
        cloud = self._test.cloud.connect('admin')
        while not self._over.wait(_LOOK):
            there = {server.id: server for server in cloud.compute.servers(
                all_projects=True) if made.MARK in server.metadata}
            for uuid in set(self._running) - set(there):
                self._stop(uuid)
            for uuid, server in there.items():
                # A server of a test itself has nothing to run.
                if (server.status == 'ACTIVE' and server.user_data
                        and uuid not in self._running):
                    self.gpus[uuid] = self._gpus(server)
                    self._running[uuid] = self._boot(server)
                    self.together.add(frozenset(self._running))

    def _gpus(self, server):
        handles = {request['attach_handle_uuid']
                   for request in self._test.arqs(server)}
        host = server.compute_host
        return {(host, address) for address, gpu
                in self._test.cloud.hardware(host).items()
                for vgpu in gpu.vgpus if vgpu.uuid in handles}

    def _boot(self, server):
        console = self._test.cloud.console(server.compute_host, server.id)
        script = base64.b64decode(server.user_data).decode()
        return subprocess.Popen(
            ['sh', '-c', script.replace('/dev/console', str(console))],
            start_new_session=True)

    def _stop(self, uuid):
        process = self._running.pop(uuid)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _end(self):
        for uuid in list(self._running):
            self._stop(uuid)


@scope.only_in_all
class InterferenceTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.openstack = running.Openstack(
            connection.Cloud(self.admin, 'admin'))
        self.directory = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path)
        self.path = self.directory / 'results.json'

    def measure(self, flavor, *arguments, code=0):
        return self.openstack.run(
            interference.MeasureInterference, '--flavor', flavor.name,
            '--image', base.IMAGE, '--output', str(self.path),
            '--repeats', '2', '--warmups', '0', *arguments, code=code)

    def test_pairs_of_guests(self):
        guests = self.useFixture(Guests(self))
        flavor = self.flavor_of('CUSTOM_NVIDIA_1G_10GB')
        # If two run at the same time, the second one runs out of memory.
        lock = self.directory / 'lock'
        self.measure(flavor, '--application', 'a=sleep 0.2',
                     '--application',
                     f"b=sh -c 'mkdir {lock} || exit 77; sleep 0.2; "
                     f"rmdir {lock}'", '--oom-exit-code', '77')
        document = json.loads(self.path.read_text())
        self.assertEqual({'a', 'b'}, set(document['alone']))
        for item in document['alone'].values():
            self.assertEqual(2, len(item['seconds']))
            self.assertLessEqual(0.19, min(item['seconds']))
        self.assertEqual({'a', 'b'}, set(document['slowdown']['a']))
        self.assertIsNone(document['slowdown']['b']['b'])
        self.assertEqual('out of memory',
                         document['pairs']['b']['b']['outcome'])
        # Servers that got a wrong GPU were stopped.
        together = {frozenset(uuid for uuid in running
                              if not self.was_stopped(uuid))
                    for running in guests.together}
        pairs = [pair for pair in together if len(pair) == 2]
        self.assertEqual((4, set()), (len(pairs), {
            pair for pair in together if len(pair) > 2}))
        for one, other in pairs:
            self.assertEqual(guests.gpus[one], guests.gpus[other])
            self.assertEqual(1, len(guests.gpus[one]))
        self.assert_nothing_left()
        before = self.path.read_text()
        self.measure(flavor, '--application', 'a=sleep 0.2',
                     '--application',
                     f"b=sh -c 'mkdir {lock} || exit 77; sleep 0.2; "
                     f"rmdir {lock}'", '--oom-exit-code', '77')
        self.assertEqual(before, self.path.read_text())

    def was_stopped(self, uuid):
        answer = self.admin.compute.get(
            f'/servers/{uuid}/os-instance-actions', microversion='2.21')
        return 'stop' in [action['action'] for action
                          in answer.json()['instanceActions']]

    def test_flavor_without_a_shared_gpu(self):
        self.useFixture(Guests(self))
        with self.assertRaisesRegex(Exception, 'room for two servers'):
            self.measure(self.flavor_of('CUSTOM_NVIDIA_7G_80GB'),
                         '--application', 'a=true', '--host',
                         self.cloud.hosts[0])
        self.assertEqual(['a'], list(
            json.loads(self.path.read_text())['alone']))
        self.assert_nothing_left()

    def test_guest_that_says_nothing(self):
        flavor = self.flavor_of('CUSTOM_NVIDIA_1G_10GB')
        with self.assertRaisesRegex(Exception, 'cloud-init'):
            self.measure(flavor, '--application', 'a=true',
                         '--boot-timeout', '30')
        self.assert_nothing_left()

    def test_ctrl_c(self):
        # A shell starts its background jobs with SIGINT ignored.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(
            signal.SIGINT, signal.default_int_handler))
        self.useFixture(Guests(self))
        flavor = self.flavor_of('CUSTOM_NVIDIA_1G_10GB')
        # One run of the pair sends SIGINT, and only one: a second signal
        # would end the test itself.  mkdir decides which.
        alone, pair = self.directory / 'alone', self.directory / 'pair'
        self.assertRaises(
            KeyboardInterrupt, self.measure, flavor, '--repeats', '1',
            '--application', f"a=sh -c 'mkdir {alone} || "
            f"! mkdir {pair} || kill -INT {os.getpid()}'")
        self.assertEqual(['a'], list(
            json.loads(self.path.read_text())['alone']))
        self.assert_nothing_left()

    def test_what_a_killed_run_has_left_is_deleted(self):
        self.useFixture(Guests(self))
        flavor = self.flavor_of('CUSTOM_NVIDIA_1G_10GB')
        left = self.boot(flavor, self.admin, metadata={
            made.MARK: interference._mark(str(self.path))})
        self.admin.compute.update_server(left, name=f'{made.NAME}a')
        other = self.boot(flavor, self.admin)
        self.measure(flavor, '--application', 'a=true')
        self.assertEqual([other.id], [
            server.id for server in self.admin.compute.servers()])
