# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What of the released plug-in is other for our devices and our cloud.

Everything is replaced in the memory of the process that runs the tests,
before they are found. A name that a release of the plug-in no longer has
ends the run with an AttributeError.
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
"""What Nova's libvirt driver reads of a handle of type MDEV."""


def everything(cloud: minicloud.Minicloud, device: plan.Device) -> None:
    """Replace all of it.

    :param cloud: on which the tests run.
    :param device: what their servers are to get.
    """
    _device_profiles(device)
    if device.handle_type != 'PCI':
        _handle_type(device)
    _servers(cloud, device)
    _guest(cloud)


def _device_profiles(device):
    """Have each device profile that a test makes ask for our device.

    The groups are literals in six modules, in some of them within a test;
    all go through this one method.
    """
    released = cyborg_rest_client.CyborgRestClient.create_device_profile

    def create_device_profile(self, body):
        # In place: a test compares what it gave with what it got.
        for profile in body:
            profile['groups'] = device.groups
        return released(self, body)

    cyborg_rest_client.CyborgRestClient.create_device_profile = (
        create_device_profile)


def _handle_type(device):
    """Have the lifecycle tests, which are for PCI, expect our handles."""
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
    """Make servers without Neutron, whose place a stub has, and not sooner
    than their devices are there again: our driver holds a whole GPU back
    until it has been reset after its last server.
    """
    tests = _existing(manager.ScenarioTest, 'create_security_group',
                      'create_server')
    released = tests.create_server

    def create_server(self, *arguments, **more):
        state.wait_for_devices(cloud, device)
        return released(self, *arguments, **{**more, 'networks': 'none'})

    # Nova takes this name for nobody's group in particular.
    tests.create_security_group = lambda self: {'name': 'default'}
    tests.create_server = create_server


def _guest(cloud):
    """Have the simulated hardware answer where a guest would."""
    tests = _existing(driver_lifecycle_base.DriverLifecycleMixin,
                      '_get_ssh_client')

    def get_ssh_client(self, server, keypair):
        return guest.StandIn(
            cloud, lambda: self._list_instance_arqs(server['id']))

    tests._get_ssh_client = get_ssh_client


def _existing(owner, *names):
    """The class, which has attributes of these names already.

    :raises AttributeError: if it lacks one.
    """
    for name in names:
        getattr(owner, name)
    return owner
