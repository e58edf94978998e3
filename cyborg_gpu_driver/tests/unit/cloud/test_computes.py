# SPDX-License-Identifier: Apache-2.0

"""Reading servers from Nova."""

from __future__ import annotations

from urllib import parse

from oslotest import base

from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.tests.unit.cloud import services


def _server(uuid):
    return {'id': uuid, 'name': f'server {uuid}', 'status': 'ACTIVE',
            'tenant_id': 'project'}


class KnownServersTest(base.BaseTestCase):
    """Nova lists the servers in pages of five."""

    def setUp(self):
        super().setUp()
        self.listed = []
        self.servers = [f'a{number:02}' for number in range(12)]
        self.answers = {'/v2.1/servers/detail': self.page}
        self.cloud = self.useFixture(services.Services({
            'compute': services.documents(self.answers, services.NOVA)})).cloud

    def page(self, query):
        asked = {key: value for key, (value,) in
                 parse.parse_qs(query).items()}
        self.listed.append(asked.get('marker'))
        self.assertEqual('True', asked['all_tenants'])
        start = (self.servers.index(asked['marker']) + 1
                 if 'marker' in asked else 0)
        found = {'servers': [_server(uuid)
                             for uuid in self.servers[start:start + 5]]}
        if start + 5 < len(self.servers):
            found['servers_links'] = [{'rel': 'next', 'href': (
                '/v2.1/servers/detail?' + parse.urlencode({
                    **asked, 'marker': found['servers'][-1]['id']}))}]
        return found

    def show(self, *uuids):
        self.answers.update((f'/v2.1/servers/{uuid}', {
            'server': _server(uuid)}) for uuid in uuids)

    def test_a_few_are_asked_for_one_by_one(self):
        self.show('a00', 'a01')
        self.assertEqual({'a00', 'a01'}, nova.known_servers(
            self.cloud, {'a00', 'a01', 'gone'}).keys())
        self.assertEqual([], self.listed)

    def test_many_are_listed(self):
        # Server c1 is in a cell that is down, so the list lacks it.
        self.show('c1')
        wanted = {*self.servers, 'c1', 'gone'}
        found = nova.known_servers(self.cloud, wanted)
        self.assertEqual(wanted - {'gone'}, found.keys())
        self.assertEqual('server a00', found['a00'])
        self.assertEqual([None, 'a04', 'a09'], self.listed)
