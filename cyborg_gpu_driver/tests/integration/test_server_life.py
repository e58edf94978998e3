# SPDX-License-Identifier: Apache-2.0

"""A server with accelerators, from its first boot to its end."""

from __future__ import annotations

import testscenarios

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base

load_tests = testscenarios.load_tests_apply_scenarios

_SLICES = {'1g.10gb': 19, '1g.10gb+me': 20, '1g.20gb': 15, '2g.20gb': 14,
           '3g.40gb': 9, '4g.40gb': 5, '7g.80gb': 0}
"""NVML's profile ids of the GPU instances of an A100 with 80 GB."""


def _of(resource_class, amount=1):
    return {f'resources:{resource_class}': str(amount)}


def _of_slice(profile, amount=1):
    return _of('CUSTOM_NVIDIA_' + profile.upper().translate(
        {ord('.'): '_', ord('+'): '_'}), amount)


class ServerLifeTest(base.TestCase):
    """A server keeps its accelerators whatever its user does with it.

    Only shelving releases them, and unshelving allocates the same kinds
    again. Nova's fake virt driver uploads no snapshot: the image of a
    shelved server remains empty, and unshelving works nevertheless.
    """

    _scenarios = [
        ('whole GPU', {'groups': [_of('PGPU')], 'kinds': ['whole']}),
        ('vGPU', {'groups': [_of('CUSTOM_NVIDIA_A100_8C')],
                  'kinds': ['vgpu 470']}),
        *((profile, {'groups': [_of_slice(profile)],
                     'kinds': [f'slice {number}']})
          for profile, number in _SLICES.items()),
        ('two of a profile', {
            'groups': [_of_slice('2g.20gb', 2)],
            'kinds': ['slice 14', 'slice 14']}),
        ('two profiles', {
            'groups': [_of_slice('1g.10gb'), _of_slice('3g.40gb')],
            'kinds': ['slice 19', 'slice 9']}),
        ('all modes', {
            'groups': [_of('PGPU'), _of('CUSTOM_NVIDIA_A100_20C'),
                       _of_slice('3g.40gb')],
            'kinds': ['slice 9', 'vgpu 472', 'whole']}),
    ]
    scenarios = _scenarios if scope.ALL else _scenarios[-1:]

    def test_life(self):
        compute = self.admin.compute
        server = self.boot(self.flavor(self.device_profile(*self.groups),
                                       group_policy='none'))
        had = self.accelerators(server)
        self.assertEqual(self.kinds, [item.kind for item in had])
        self.assert_made_for(had)
        for act, arguments, status in (
                ('reboot_server', {'reboot_type': 'HARD'}, 'ACTIVE'),
                ('rebuild_server', {'image': server.image.id}, 'ACTIVE'),
                ('stop_server', {}, 'SHUTOFF'),
                ('start_server', {}, 'ACTIVE')):
            getattr(compute, act)(server, **arguments)
            server = self.wait_for(server, status)
            self.assertEqual(had, self.accelerators(server))
            self.assert_made_for(had)

        compute.shelve_server(server)
        server = self.until(lambda: self.shelved(server),
                            'the server is shelved and off its host')
        self.until(lambda: self.left().keys() == {'servers'},
                   'only the server itself is left')
        compute.unshelve_server(server)
        server = self.wait_for(server, 'ACTIVE')
        again = self.accelerators(server)
        self.assertEqual(self.kinds, [item.kind for item in again])
        self.assert_made_for(again)

        self.delete(server)
        self.assert_nothing_left()

    def shelved(self, server):
        """The server, if Nova has removed it from its host; else None.

        Nova clears the server's host a moment after it has changed the
        status. A server that is unshelved in between loses its new host.
        """
        now = self.wait(server)
        return (now if now.status == 'SHELVED_OFFLOADED'
                and now.compute_host is None else None)

    def assert_made_for(self, accelerators):
        """Assert that the GPUs have vGPUs for exactly these accelerators."""
        made = {uuid: gpu_and_vgpu for host in self.cloud.hosts
                for uuid, gpu_and_vgpu in self.cloud.vgpus(host).items()}
        self.assertEqual({item.handle for item in accelerators
                          if item.kind != 'whole'}, set(made))
        self.assertEqual(
            sum(item.kind.startswith('slice') for item in accelerators),
            sum(instances for host in self.cloud.hosts
                for instances, _ in self.slices(host).values()))
