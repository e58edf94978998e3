# SPDX-License-Identifier: Apache-2.0

"""Two hosts, filled until no other server gets an accelerator."""

from __future__ import annotations

import collections

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base

_ROOM = {'PGPU': 2, 'CUSTOM_NVIDIA_A100_20C': 4,
         'CUSTOM_NVIDIA_4G_40GB': 4, 'CUSTOM_NVIDIA_3G_40GB': 4}
"""Fills both hosts: each A100 for slices has a 4g and a 3g."""
_REFUSED = {
    'PGPU': ('USED', 'passthrough'),
    'CUSTOM_NVIDIA_A100_20C': ('USED', 'A100-20C'),
    'CUSTOM_NVIDIA_A100_8C': ('RESERVED_SIBLING', 'A100-8C'),
    'CUSTOM_NVIDIA_4G_40GB': ('USED', '4g.40gb'),
    'CUSTOM_NVIDIA_3G_40GB': ('RESERVED_SIBLING', '3g.40gb'),
    'CUSTOM_NVIDIA_1G_10GB': ('RESERVED_SIBLING', '1g.10gb'),
    'CUSTOM_NVIDIA_7G_80GB': ('RESERVED_SIBLING', '7g.80gb')}
"""Reason and label that then block a server, on each GPU with the profile."""


@scope.only_in_all
class FullTest(base.TestCase):

    def test_who_comes_too_late_is_refused_and_told_why(self):
        servers = [
            self.boot(self.flavor_of(name), cloud)
            for name, count in _ROOM.items()
            for cloud in (self.user1, self.user2, self.admin, self.user1
                          )[:count]]
        self.assertEqual(
            dict.fromkeys(self.cloud.hosts, len(servers) // 2),
            collections.Counter(server.compute_host for server in servers))
        for server in servers:
            self.assertEqual(1, len(self.accelerators(server)))
        for name, (reason, label) in _REFUSED.items():
            with self.subTest(resource_class=name):
                server = self.wait_for(self.create(self.flavor_of(name)),
                                       'ERROR')
                self.assertIn('No valid host', server.fault['message'])
                self.assertEqual([], self.arqs(server))
                self.assertEqual({(label, reason)}, self.explained(
                    '--server', server.id))
                servers.append(server)
        self.delete(*servers)
        self.assert_nothing_left()
