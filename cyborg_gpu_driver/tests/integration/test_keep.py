# SPDX-License-Identifier: Apache-2.0


"""A server has its accelerators after an evacuation and after a host boot."""

from __future__ import annotations

import json
import sys

from openstack import exceptions

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.integration import minicloud

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'
_ASK = """
import json, sys, types
from nova import config, context
from nova.accelerator import cyborg
from cyborg_gpu_driver.nova import compute
path, server, node = sys.argv[1:]
config.parse_args(['nova-compute', '--config-file', path])
compute.with_credentials(cyborg, context)
json.dump(compute.requests(cyborg).of(
    context.get_admin_context(), types.SimpleNamespace(
        uuid=server, node=node, flavor=types.SimpleNamespace(
            extra_specs={'accel:device_profile': 'gpu'}))), sys.stdout)
"""
"""What cyborg-gpu-nova-compute does for a server when its host boots."""


@scope.only_in_all
class KeepTest(base.TestCase):

    def test_evacuation(self):
        """A server of each kind gets one accelerator on the other host."""
        lost, other = self.cloud.hosts
        servers = [self.boot(self.flavor_of(name), self.admin, host=lost)
                   for name in ('PGPU', 'CUSTOM_NVIDIA_A100_8C', _SLICE)]
        for server in servers:
            self.assertEqual(1, len(self.accelerators(server)))
            self.assertEqual(self.arqs(server), self.asked_at_boot(server))
        kinds = [self.accelerators(server)[0].kind for server in servers]

        self.addCleanup(self.revive, lost)
        self.cloud.kill(f'nova-compute-{lost}')
        self.force_down(lost, True)
        for server in servers:
            # Later microversions leave the server stopped.
            exceptions.raise_from_response(self.admin.compute.post(
                f'/servers/{server.id}/action', json={'evacuate': {}},
                microversion='2.14'))
        # Nova changes the server's host a moment after the task ends.
        servers = [self.until(lambda server=server: self.has_come(
            server, other), f'server {server.id} is on {other}')
            for server in servers]
        self.assertEqual(['ACTIVE'] * 3,
                         [server.status for server in servers])
        self.until(lambda: not self.slices(lost)
                   and not self.cloud.claims(lost),
                   f'nothing is left on {lost}')
        for server in servers:
            self.assertEqual(self.arqs(server), self.asked_at_boot(server))

        # When nova-compute of the lost host starts, it removes the evacuated
        # servers from the host.
        self.revive(lost)
        self.assertEqual([[kind] for kind in kinds], [
            [one.kind for one in self.accelerators(server)]
            for server in servers])
        # The next report of the lost host resets its whole GPU.
        self.until(lambda: not any(name.startswith(f'{lost}_gpu_')
                                   for name in self.withheld()),
                   f'all of {lost} can be had again')
        self.delete(*servers)
        self.assert_nothing_left()

    def has_come(self, server, host):
        """The server if it is on this host; else None."""
        now = self.wait(server)
        self.assertNotEqual('ERROR', now.status, now.fault)
        return now if now.compute_host == host else None

    def revive(self, host):
        self.cloud.command('start')
        self.until(lambda: self.force_down(host, False),
                   'nothing of the evacuated servers is left')

    def asked_at_boot(self, server):
        """The accelerator requests that Cyborg shows to Nova's own user."""
        config = (self.cloud.directory / 'etc' / 'nova'
                  / f'nova-compute-{server.compute_host}.conf')
        return json.loads(minicloud.output([
            sys.executable, '-W', 'ignore', '-c', _ASK, str(config),
            server.id, server.compute_host]))

    def force_down(self, host, down):
        """Force a nova-compute down or up; return whether Nova accepts it.

        Nova refuses while evacuated servers remain on the host.
        """
        (service,) = self.admin.compute.services(
            binary='nova-compute', host=host)
        try:
            self.admin.compute.update_service_forced_down(
                service, host, 'nova-compute', down)
        except exceptions.BadRequestException:
            return False
        return True
