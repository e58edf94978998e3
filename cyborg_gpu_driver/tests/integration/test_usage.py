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

"""GPU-hours of the servers of two projects."""

import threading
import time

import prometheus_client

from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.usage import projects
from cyborg_gpu_driver.metrics import server
from cyborg_gpu_driver.metrics.usage import endpoint
from cyborg_gpu_driver.osc import usage
from cyborg_gpu_driver.program import audit
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.unit.osc import running


@scope.only_in_all
class UsageTest(base.TestCase):
    """``openstack gpu usage`` with the records and the Nova of a cloud."""

    def setUp(self):
        super().setUp()
        # The hosts of this cloud have no separate addresses.
        exporter = server.Server(
            ('127.0.0.1', 0), prometheus_client.CollectorRegistry(),
            server.Access(None), {
                f'/{host}{endpoint.PATH}': endpoint.Endpoint(
                    self.cloud.state_path(host), host)
                for host in self.cloud.hosts})
        thread = threading.Thread(target=exporter.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(exporter.server_close)
        self.addCleanup(exporter.shutdown)
        self.url = f'http://127.0.0.1:{exporter.server_address[1]}/{{host}}'
        self.openstack = running.Openstack(
            connection.Cloud(self.admin, 'admin'))

    def assigned(self):
        """The servers for which an agent has written an assignment record."""
        return {line.evidence['server'] for host in self.cloud.hosts
                for line in audit.read(self.cloud.state_path(host)).records
                if line.what == 'assigned'}

    def test_the_projects_of_servers(self):
        start = time.time()
        flavor = self.flavor_of('CUSTOM_NVIDIA_1G_10GB')
        first = self.boot(flavor)
        second = self.boot(flavor, self.user2)
        servers = {first.id, second.id}
        self.until(lambda: servers <= self.assigned(),
                   'the agents know whose the slices are')
        self.delete(first)
        self.assertEqual(
            {first.id: self.user1.current_project_id,
             second.id: self.user2.current_project_id},
            projects.of_servers(connection.Cloud(self.admin, 'admin'),
                                servers, start))
        rows = self.openstack.rows(
            usage.ShowUsage, '--exporter-url', self.url, '--start',
            f'{round(time.time() - start) + 1}s')
        self.assertEqual(
            {('project1', '1g.10gb', 1), ('project2', '1g.10gb', 1)},
            {(row['Project'], row['Profile'], row['Count'])
             for row in rows})
        for row in rows:
            self.assertLess(0.0, row['Seconds'])
            self.assertLess(row['Seconds'], time.time() - start)
