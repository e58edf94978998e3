# SPDX-License-Identifier: Apache-2.0

"""Adapt the released plug-in to our devices and our cloud.

Everything is replaced in the memory of the process that runs the tests,
before the tests are discovered. If a release of the plug-in no longer has a
replaced name, the run ends with an AttributeError.
"""

from __future__ import annotations

from cyborg_tempest_plugin.services import cyborg_rest_client
from cyborg_tempest_plugin.tests.scenario import driver_lifecycle_base
from cyborg_tempest_plugin.tests.scenario import manager
from cyborg_tempest_plugin.tests.scenario import test_pci_driver_lifecycle

from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.integration.tempest_run import guest
from cyborg_gpu_driver.tests.integration.tempest_run import plan
from cyborg_gpu_driver.tests.integration.tempest_run import state

_HANDLE_FIELDS = ('domain', 'bus', 'device', 'function', 'asked_type')
"""The fields of an MDEV attach handle that Nova's libvirt driver reads."""


def everything(cloud: minicloud.Minicloud, device: plan.Device) -> None:
    """Replace everything that is different for our cloud and device.

    :param cloud: the cloud on which the tests run.
    :param device: the device that the servers of the tests get.
    """
    _device_profiles(device)
    if device.handle_type != 'PCI':
        _handle_type(device)
    _servers(cloud, device)
    _guest(cloud)


def _device_profiles(device):
    """Make each device profile that a test creates ask for our device.

    The plug-in has the groups as literals in six modules, in some of them
    within a test. All of them pass through this one method.
    """
    released = cyborg_rest_client.CyborgRestClient.create_device_profile

    def create_device_profile(self, body):
        # Changed in place, because a test compares what it sent with the
        # answer.
        for profile in body:
            profile['groups'] = device.groups
        return released(self, body)

    cyborg_rest_client.CyborgRestClient.create_device_profile = (
        create_device_profile)


def _handle_type(device):
    """Make the lifecycle tests, which are for PCI, expect our handles."""
    tests = _existing(test_pci_driver_lifecycle.TestPCIDriverLifecycle,
                      'attach_handle_type', '_assert_device_arq')

    def assert_device_arq(self, arq, server_id):
        self.assertEqual(server_id, arq['instance_uuid'])
        self.assertEqual(device.handle_type, arq['attach_handle_type'])
        for field in _HANDLE_FIELDS:
            self.assertIn(field, arq['attach_handle_info'])

    tests.attach_handle_type = device.handle_type
    tests._assert_device_arq = assert_device_arq


def _servers(cloud, device):
    """Create servers without Neutron, which a stub replaces.

    Wait for the devices before each server: our driver withholds a whole GPU
    until the GPU has been reset after its last server.
    """
    tests = _existing(manager.ScenarioTest, 'create_security_group',
                      'create_server')
    released = tests.create_server

    def create_server(self, *arguments, **more):
        state.wait_for_devices(cloud, device)
        return released(self, *arguments, **{**more, 'networks': 'none'})

    # Nova does not look for a security group of this name.
    tests.create_security_group = lambda self: {'name': 'default'}
    tests.create_server = create_server


def _guest(cloud):
    """Let the simulated hardware answer instead of a guest."""
    tests = _existing(driver_lifecycle_base.DriverLifecycleMixin,
                      '_get_ssh_client')

    def get_ssh_client(self, server, keypair):
        return guest.StandIn(
            cloud, lambda: self._list_instance_arqs(server['id']))

    tests._get_ssh_client = get_ssh_client


def _existing(owner, *names):
    """Return the class, after a check that it has these attributes.

    :raises AttributeError: if the class lacks one of them.
    """
    for name in names:
        getattr(owner, name)
    return owner
