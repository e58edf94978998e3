# SPDX-License-Identifier: Apache-2.0

"""Services restart while servers run, boot and are deleted."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
from concurrent import futures

from oslo_utils import timeutils

from cyborg_gpu_driver import locks
from cyborg_gpu_driver.host.snapshot import model
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'
_WAITS = re.compile('the bind of handle .* waits for GPU')
"""A message of cyborg_gpu_driver.locks."""
_ATTEMPTS = 10
"""Servers that the test requests at most until it sees a bind."""
_ATTEMPT = 20
"""Seconds to wait for the bind of one of these servers."""


class RestartCase(base.TestCase):
    """Each host runs servers with a whole GPU, a slice and a vGPU."""

    def setUp(self):
        super().setUp()
        self.addCleanup(self.cloud.command, 'start')
        self.slice = self.flavor_of(_SLICE)
        # No two of these servers need the same GPU.
        servers = [
            self.create(flavor, self.admin, host=host)
            for flavor in (self.flavor_of('PGPU'), self.slice,
                           self.flavor_of('CUSTOM_NVIDIA_A100_8C'))
            for host in self.cloud.hosts]
        self.servers = [self.wait_for(server, 'ACTIVE') for server in servers]
        self.had = self.have()

    def have(self):
        """The accelerators of each server."""
        return {server.id: self.accelerators(server)
                for server in self.servers}

    def delete_all(self):
        self.delete(*self.admin.compute.servers(all_projects=True))

    def assert_only_handles_left(self, most):
        """Assert that only attach handles are left, which Cyborg has lost.

        A bind fails if its RPC is lost. Nova then deletes the request while
        Cyborg is still binding it, so the handle remains in use but belongs
        to no request. No API releases the handle, so the test does this in
        the database. It deletes requests that are left with ``openstack gpu
        orphan clean``.

        :param most: how many binds may have been lost.
        """
        self.clean_requests()
        with contextlib.suppress(base.Late):
            self.until(lambda: set(self.left()) <= {base.HANDLES},
                       'at most handles are left')
        left = self.left()
        self.assertLessEqual(len(left.pop(base.HANDLES, ())), most)
        self.assertEqual({}, left)
        self.cloud.release_handles()
        self.assert_nothing_withheld()


class AgentTest(RestartCase):

    @scope.only_in_all
    def test_agents_are_restarted(self):
        for host in self.cloud.hosts:
            self.cloud.restart(f'cyborg-agent-{host}')
        self.assertEqual(self.had, self.have())
        server = self.boot(self.slice)
        self.assertEqual(1, len(self.accelerators(server)))
        self.delete_all()
        self.assert_nothing_left()

    def test_agents_are_killed_during_a_bind(self):
        """One agent has not touched the GPU yet, one is in mid-bind."""
        idle, busy = self.cloud.hosts
        agents = {host: self.cloud.process(f'cyborg-agent-{host}')
                  for host in self.cloud.hosts}
        waiting = len(self.waiting_binds(idle))
        with contextlib.ExitStack() as held:
            for address in self.cloud.hardware(idle):
                held.enter_context(locks.gpu(
                    self.cloud.state_path(idle),
                    model.PciAddress.parse(address)))
            dying = [self.create(self.slice, self.admin, host=idle)]
            # Cyborg has a handle in use before the agent has the request. An
            # agent that starts then would bind it.
            self.until(lambda: len(self.waiting_binds(idle)) > waiting,
                       'the agent has the bind, and waits for the GPU')
            os.killpg(agents[idle], signal.SIGKILL)
        dying.append(self.killed_in_its_bind(busy, agents[busy]))

        for host in self.cloud.hosts:
            self.cloud.restart(f'cyborg-agent-{host}')
        for server in dying:
            self.wait_for(server, 'ERROR')
        self.assertEqual(self.had, self.have())
        server = self.boot(self.slice)
        self.assertEqual(1, len(self.accelerators(server)))
        self.delete_all()
        self.assert_only_handles_left(len(dying))

    def killed_in_its_bind(self, host, agent):
        """Kill an agent that has recorded a bind, and return the server.

        A bind may be faster than this test. The test then requests another
        server. Nothing happens to the hardware between the last check and
        the kill.
        """
        machine = self.cloud.machine(host)
        for _ in range(_ATTEMPTS):
            server = self.create(self.slice, self.admin, host=host)
            with contextlib.suppress(base.Late):
                self.until(lambda: self.is_binding(host),
                           'a bind is written down', _ATTEMPT, poll=0)
            with machine.operation(write=True):
                if self.is_binding(host):
                    os.killpg(agent, signal.SIGKILL)
                    return server
            self.delete(self.wait_for(server, 'ACTIVE'))
        raise AssertionError(f'no bind was seen in {_ATTEMPTS} attempts')

    def waiting_binds(self, host):
        return _WAITS.findall(self.cloud.log(f'cyborg-agent-{host}'))

    def is_binding(self, host):
        records = pathlib.Path(self.cloud.state_path(host), 'gpus')
        return any('"phase": "binding"' in record.read_text()
                   for record in records.glob('*.json'))


@scope.only_in_all
class StormTest(RestartCase):

    def test_conductor_and_broker_are_restarted(self):
        """Running servers keep their accelerators; new ones may fail.

        The restart of the broker loses the messages that are under way. A
        server whose messages are lost remains in BUILD forever. This is a
        limit of Nova. The test deletes these servers.
        """
        with futures.ThreadPoolExecutor(6) as pool:
            storm = [pool.submit(self.create, self.slice, cloud)
                     for cloud in (self.user1, self.user2) * 6]
            for service in ('cyborg-conductor', 'rabbitmq'):
                self.cloud.restart(service)
            back = timeutils.utcnow()
        asked = [done.result() for done in storm if not done.exception()]
        with contextlib.suppress(base.Late):
            self.until(lambda: not self.building(), 'all are built', 90)
        self.assertEqual(self.had, self.have())
        for server in self.admin.compute.servers(all_projects=True):
            if server.status == 'ACTIVE':
                self.assertEqual(1, len(self.accelerators(server)))
        self.until(lambda: self.computes_report(back),
                   'nova-compute reports again')
        after = self.boot(self.flavor_of('CUSTOM_NVIDIA_A100_8C'))
        self.assertEqual(1, len(self.accelerators(after)))
        self.delete_all()
        self.assert_only_handles_left(len(asked))

    def computes_report(self, since):
        """Whether each nova-compute has reported to Nova since that time.

        The restart of the broker loses the call of a nova-compute, which
        then waits 60 s for the answer. After the same time
        (service_down_time) Nova's scheduler considers the nova-compute dead
        and finds no host.
        """
        return all(
            service.state == 'up' and timeutils.normalize_time(
                timeutils.parse_isotime(f'{service.updated_at}Z')) > since
            for service in self.admin.compute.services(binary='nova-compute'))

    def building(self):
        return [server.id for server
                in self.admin.compute.servers(all_projects=True)
                if server.status == 'BUILD']


@scope.only_in_all
class HostTest(RestartCase):

    def test_a_host_is_rebooted(self):
        host = self.cloud.hosts[0]
        services = (f'cyborg-agent-{host}', f'nova-compute-{host}')
        self.cloud.kill(*services)
        self.cloud.machine(host).reboot()
        self.assertEqual({}, self.slices(host))
        self.cloud.cyborg_gpu(host, 'layout', 'restore')
        self.assertEqual(self.had, self.have())
        for service in reversed(services):
            self.cloud.restart(service)
        self.assertEqual(self.had, self.have())
        for server in self.servers:
            self.assertEqual('ACTIVE', self.reboot(server).status)
        self.assertEqual(self.had, self.have())
        self.assertEqual(1, len(self.accelerators(
            self.boot(self.slice, self.admin, host=host))))
        self.delete_all()
        self.assert_nothing_left()
