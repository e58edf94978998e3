# SPDX-License-Identifier: Apache-2.0

"""GPU hosts, their servers and accelerators, from the services' answers."""

from __future__ import annotations

from urllib import parse

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cloud import facts
from cyborg_gpu_driver.cloud import hosts
from cyborg_gpu_driver.cloud import nova
from cyborg_gpu_driver.tests.unit.cloud import samples
from cyborg_gpu_driver.tests.unit.cloud import services

_TRAITS = ('CUSTOM_GPU_KIND_PASSTHROUGH', samples.MODEL, 'CUSTOM_GPU_NUMA_1',
           'CUSTOM_GPU_UNHEALTHY_XID_79')
_FOUND = (
    samples.provider(), samples.provider('2g.20gb', total=3),
    samples.provider('passthrough', '0000:0f:00.0', total=1, traits=_TRAITS),
    samples.provider(host='compute2'), samples.provider(host='compute3'))
_ABLE = {'root-compute1': 'compute1', 'root-compute2': 'compute2'}
_UP = facts.Service('compute1')


class HostsTest(base.BaseTestCase):

    def build(self, services_=None, disabled=()):
        return {host.name: host for host in hosts.build(
            _FOUND, _ABLE, disabled, services_ or {}, {})}

    def test_several_roles(self):
        """A GPU in use has the role that is used; an idle one has AUTO."""
        def gpu(used):
            whole = samples.provider('passthrough', total=1, traits=(
                'CUSTOM_GPU_KIND_PASSTHROUGH',))
            slice_ = samples.provider('1g.10gb', used=used, traits=(
                'CUSTOM_GPU_KIND_MIG',))
            (host,) = hosts.build([whole, slice_], _ABLE, (), {}, {})
            return host.gpus[0]

        self.assertEqual(('AUTO', ('MIG', 'PASSTHROUGH')),
                         (gpu(0).mode, gpu(0).roles))
        self.assertEqual('MIG', gpu(1).mode)
        self.assertEqual((), self.build()['compute1'].gpus[0].roles)

    def test_which_are_usable(self):
        def usable(**kwargs):
            return [name for name, host in self.build(**kwargs).items()
                    if host.usable]

        self.assertEqual(['compute1', 'compute2'], usable())
        self.assertEqual(['compute2'], usable(disabled=['root-compute1']))
        self.assertEqual(['compute1', 'compute2'], usable(
            services_={'compute1': _UP}))
        down = facts.Service('compute2', up=False)
        self.assertEqual(['compute1'], usable(
            services_={'compute1': _UP, 'compute2': down}))


class ServersTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.accelerator = {'/v2/accelerator_requests': {'arqs': []}}
        self.cloud = self.useFixture(services.Services({
            'accelerator': services.documents(
                self.accelerator, services.CYBORG)})).cloud

    def test_a_request_that_is_none(self):
        self.assertIn('no accelerator request',
                      self.refusal(nova.accelerators, 'a'))
        self.accelerator['/v2/accelerator_requests'] = {'arqs': [{}]}
        self.assertIn('without a UUID', self.refusal(nova.accelerators, 'a'))

    def refusal(self, read, *arguments):
        """The error of a command that reads something."""
        def run():
            with self.cloud.errors():
                read(self.cloud, *arguments)

        return str(self.assertRaises(exception.CloudError, run))


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
