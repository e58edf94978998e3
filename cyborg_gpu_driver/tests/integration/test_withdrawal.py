# SPDX-License-Identifier: Apache-2.0

"""Servers boot while nova-compute has withdrawn providers in its cache."""

from __future__ import annotations

import os
import uuid

import fixtures
import yaml

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base

_SHARED, _TAKEN_OUT = '0000:41:00.0', '0000:3b:00.0'
_SERVERS = 10
"""Of each kind that boot while the cache is younger than 300 s, Nova's
default."""


class WithdrawalTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = self.cloud.hosts[0]
        self.agent = f'cyborg-agent-{self.host}'
        self.before = self.cloud.inventories()
        self.slice = self.flavor_of('CUSTOM_NVIDIA_1G_10GB')
        self.plain = self.admin.compute.create_flavor(
            name=f'plain-{uuid.uuid4().hex}', vcpus=1, ram=64, disk=1)
        self.addCleanup(self.admin.compute.delete_flavor, self.plain)
        self.addCleanup(self.until, lambda: self.before ==
                        self.cloud.inventories(), 'all is as before')
        self.addCleanup(self.cloud.restart, self.agent)

    def change(self, group, withdrawn, **options):
        """Restart the agent with other options, until the test ends.

        :param withdrawn: ends of the names of providers.
        """
        former = {name: self.cloud.configure(self.host, group, **{name: value})
                  for name, value in options.items()}
        self.addCleanup(self.cloud.configure, self.host, group, **former)
        self.cloud.restart(self.agent)

        def closed():
            found = self.cloud.inventories()
            self.assertEqual(self.before.keys(), found.keys())
            return all(total == reserved for name, items in found.items()
                       if name.startswith(f'{self.host}_gpu_')
                       and any(part in name for part in withdrawn)
                       for total, reserved in items.values())

        self.until(closed, 'the offers are withdrawn')

    def boot_all(self, number=1):
        """Boot servers with a slice and without a GPU, and delete them."""
        servers = [self.create(flavor, self.admin, host=self.host)
                   for flavor in (self.plain, self.slice)
                   for _ in range(number)]
        for server in servers:
            self.wait_for(server, 'ACTIVE')
        self.delete(*servers)

    def test_servers_boot_after_a_policy_has_changed(self):
        self.change('gpu_policy:sliced', ['_2g.', '_3g.', '_4g.', '_7g.'],
                    profiles='1g.10gb')
        self.boot_all()

    @scope.only_in_all
    def test_servers_boot_whatever_is_withdrawn(self):
        self.cloud.restart(f'nova-compute-{self.host}')
        self.change('gpu_policy:sliced', ['_3g.'], profiles='1g.10gb')
        self.boot_all()
        self.change('gpu', [_SHARED], ignored_devices=_SHARED)
        self.boot_all()
        # A machine without one GPU.
        directory = self.useFixture(fixtures.TempDir()).path
        machine = self.cloud.configure(self.host, 'gpu', simulate='')
        self.cloud.configure(self.host, 'gpu', simulate=machine)
        path = os.path.join(directory, 'host.yaml')
        with open(machine, encoding='utf-8') as stream:
            content = yaml.safe_load(stream)
        content['gpus'] = [gpu for gpu in content['gpus']
                           if gpu['address'] != _TAKEN_OUT]
        with open(path, 'w', encoding='utf-8') as stream:
            yaml.safe_dump(content, stream)
        self.change('gpu', [_SHARED, _TAKEN_OUT], simulate=path,
                    simulate_state=os.path.join(directory, 'state.json'))
        self.boot_all(_SERVERS)
