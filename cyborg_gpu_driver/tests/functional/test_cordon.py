# SPDX-License-Identifier: Apache-2.0

"""GPUs that an operator cordons on the host, on the released services."""

import json

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.functional import test_disable
from demo_lib import nova_part

FIRST, SECOND = test_disable.FIRST, test_disable.SECOND
_SMALL = 'CUSTOM_NVIDIA_1G_10GB'
_CREATES = 20 if scope.ALL else 6
"""Servers that are created while a GPU is cordoned."""


class CordonTest(test_disable.DisableCase):

    def setUp(self):
        super().setUp()
        self.small = self.profile(_SMALL)

    def gpu(self, *arguments, code=0):
        result, output, errors = self.command(
            'gpu', *arguments, '-f', 'json')
        self.assertEqual(code, result, errors)
        return json.loads(output)

    def cordon(self):
        self.gpu('cordon', SECOND, '--reason', 'a fan is broken')

    def placed(self, servers):
        """Return the buses of the GPUs that servers have."""
        return {arq['attach_handle_info']['bus']
                for server in servers for arq in server.arqs}

    def test_no_new_server_and_the_old_ones_stay(self):
        old = [self.cloud.bind(self.small) for _ in range(8)]
        there = self.mdevs(SECOND)
        self.assertTrue(there)
        free = 7 - len(self.mdevs(FIRST))
        self.cordon()
        # The command has written to Placement; no report is needed.
        self.assert_disabled()
        new = []
        for number in range(_CREATES):
            if number % 5 == 0:
                self.restart_agent()
                self.cloud.report()
            try:
                new.append(self.cloud.bind(self.small))
            except nova_part.NoCandidates:
                pass
        self.assertEqual(min(free, _CREATES), len(new))
        self.assertEqual({'07'} if new else set(), self.placed(new))
        self.assertEqual(there, self.mdevs(SECOND))
        self.assert_disabled()
        for server in old:
            self.cloud.unbind(server)
        self.assertEqual({}, self.mdevs(SECOND))
        self.report()
        self.assert_disabled()
        self.gpu('cordon', SECOND, '--reason', 'again')
        self.assertEqual(0, self.doctor()[0])
        self.gpu('uncordon', SECOND)
        self.assertEqual({False}, self.is_closed(SECOND))

    def test_cyborg_and_the_host(self):
        """A GPU gets servers once neither Cyborg nor a cordon bars it."""
        self.cordon()
        self.disable()
        self.report()
        (row,) = self.gpu('uncordon', SECOND, code=1)
        self.assertEqual(1, len(row['cordons']))
        self.report()
        self.assert_disabled()
        self.cordon()
        self.enable()
        self.report()
        self.assert_disabled()
        self.gpu('uncordon', SECOND)
        self.report()
        self.assertEqual({False}, self.is_closed(SECOND))

    def test_the_api_of_cyborg_shows_who_and_why(self):
        self.cordon()
        self.report()
        (info,) = [json.loads(device['vendor_board_info'])
                   for device in self.cloud.cyborg.devices()
                   if device['uuid'] == self.device(SECOND)]
        (known,) = json.loads(info['cordons'])
        self.assertEqual(('operator', 'a fan is broken'),
                         (known['source'], known['reason']))
        self.gpu('uncordon', SECOND)
        self.report()
        for device in self.cloud.cyborg.devices():
            self.assertNotIn('cordons', device['vendor_board_info'])


class HealthCordonTest(test_disable.DisableCase):
    """A GPU that has too many errors."""

    overrides = {**test_disable.DisableCase.overrides, 'gpu': {
        **test_disable.DisableCase.overrides['gpu'],
        'health_cordon_errors': 2}}
    clean_checks = 1

    def set_uncorrected(self, number):
        self.world.set_health(SECOND, uncorrected=number)
        self.report()

    def test_it_stays_cordoned_when_it_is_healthy(self):
        for closed in (False, True):
            self.set_uncorrected(1)
            self.assert_disabled()
            self.set_uncorrected(0)
            self.assertEqual({closed}, self.is_closed(SECOND))
        self.restart_agent()
        self.report()
        self.assert_disabled()
        _, output, errors = self.command('gpu', 'list', '-f', 'json')
        (shown,) = [row['cordons'] for row in json.loads(output)
                    if row['address'] == SECOND]
        self.assertIn('2 errors, the last was uncorrected ECC', shown[0])
        self.assertIn('gets no new server: cordoned because', errors)
        self.assertEqual(0, self.command('gpu', 'uncordon', SECOND)[0])
        self.assertEqual({False}, self.is_closed(SECOND))
        self.set_uncorrected(1)
        self.set_uncorrected(0)
        self.assertEqual({False}, self.is_closed(SECOND))
