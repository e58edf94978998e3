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

"""``openstack gpu usage`` with running exporters."""

import os
import uuid
from urllib import parse

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.osc import usage
from cyborg_gpu_driver.tests.unit.cloud import services
from cyborg_gpu_driver.tests.unit.metrics import exporters
from cyborg_gpu_driver.tests.unit.osc import running

_HOSTS = ('127.0.0.1', '127.0.0.2')
_PHYSICS, _BIOLOGY = (uuid.UUID(int=number).hex for number in (1, 2))
_ALIVE, _DELETED, _KNOWN, _PURGED = (
    str(uuid.UUID(int=number)) for number in range(3, 7))
_START = 1793491200.0
"""2026-11-01T00:00Z."""
_PERIOD = ('--start', '2026-11-01', '--end', '2026-11-01T10:00')
_PROVIDER = '{}_gpu_0000:{}:00.0_1g.10gb'


class UsageTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        for name in (usage._URL, usage._CREDENTIALS):
            self.useFixture(fixtures.EnvironmentVariable(name))
        self.hosts = [self.useFixture(exporters.Exporter((_HOSTS[0], 0)))]
        self.port = self.hosts[0].port
        self.hosts.append(self.useFixture(exporters.Exporter(
            (_HOSTS[1], self.port))))
        self.nova = {
            '/v2.1/servers/detail': self.deleted,
            f'/v2.1/servers/{_ALIVE}': {'server': {
                'id': _ALIVE, 'name': 'a', 'status': 'ACTIVE',
                'tenant_id': _PHYSICS}}}
        self.placed = list(_HOSTS)
        projects = [{'id': _PHYSICS, 'name': 'physics'}]
        self.asked = []
        self.openstack = running.Openstack(self.useFixture(services.Services({
            'placement': services.documents({
                '/': services.PLACEMENT,
                '/resource_providers': self.providers}),
            'compute': services.documents(self.nova, services.NOVA),
            'identity': services.documents({
                '/v3/projects': lambda query: {'projects': [
                    item for item in projects
                    if query in ('', f'name={item["name"]}')]}},
                services.KEYSTONE)})).cloud)

    def providers(self, query):
        self.assertEqual('required=OWNER_CYBORG', query)
        return {'resource_providers': [
            # A provider of another Cyborg driver, which is ignored.
            {'uuid': 'x', 'name': 'x_FakeDevice', 'root_provider_uuid': 'x'},
            *({'uuid': name, 'name': _PROVIDER.format(name, gpu),
               'root_provider_uuid': name}
              for name in self.placed for gpu in ('3b', '5e'))]}

    def deleted(self, query):
        asked = dict(parse.parse_qsl(query))
        self.assertEqual('true', asked['deleted'])
        self.asked.append(asked.get('changes-since'))
        return {'servers': [{'id': _DELETED, 'tenant_id': _BIOLOGY}]}

    def fill(self):
        """Record an hour for each server, on both hosts in turn."""
        for number, owner in enumerate((
                {'server': _ALIVE}, {'server': _DELETED},
                {'server': _KNOWN, 'project': _PHYSICS},
                {'server': _PURGED}, {})):
            begin = _START + 3600 * number
            self.hosts[number % 2].used(
                str(uuid.UUID(int=99 + number)), begin, begin + 3600, **owner)

    def run_usage(self, *arguments, code=0):
        return self.openstack.run(
            usage.ShowUsage, '--exporter-url', f'http://{{host}}:{self.port}',
            *_PERIOD, *arguments, code=code)

    def rows(self, *arguments, code=0):
        return self.openstack.rows(
            usage.ShowUsage, '--exporter-url', f'http://{{host}}:{self.port}',
            *_PERIOD, *arguments, code=code)

    def test_projects(self):
        self.fill()
        found = [(row['Project'], row['Project ID'], row['Profile'],
                  row['Count'], row['Seconds'], row['Hours'])
                 for row in self.rows()]
        self.assertEqual([
            (None, None, '1g.10gb', 2, 7200.0, 2.0),
            ('physics', _PHYSICS, '1g.10gb', 2, 7200.0, 2.0),
            # A project that has been deleted from Keystone.
            (_BIOLOGY, _BIOLOGY, '1g.10gb', 1, 3600.0, 1.0)], found)
        self.assertEqual(['2026-10-31T23:00:00Z'], self.asked)

    def test_one_project(self):
        self.fill()
        output, errors = self.run_usage('--project', 'physics', '-f', 'csv')
        self.assertEqual(
            ['"Project","Project ID","Profile","Count","Seconds","Hours"',
             f'"physics","{_PHYSICS}","1g.10gb",2,7200.0,2.0'],
            output.splitlines())
        self.assertIn('2.0000 hours of servers whose project is unknown',
                      errors)
        # The project that has been deleted from Keystone.
        self.assertEqual(1.0, self.rows(
            '--project', str(uuid.UUID(_BIOLOGY)))[0]['Hours'])
        self.assertRaises(exception.CloudError, self.run_usage, '--project',
                          'chemistry')

    def test_by(self):
        self.fill()
        self.assertEqual([(_HOSTS[0], '0000:3b:00.0', 3, 3.0),
                          (_HOSTS[1], '0000:3b:00.0', 2, 2.0)], [
            (row['Host'], row['GPU'], row['Count'], row['Hours'])
            for row in self.rows('--by', 'gpu')])
        # The command does not query Nova for what the sums do not need.
        self.assertEqual([], self.asked)

    def test_a_table_for_people(self):
        self.fill()
        output, _ = self.run_usage('--by', 'server', '--by', 'gpu')
        self.assertEqual(80, max(map(len, output.splitlines())))
        self.assertNotIn('Seconds', output)
        self.assertIn(' - ', output)

    def test_a_host_that_does_not_answer(self):
        self.fill()
        self.placed.append('127.0.0.3')
        output, errors = self.run_usage('--by', 'host', '-f', 'value',
                                        code=1)
        self.assertIn('Not counted: exporter of host 127.0.0.3', errors)
        self.assertEqual(2, len(output.splitlines()))

    def test_a_host_whose_records_are_not_whole(self):
        self.fill()
        path = os.path.join(self.hosts[1].state_path, 'audit.jsonl')
        with open(path, 'a', encoding='utf-8') as stream:
            stream.write('no record\n')
        _, errors = self.run_usage(code=1)
        self.assertIn('Host 127.0.0.2: 1 line(s) of the audit record',
                      errors)

    def test_the_exporter_of_another_host(self):
        self.fill()
        self.hosts[1].name(_HOSTS[0])
        _, errors = self.run_usage(code=1)
        self.assertIn('is that of host 127.0.0.1', errors)

    def test_a_nova_that_does_not_answer(self):
        self.fill()
        self.nova['/v2.1/servers/detail'] = None
        rows = self.rows(code=1)
        self.assertEqual([(None, 4.0), ('physics', 1.0)], [
            (row['Project'], row['Hours']) for row in rows])

    def test_a_removed_host(self):
        self.fill()
        self.placed.clear()
        self.assertIn('no host', self.run_usage()[1])
        with fixtures.EnvironmentVariable(
                usage._URL, f'http://{{host}}:{self.port}'):
            (row,) = self.openstack.rows(
                usage.ShowUsage, *_PERIOD, '--host', _HOSTS[1], '--host',
                _HOSTS[1], '--by', 'host')
        self.assertEqual((_HOSTS[1], 2.0), (row['Host'], row['Hours']))

    def test_credentials(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'file')
        with open(path, 'w', encoding='utf-8') as stream:
            stream.write('ann:a:b\nmore\n')
        self.assertEqual('ann:a:b', usage._credentials(path))
        self.assertIsNone(usage._credentials(None))
        with fixtures.EnvironmentVariable(usage._CREDENTIALS, 'bob:x'):
            self.assertEqual('bob:x', usage._credentials(None))
        with fixtures.EnvironmentVariable(usage._CREDENTIALS, 'secret'):
            error = self.assertRaises(exception.InvalidValue,
                                      usage._credentials, None)
        self.assertIn('USER:PASSWORD', str(error))
        self.assertNotIn('secret', str(error))
        self.assertIn('--credentials', str(self.assertRaises(
            exception.InvalidValue, usage._credentials, f'{path}x')))

    def test_arguments_that_cannot_be_used(self):
        for arguments in (('--timeout', '0'), ('--timeout', 'x'),
                          ('--by', 'handle')):
            self.assertRaises(SystemExit, self.run_usage, *arguments)
        self.assertIn('--start', str(self.assertRaises(
            exception.InvalidValue, self.run_usage, '--start', 'x')))
