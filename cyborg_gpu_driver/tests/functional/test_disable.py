# SPDX-License-Identifier: Apache-2.0

"""A device that an operator disables in Cyborg, on the released services."""

import json

import fixtures
from cyborg.api import app as cyborg_app

from cyborg_gpu_driver.tests import command
from cyborg_gpu_driver.tests.functional import gpu_cloud
from cyborg_gpu_driver.tests.unit.cloud import keystone

FIRST, SECOND = '0000:07:00.0', '0000:0f:00.0'
_SMALL, _LARGE = 'CUSTOM_NVIDIA_1G_10GB', 'CUSTOM_NVIDIA_3G_40GB'


class DisableCase(gpu_cloud.GpuTestCase):
    """Two GPUs, each with several providers."""

    starts_reported = True
    gpu = SECOND
    overrides = {
        'gpu': {'policies': 'both'},
        'gpu_policy:both': {'mode': 'mig',
                            'profiles': '1g.10gb, 3g.40gb',
                            'match_address': f'{FIRST}, {SECOND}'}}

    def before_report(self):
        self.keystone = self.useFixture(keystone.KeystoneFixture(
            cyborg_app.load_app()))
        self.log_in(self.keystone.auth_url)
        self.log = self.useFixture(fixtures.FakeLogger(level='INFO'))

    def log_in(self, auth_url):
        self.keystone.write_clouds(here=auth_url)
        self.keystone.log_in(self.driver._conf, auth_url)

    def restart_agent(self):
        """Start a new agent, which knows only what is on the disk."""
        self.driver._agent = None

    def device(self, gpu):
        return next(
            device['uuid'] for device in self.cloud.cyborg.devices()
            if json.loads(device['std_board_info'])['address'] == gpu)

    def disable(self, gpu=SECOND):
        """Disable a GPU in Cyborg, which may close another provider."""
        self.cloud.cyborg.post(f'/devices/{self.device(gpu)}/disable', None)

    def enable(self, gpu=SECOND):
        self.cloud.cyborg.post(f'/devices/{self.device(gpu)}/enable', None)

    def is_closed(self, gpu):
        return {reserved == total
                for total, reserved in self.reserved(gpu).values()}

    def assert_disabled(self):
        self.assertEqual({True}, self.is_closed(SECOND))

    def doctor(self, *arguments):
        code, output, _ = self.command(
            'doctor', '-f', 'json', '--os-cloud', 'here', *arguments)
        return command.differences(code, output)


class DisableTest(DisableCase):

    def test_all_providers_stay_closed_until_it_is_enabled(self):
        open_ = {gpu: self.reserved(gpu) for gpu in (FIRST, SECOND)}
        self.disable()
        self.report()
        self.assert_disabled()
        # Cyborg itself may have closed one of these instead.
        self.assertEqual(open_[FIRST], self.reserved(FIRST))
        self.assertEqual('maintaining', next(
            device['status'] for device in self.cloud.cyborg.devices()
            if device['uuid'] == self.device(SECOND)))
        for _ in range(3):
            self.restart_agent()
            self.cloud.report()
            self.assert_disabled()
        self.enable()
        self.report()
        self.assertEqual(open_, {gpu: self.reserved(gpu)
                                 for gpu in (FIRST, SECOND)})
        for text in ('gets no new server: disabled in Cyborg since',
                     'gets servers again'):
            self.assertIn(f'GPU {SECOND} {text}', self.log.output)

    def test_it_is_remembered_while_cyborg_does_not_answer(self):
        self.disable()
        self.report()
        self.log_in('http://127.0.0.1:9/v3')
        self.restart_agent()
        for _ in range(3):
            self.cloud.report()
            self.assert_disabled()
        self.assertEqual(1, self.log.output.count(
            'Cannot read from Cyborg which devices are disabled'))

    def test_nothing_is_opened_before_cyborg_was_asked(self):
        """Cyborg closes a provider of its choice between two reports."""
        profile = self.profile(_LARGE)
        servers = [self.cloud.bind(profile) for _ in range(4)]
        before = self.generations()
        self.disable()
        (closed,) = set(self.generations() - before)
        for server in servers:
            self.cloud.unbind(server)
        self.assertEqual([0], self.left(closed[0]))
        self.report()
        self.assert_disabled()
        self.assertEqual({'1g.10gb': (7, 0), '3g.40gb': (2, 0)},
                         self.reserved(FIRST))

    def generations(self):
        """Return each provider's name and its generation."""
        return {(name, provider['generation']) for name, provider
                in self.cloud.placement.providers().items()}

    def left(self, name):
        """Return what is left of a provider's inventories."""
        return [item['total'] - item['reserved'] for item
                in self.cloud.placement.inventories(
                    self.cloud.provider(name)['uuid']).values()]
