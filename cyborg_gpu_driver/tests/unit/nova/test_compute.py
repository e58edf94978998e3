# SPDX-License-Identifier: Apache-2.0

"""The start command, whether it can extend a Nova, and what it asks Cyborg."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import types

import fixtures
from oslotest import base

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.nova import capability
from cyborg_gpu_driver.nova import compute
from cyborg_gpu_driver.nova import handles


class MainTest(base.BaseTestCase):

    def test_a_name_that_cannot_be_set_stops_nothing(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.compute._COMM', '/nonexistent/comm'))
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            compute.name_process()
        self.assertIn('/nonexistent/comm cannot be written',
                      errors.getvalue())

    def test_without_nova_it_says_so(self):
        self.useFixture(fixtures.MonkeyPatch(
            'cyborg_gpu_driver.nova.compute._COMM', os.devnull))
        self.useFixture(fixtures.MonkeyPatch(
            'sys.modules', {**sys.modules, 'nova': None}))
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(1, compute.main())
        self.assertIn('Nova cannot be imported', errors.getvalue())
        self.assertIn('nova-compute was not started', errors.getvalue())


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


class Nova34:
    """The methods of Nova 34 that this library extends."""

    def _allocate_cyborg_mdevs(self, accel_info):
        """A method of Nova."""

    def _get_guest_config(
            self, instance, network_info, image_meta, disk_info,
            rescue=None, block_device_info=None, context=None, mdevs=None,
            accel_info=None, share_info=None, old_guest=None):
        """A method of Nova."""

    def _guest_add_accel_pci_devices(self, guest, accel_info):
        """Attach every accelerator as managed."""

    def _hard_reboot(
            self, context, instance, network_info, share_info,
            block_device_info=None, accel_info=None):
        """A method of Nova."""


class CapabilityTest(base.BaseTestCase):

    def test_what_cannot_be_extended(self):
        class Changed(Nova34):
            def _allocate_cyborg_mdevs(self, arqs):
                """A method whose parameter has another name."""

        for version in ('33.1.0', '35.0.0', '3', '', '340.0.0'):
            self.assertIn('34', capability.mismatch(Nova34, version))
        self.assertEqual('', capability.mismatch(Nova34, '34.0.0'))
        self.assertIn('takes self, arqs where self, accel_info',
                      capability.mismatch(Changed, '34.0.0'))
        self.assertIn('_allocate_cyborg_mdevs does not exist',
                      capability.mismatch(object, '34.0.0'))


class MdevProblemTest(base.BaseTestCase):
    """A Nova that is installed in the driver's environment or elsewhere."""

    def problem(self, *versions):
        """The problem with Novas of several versions, one per directory.

        The first directory takes precedence, as in every ``sys.path``.
        """
        directories = []
        for version in versions:
            directory = self.useFixture(fixtures.TempDir()).path
            metadata = os.path.join(
                directory, 'nova-0.dist-info', 'METADATA')
            os.mkdir(os.path.dirname(metadata))
            with open(metadata, 'w', encoding='utf-8') as stream:
                stream.write(f'Name: nova\nVersion: {version}\n')
            directories.append(directory)
        self.useFixture(fixtures.MonkeyPatch('sys.path', directories))
        return capability.mdev_problem()

    def test_problems(self):
        for versions, good in (
                (('34.0.0',), True), (('34.0.1.dev3',), True),
                (('100.0.0',), True), ((), True),
                # The one that Python would import.
                (('33.0.0', '34.0.0'), False), (('33.1.0.dev212',), False),
                (('9.0.0',), False), (('unknown',), False),
                (('\u0663\u0664.0.0',), False)):
            found = self.problem(*versions), capability.quota_problem()
            for text, words in zip(found, ('ignores accelerators',
                                           'does not count'), strict=True):
                if good:
                    self.assertEqual('', text, versions)
                else:
                    self.assertIn(f'Nova {versions[0]} {words}', text)
