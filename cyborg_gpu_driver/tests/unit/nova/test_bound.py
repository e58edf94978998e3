# SPDX-License-Identifier: Apache-2.0


"""Reading the accelerator requests of a server from Cyborg."""

from __future__ import annotations

import types

from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova import compute
from cyborg_gpu_driver.nova import handles

_ARQ = {'uuid': 'a', 'state': 'Bound', 'hostname': 'node1'}
SERVER = types.SimpleNamespace(
    uuid='s', node='node1', flavor=types.SimpleNamespace(
        extra_specs={'accel:device_profile': 'gpu'}))


class RequestsTest(base.BaseTestCase):
    """Cyborg answers after a while, on a clock that only sleeping advances."""

    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.answers_at = 0.0
        self.requests = handles.Requests(
            self.ask, lambda: self.now, self.sleep)

    def sleep(self, seconds):
        self.now += seconds

    def ask(self, context, server):
        if self.now < self.answers_at:
            raise ConnectionError('refused')
        return [_ARQ]

    def test_cyborg_starts_later(self):
        self.answers_at = 60.0
        self.assertEqual([_ARQ], self.requests.of(None, SERVER))
        self.assertEqual(60.0, self.now)

    def test_all_servers_wait_only_once(self):
        self.answers_at = float('inf')
        for _ in range(8):
            error = self.assertRaises(exception.CloudError,
                                      self.requests.of, None, SERVER)
            self.assertIn('server s: refused', str(error))
        self.assertEqual(120.0, self.now)
        self.answers_at = 0.0
        self.assertEqual([_ARQ], self.requests.of(None, SERVER))

    def test_not_bound_here(self):
        for wrong in ({'hostname': 'node2'}, {'state': 'BindFailed'}):
            requests = handles.Requests(
                lambda context, server, wrong=wrong: [{**_ARQ, **wrong}])
            self.assertRaises(exception.CloudError,
                              requests.of, None, SERVER)


class CredentialsTest(base.BaseTestCase):

    def test_context_without_a_token(self):
        cyborg = types.SimpleNamespace(get_client=lambda context: context)
        compute.with_credentials(cyborg, types.SimpleNamespace(
            get_nova_service_user_context=lambda: 'service'))
        for token, plugin, used in (
                (None, None, 'service'), ('t', None, None),
                (None, 'p', None)):
            context = types.SimpleNamespace(
                auth_token=token, user_auth_plugin=plugin)
            self.assertIs(used or context, cyborg.get_client(context))
