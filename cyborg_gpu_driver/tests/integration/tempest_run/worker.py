# SPDX-License-Identifier: Apache-2.0

"""Run one folder of the plug-in's tests, in a separate process.

Tempest has one configuration per process. ``TEMPEST_CONFIG_DIR`` and
``TEMPEST_CONFIG`` name it. What is different for our devices and our cloud is
replaced in the memory of the process, before the tests are discovered. If a
release of the plug-in no longer has a replaced name, the run ends with an
AttributeError.

usage: python -m ...tempest_run.worker CLOUD POLICY FOLDER DEVICE
"""

from __future__ import annotations

import pathlib
import sys
import unittest

from cyborg_tempest_plugin import plugin
from cyborg_tempest_plugin.services import cyborg_rest_client
from cyborg_tempest_plugin.tests.scenario import driver_lifecycle_base
from cyborg_tempest_plugin.tests.scenario import manager
from cyborg_tempest_plugin.tests.scenario import test_pci_driver_lifecycle

from cyborg_gpu_driver.tests.integration import minicloud
from cyborg_gpu_driver.tests.integration.tempest_run import known
from cyborg_gpu_driver.tests.integration.tempest_run import state

_HANDLE_FIELDS = ('domain', 'bus', 'device', 'function', 'asked_type')
"""The fields of an MDEV attach handle that Nova's libvirt driver reads."""


class StandIn:
    """What the tests call of an SSH client: Nova's fake driver has no guests.

    :param cloud: the cloud whose hardware is shown.
    :param requests: the accelerator requests of the server, as Cyborg shows
        them.
    """

    def __init__(self, cloud: minicloud.Minicloud, requests: list[dict]):
        self._cloud = cloud
        self._requests = requests

    def validate_authentication(self) -> None:
        """Do nothing: every login is accepted."""

    def exec_command(self, command: str) -> str:
        """Return what ``lspci -n`` would print for the accelerators.

        A request has a line only if the hardware has its accelerator: the
        vGPU with the UUID of the attach handle, or the GPU at the address.
        """
        if 'lspci -n' not in command:
            raise AssertionError(f'only a real guest could run {command}')
        return '\n'.join(line for request in self._requests
                         for line in self._lines(request))

    def _lines(self, request):
        host = request['hostname']
        if request['attach_handle_type'] == 'PCI':
            address = '{domain}:{bus}:{device}.{function}'.format(
                **request['attach_handle_info'])
        else:
            handle = request['attach_handle_uuid']
            address = next(
                (address for address, gpu
                 in self._cloud.hardware(host).items()
                 if handle in {vgpu.uuid for vgpu in gpu.vgpus}), None)
        gpu = self._cloud.machine(host).host.gpu(address)
        if gpu is not None:
            yield f'{address} 0302: 10de:{gpu.model.device}'


def main(arguments: list[str]) -> int:
    """Run the tests; return 1 if something is wrong, else 0."""
    directory, policy, folder, device = arguments
    _replace(minicloud.Minicloud(pathlib.Path(directory)),
             state.DEVICES[device])
    start, top = plugin.CyborgTempestPlugin().load_tests()
    result = unittest.TextTestRunner(verbosity=2).run(
        unittest.TestLoader().discover(str(pathlib.Path(start, folder)),
                                       top_level_dir=top))
    wrong = known.problems(result, known.skipped(policy, folder))
    print(*wrong, sep='\n', flush=True)
    return int(bool(wrong))


def _replace(cloud, device):
    """Replace everything that is different for our cloud and device."""
    _device_profiles(device)
    lifecycle = _existing(
        test_pci_driver_lifecycle.TestPCIDriverLifecycle,
        'attach_handle_type', '_assert_device_arq', known.GUEST_REBOOT)
    setattr(lifecycle, known.GUEST_REBOOT, unittest.skip('no guest')(
        getattr(lifecycle, known.GUEST_REBOOT)))
    if device.handle_type != 'PCI':
        _handle_type(lifecycle, device)
    _servers(cloud, device)
    # The simulated hardware answers instead of a guest.
    _existing(driver_lifecycle_base.DriverLifecycleMixin, '_get_ssh_client',
              '_list_instance_arqs')._get_ssh_client = (
        lambda self, server, keypair: StandIn(
            cloud, self._list_instance_arqs(server['id'])))


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


def _handle_type(lifecycle, device):
    """Make the lifecycle tests, which are for PCI, expect our handles."""
    def assert_device_arq(self, arq, server_id):
        self.assertEqual(server_id, arq['instance_uuid'])
        self.assertEqual(device.handle_type, arq['attach_handle_type'])
        for field in _HANDLE_FIELDS:
            self.assertIn(field, arq['attach_handle_info'])

    lifecycle.attach_handle_type = device.handle_type
    lifecycle._assert_device_arq = assert_device_arq


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


def _existing(owner, *names):
    """Return the class, after a check that it has these attributes.

    :raises AttributeError: if the class lacks one of them.
    """
    for name in names:
        getattr(owner, name)
    return owner


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
