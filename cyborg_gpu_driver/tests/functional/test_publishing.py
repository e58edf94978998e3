# SPDX-License-Identifier: Apache-2.0

"""Writes to a Placement that answers only in part, or not at all."""

from cyborg_gpu_driver.tests.functional import test_mig
from cyborg_gpu_driver.tests.functional import test_outages_services


class RefusedTest(test_outages_services.PlacementCase):

    def wrong(self, label):
        """Write a wrong ``reserved``; return the provider's UUID."""
        placement = self.cloud.placement
        provider = placement.providers()[self.name(label)]['uuid']
        name = test_mig._class(label)
        url = f'/resource_providers/{provider}/inventories/{name}'
        body = placement.get(url)
        placement.put(url, dict(body, reserved=body['total'] - 1))
        return provider

    def test_one_provider_keeps_no_other_from_being_put_right(self):
        right = self.reserved()
        refused = self.wrong('1g.10gb')
        self.wrong('2g.20gb')
        wrong = self.reserved()['1g.10gb']
        self.assertNotEqual(right['1g.10gb'], wrong)
        with self.door.busy_for(f'{refused}/inventories'.encode()):
            self.assert_said_once('cannot be written to')
            self.assertEqual(dict(right, **{'1g.10gb': wrong}),
                             self.reserved())
        self.cloud.report()
        self.assertEqual(right, self.reserved())
