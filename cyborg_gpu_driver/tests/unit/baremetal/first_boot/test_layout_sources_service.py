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

"""The metadata service: no answer, refused answers and good answers."""

import os

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal import layout_sources
from cyborg_gpu_driver.tests.unit.baremetal.first_boot import metadata_server

_META = 'meta_data.json'


class ServiceTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.server = metadata_server.MetadataServer()
        self.addCleanup(self.server.close)
        self.now = 0.0
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def service(self, timeout=10, doubtful=False):
        return layout_sources.MetadataService(
            self.server.url + '/', timeout, doubtful, lambda: self.now,
            self.sleep)

    def refused(self, timeout=10):
        error = self.assertRaises(exception.CloudError,
                                  self.service(timeout).read, _META)
        self.assertIn(f'{self.server.url}/{_META}: ', str(error))
        return str(error)

    def test_documents(self):
        self.server.documents[_META] = '{"name": "\u00e4"}'.encode()
        service = self.service()
        self.assertEqual('{"name": "\u00e4"}', service.read(_META))
        self.assertIsNone(service.read('vendor_data.json'))
        self.assertEqual(['/openstack/latest/meta_data.json',
                          '/openstack/latest/vendor_data.json'],
                         self.server.asked)
        self.assertIsNone(service.silent)

    def test_a_layout_of_the_server(self):
        self.server.documents[_META] = (
            b'{"meta": {"cyborg_gpu_layout": "all-1g.10gb"}}')
        service = self.service()
        found = layout_sources.search([layout_sources.in_documents(
            service.read, service.url)]).found
        self.assertEqual(('all-1g.10gb', f'{self.server.url}, {_META}, meta, '
                          'cyborg_gpu_layout'), (found.layout, found.source))

    def test_a_service_that_is_not_ready_is_asked_again(self):
        self.server.documents[_META] = [503, 429, 500, b'{}']
        self.assertEqual('{}', self.service().read(_META))
        self.assertEqual([1.0] * 3, self.slept)

    def test_a_service_that_never_gets_ready(self):
        self.server.documents[_META] = 503
        self.assertIn('returned HTTP 503', self.refused())
        self.assertEqual(10, len(self.server.asked))

    def test_a_refusal_is_not_asked_again(self):
        self.server.documents[_META] = 403
        self.assertIn('returned HTTP 403', self.refused())
        self.assertEqual([], self.slept)

    def test_a_redirection_is_not_followed(self):
        self.server.documents[_META] = 302
        self.assertIn('returned HTTP 302', self.refused())
        self.assertEqual(1, len(self.server.asked))

    def test_no_service(self):
        self.server.close()
        service = self.service()
        self.assertIsNone(service.read(_META))
        self.assertIn('Connection refused', service.silent)
        self.assertEqual(9, len(self.slept))
        # The client does not request further documents, even if the service
        # is up now.
        self.server.documents['vendor_data.json'] = b'{}'
        self.server.open()
        self.assertIsNone(service.read('vendor_data.json'))
        self.assertEqual([], self.server.asked)

    def test_a_service_that_did_not_answer_last_time(self):
        self.server.close()
        service = self.service(doubtful=True)
        self.assertIsNone(service.read(_META))
        self.assertIn('Connection refused', service.silent)
        self.assertEqual([], self.slept)
        # A service that is not ready does exist, so it is asked again.
        self.server.open()
        self.server.documents[_META] = [503, b'{}']
        self.assertEqual('{}', self.service(doubtful=True).read(_META))

    def test_a_network_that_is_late(self):
        """Without a route, it is unknown whether there is a service."""
        # A connection to the broadcast address always fails.
        service = layout_sources.MetadataService(
            'http://255.255.255.255/', 3, True, lambda: self.now,
            self.sleep)
        self.assertIsNone(service.read(_META))
        self.assertEqual([1.0, 1.0], self.slept)

    def test_a_service_that_is_gone_again_is_one(self):
        self.server.documents[_META] = b'{}'
        service = self.service()
        service.read(_META)
        self.server.close()
        error = self.assertRaises(exception.CloudError, service.read,
                                  'vendor_data.json')
        self.assertIn('Connection refused', str(error))

    def test_too_much(self):
        self.server.documents[_META] = b'x' * (2 * layout_sources.LIMIT)
        self.assertIn('is longer than', self.refused())

    def test_too_slow(self):
        """The time limit holds even while parts of the answer arrive."""
        self.server.documents[_META] = b'x' * layout_sources.LIMIT

        def clock():
            self.now += 1
            return self.now

        service = layout_sources.MetadataService(
            self.server.url, 4, clock=clock, sleep=self.sleep)
        error = self.assertRaises(exception.CloudError, service.read,
                                  _META)
        self.assertIn('did not answer in time', str(error))

    def test_proxies_are_not_for_it(self):
        for name in ('http_proxy', 'HTTP_PROXY', 'all_proxy'):
            self.useFixture(fixtures.EnvironmentVariable(
                name, 'http://127.0.0.1:1'))
        self.server.documents[_META] = b'{}'
        self.assertEqual('{}', self.service().read(_META))
        self.assertIn('http_proxy', os.environ)

    def test_urls(self):
        for url in ('', 'file:///etc/shadow', 'ftp://host/x', 'http://',
                    'http://host:port/', 'http://host/?a', 'http://[/'):
            error = self.assertRaises(
                exception.InvalidValue, layout_sources.MetadataService,
                url, 1)
            self.assertIn('expected a URL such as http://', str(error))
