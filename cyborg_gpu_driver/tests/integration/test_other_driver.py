# SPDX-License-Identifier: Apache-2.0

"""Another driver of the same agent keeps working when ours fails."""

from __future__ import annotations

import pathlib

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.integration import base

_HOST = 'gpu1'
_AGENT = f'cyborg-agent-{_HOST}'
_OTHER = f'{_HOST}_FakeDevice'
"""The resource provider of Cyborg's fake driver."""


@scope.only_in_all
class OtherDriverTest(base.TestCase):
    """Cyborg's fake driver, with an FPGA, beside ours on one host."""

    def setUp(self):
        super().setUp()
        self.addCleanup(self.remove_other)
        self.enable('fake_driver', 'cyborg_gpu_driver')
        self.until(lambda: _OTHER in self.providers(),
                   'the FPGA is reported')
        self.before = self.providers()
        self.fpga = self.flavor_of('FPGA')
        self.slice = self.flavor_of('CUSTOM_NVIDIA_1G_10GB')
        self.servers = [self.boot(flavor, self.admin, host=_HOST)
                        for flavor in (self.fpga, self.slice)]
        self.had = self.handles()

    def enable(self, *drivers):
        self.cloud.enable_drivers(_HOST, *drivers)
        self.cloud.restart(_AGENT)

    def remove_other(self):
        self.enable('cyborg_gpu_driver')
        self.until(lambda: _OTHER not in self.providers(),
                   'the FPGA is reported no more')
        # nova-compute remembers the provider, and fails to build servers
        # when the provider is missing.
        self.cloud.restart(f'nova-compute-{_HOST}')

    def providers(self):
        return {provider.name for provider
                in self.admin.placement.resource_providers()}

    def has_slices(self):
        return any(
            reserved == 0 for provider, inventories
            in self.cloud.inventories().items()
            if provider.startswith(f'{_HOST}_')
            for name, (_, reserved) in inventories.items()
            if name == 'CUSTOM_NVIDIA_1G_10GB')

    def handles(self):
        return [request['attach_handle_uuid'] for server in self.servers
                for request in self.arqs(server)]

    def test_nvml_goes_away(self):
        machine = self.cloud.machine(_HOST)
        self.addCleanup(machine.load_library)
        self.assert_goes_on_after(machine.unload_library)
        machine.load_library()
        self.assert_all_right()

    def test_the_state_directory_breaks(self):
        path = pathlib.Path(self.cloud.state_path(_HOST))
        away = path.with_name('away')

        def take():
            path.rename(away)
            path.write_text('no directory')

        def bring():
            if away.exists():
                path.unlink()
                away.rename(path)

        self.addCleanup(bring)
        self.assert_goes_on_after(take)
        bring()
        self.assert_all_right()

    def assert_goes_on_after(self, take):
        """Assert that the FPGA works after a failure of our driver.

        This holds for the running agent and after a restart of the agent.
        """
        for act in (take, lambda: self.cloud.restart(_AGENT)):
            self.assert_complains_after(act)
            server = self.boot(self.fpga, self.admin, host=_HOST)
            (request,) = self.arqs(server)
            self.assertEqual(('Bound', 'TEST_PCI'), (
                request['state'], request['attach_handle_type']))
            self.delete(server)
            self.assertEqual(self.had, self.handles())
            self.assertEqual(self.before, self.providers())

    def assert_complains_after(self, act):
        before = len(self.cloud.log(_AGENT))
        act()
        self.until(
            lambda: ' cyborg_gpu_driver.' in self.cloud.log(_AGENT)[before:],
            'our driver has reported and complains')

    def assert_all_right(self):
        """Assert that slices are available again after the next report."""
        self.cloud.restart(_AGENT)
        self.until(self.has_slices, 'slices are offered')
        self.servers.append(self.boot(self.slice, self.admin, host=_HOST))
        self.delete(*self.servers)
        self.assert_nothing_left()
