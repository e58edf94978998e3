# SPDX-License-Identifier: Apache-2.0
"""The explanation of servers that a real Nova refused, and orphans."""

from __future__ import annotations

import json

from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.osc import explain
from cyborg_gpu_driver.osc import orphan
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.unit.osc import running

_SLICE = 'CUSTOM_NVIDIA_1G_10GB'


class ExplainTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.openstack = running.Openstack(
            connection.Cloud(self.admin, 'admin'))

    def explain(self, *arguments, code=1):
        return json.loads(self.openstack.run(
            explain.ExplainRequest, *arguments, '-f', 'json', code=code)[0])

    def codes(self, *arguments, code=1):
        """The codes of what is missing overall, and on each host."""
        found = self.explain(*arguments, code=code)
        return [item['code'] for item in found['missing']], {
            host['host']: {item['code'] for item in host['missing'] + [
                one for candidate in host['candidates']
                for one in candidate['missing']]}
            for host in found['hosts']}

    @scope.only_in_all
    def test_the_refused_one_is_told_who_has_the_gpus(self):
        flavor = self.flavor_of('PGPU')
        for _ in self.cloud.hosts:
            self.boot(flavor)
        refused = self.wait(self.create(flavor))
        self.assertEqual('ERROR', refused.status)
        self.assertEqual(
            (['NO_VALID_HOST'], {host: {'USED'} for host in self.cloud.hosts}),
            self.codes('--server', refused.id))
        self.assertIn(refused.name, self.explain(
            '--flavor', flavor.name)['verdict'])

    @scope.only_in_all
    def test_what_schedules_and_where_it_does_not(self):
        flavor = self.flavor_of(_SLICE)
        host = self.cloud.hosts[0]
        service = next(self.admin.compute.services(
            binary='nova-compute', host=host))
        found = self.explain('--flavor', flavor.name, '--project', 'admin',
                             code=0)
        self.assertTrue(all(one['accepted'] for one in found['hosts']))
        self.admin.compute.disable_service(
            service, disabled_reason='a test')
        self.addCleanup(self.admin.compute.enable_service, service)
        self.until(lambda: self.codes(
            '--flavor', flavor.name, '--host', host)[1] == {
                host: {'HOST_DISABLED'}}, 'the host is disabled')
        self.assertEqual((1, 2), self.taking('--flavor', flavor.name))

    def taking(self, *arguments):
        """The number of hosts that accept the server, and of all hosts."""
        hosts = self.explain(*arguments, code=0)['hosts']
        return sum(host['accepted'] for host in hosts), len(hosts)

    @scope.only_in_all
    def test_a_flavor_too_large_for_the_hosts(self):
        profile = self.device_profile({f'resources:{_SLICE}': '1'})
        flavor = self.admin.compute.create_flavor(
            name=f'large-{profile}', vcpus=100000, ram=64, disk=1)
        self.addCleanup(self.admin.compute.delete_flavor, flavor)
        self.admin.compute.create_flavor_extra_specs(
            flavor, {'accel:device_profile': profile})
        _, hosts = self.codes('--flavor', flavor.name)
        self.assertEqual({host: {'HOST_RESOURCES'}
                          for host in self.cloud.hosts}, hosts)

    @scope.only_in_all
    def test_a_request_that_nobody_bound(self):
        profile = self.device_profile({f'resources:{_SLICE}': '1'})
        self.admin.accelerator.post('/accelerator_requests', json={
            'device_profile_name': profile})
        (left,) = self.openstack.rows(
            orphan.CleanOrphan, '--dry-run', code=1)
        self.assertEqual(('request-of-nobody', profile),
                         (left['Kind'], left['Pins']))
        self.openstack.run(orphan.CleanOrphan, '--yes', '--older-than', '1')
        self.assert_nothing_left()

    @scope.only_in_all
    def test_a_server_that_lives_leaves_nothing(self):
        self.boot(self.flavor_of(_SLICE))
        self.assertEqual([], self.openstack.rows(
            orphan.CleanOrphan, '--dry-run'))

    def test_a_server_that_was_deleted_while_cyborg_was_down(self):
        server = self.boot(self.flavor_of(_SLICE))
        self.cloud.kill('cyborg-api')
        self.addCleanup(self.cloud.restart, 'cyborg-api')
        self.delete(server)
        self.cloud.restart('cyborg-api')
        (left,) = self.openstack.rows(
            orphan.CleanOrphan, '--dry-run', code=1)
        self.assertEqual(('request-of-gone-server', server.id),
                         (left['Kind'], left['Server']))
        self.assertIn('roles admin and service', self.openstack.run(
            orphan.CleanOrphan, '--yes', '--older-than', '0', code=1)[1])
        nova = running.Openstack(
            connection.Cloud(self.cloud.connect('nova'), 'nova'))
        nova.run(orphan.CleanOrphan, '--yes', '--older-than', '0')
        self.assert_nothing_left()
