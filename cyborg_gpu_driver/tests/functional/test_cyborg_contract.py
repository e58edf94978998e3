# SPDX-License-Identifier: Apache-2.0


"""What this library relies on in the released Cyborg.

Bind and unbind reach a driver through two functions of Cyborg, which this
library replaces when its driver is loaded. If a release of Cyborg changes
these functions, their callers, or what this library knows of the conductor,
a test here fails before an operator's bind does.
"""

import functools
import inspect
import json
import os
import re
import uuid

import cyborg
import fixtures
from cyborg.accelerator.drivers.gpu import utils as gpu_utils
from cyborg.objects.driver_objects import driver_attach_handle
from cyborg.objects.driver_objects import driver_attribute
from cyborg.objects.driver_objects import driver_controlpath_id
from cyborg.objects.driver_objects import driver_deployable
from cyborg.objects.driver_objects import driver_device

from cyborg_gpu_driver.tests.functional import base
from demo_lib import nova_part

_FUNCTIONS = {
    'create_mdev_privileged': ['pci_addr', 'mdev_type', 'ah_uuid'],
    'remove_mdev_privileged': ['physical_device', 'mdev_type', 'medv_uuid'],
}
_MDEV_INFO = {'domain': '0000', 'bus': '3b', 'device': '00',
              'function': '4', 'asked_type': 'nvidia-474'}
_PCI_INFO = {'domain': '0000', 'bus': '5e', 'device': '00', 'function': '0'}


def _attribute(key, value):
    attribute = driver_attribute.DriverAttribute()
    attribute.key = key
    attribute.value = value
    return attribute


def _deployable(name, resource_class, attach_type, attach_info):
    handle = driver_attach_handle.DriverAttachHandle()
    handle.attach_type = attach_type
    handle.attach_info = json.dumps(attach_info)
    handle.in_use = False
    deployable = driver_deployable.DriverDeployable()
    deployable.name = name
    deployable.driver_name = 'contract'
    deployable.num_accelerators = 1
    deployable.attribute_list = [
        _attribute('rc', resource_class),
        _attribute('trait_CUSTOM_CONTRACT', 'CUSTOM_CONTRACT')]
    deployable.attach_handle_list = [handle]
    return deployable


def _device(deployables, stub=False):
    path = driver_controlpath_id.DriverControlPathID()
    path.cpid_type = 'PCI'
    path.cpid_info = json.dumps(_PCI_INFO)
    device = driver_device.DriverDevice()
    device.vendor = '10de'
    device.model = 'contract'
    device.type = 'GPU'
    device.std_board_info = '{}'
    device.vendor_board_info = '{}'
    device.stub = stub
    device.controlpath_id = path
    device.deployable_list = deployables
    return device


class _Driver:
    """A driver that stands in for the agent's drivers."""

    def __init__(self, devices):
        self.devices = devices
        self.discovered = 0

    def discover(self):
        self.discovered += 1
        return self.devices


class SeamTest(base.TestCase):
    """The two functions and their callers, without services."""

    def test_signatures(self):
        for name, parameters in _FUNCTIONS.items():
            # oslo.privsep makes a partial object of an entry point.
            function = getattr(gpu_utils, name)
            self.assertIsInstance(function, functools.partial, name)
            signature = inspect.signature(function.args[0])
            self.assertEqual(parameters, list(signature.parameters), name)
            self.assertTrue(all(
                parameter.kind is parameter.POSITIONAL_OR_KEYWORD
                and parameter.default is parameter.empty
                for parameter in signature.parameters.values()), name)

    def test_callers(self):
        root = os.path.dirname(cyborg.__file__)
        pattern = re.compile('|'.join(_FUNCTIONS))
        found = set()
        for directory, names, files in os.walk(root):
            if directory == root:
                names.remove('tests')
            for name in files:
                path = os.path.join(directory, name)
                if name.endswith('.py'):
                    with open(path, encoding='utf-8') as stream:
                        if pattern.search(stream.read()):
                            found.add(os.path.relpath(path, root))
        self.assertEqual({'accelerator/drivers/gpu/utils.py',
                          'agent/manager.py'}, found)


class AgentTest(base.TestCase):
    """Bind and unbind, seen from the agent."""

    def setUp(self):
        super().setUp()
        self.cloud = self.use_cloud(drivers=['fake_driver'])
        self.calls = []
        for name in _FUNCTIONS:
            self.useFixture(fixtures.MonkeyPatch(
                f'cyborg.accelerator.drivers.gpu.utils.{name}',
                self._recorder(name)))
        self.driver = _Driver([_device([
            _deployable('compute1_mdev', 'CUSTOM_CONTRACT_MDEV', 'MDEV',
                        _MDEV_INFO),
            _deployable('compute1_pci', 'CUSTOM_CONTRACT_PCI', 'PCI',
                        _PCI_INFO)])])
        self.cloud.agent._rt.acc_drivers = [self.driver]
        self.refused = set()
        self.cloud.report()
        for kind in ('mdev', 'pci'):
            self.cloud.cyborg.create_device_profile(kind, {
                f'resources:CUSTOM_CONTRACT_{kind.upper()}': '1',
                'trait:CUSTOM_CONTRACT': 'required'})

    def _recorder(self, name):
        def record(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            if name in self.refused:
                raise OSError('refused')
        return record

    def test_report_discovers_once(self):
        self.assertEqual(1, self.driver.discovered)
        self.cloud.report()
        self.assertEqual(2, self.driver.discovered)

    def test_mdev_handle(self):
        server = self.cloud.bind('mdev')
        (arq,) = server.arqs
        arguments = ('0000:3b:00.4', 'nvidia-474',
                     arq['attach_handle_uuid'])
        self.assertEqual([('create_mdev_privileged', arguments, {})],
                         self.calls)
        self.assertEqual('MDEV', arq['attach_handle_type'])
        self.assertEqual(_MDEV_INFO, arq['attach_handle_info'])
        self.cloud.unbind(server)
        self.assertEqual(('remove_mdev_privileged', arguments, {}),
                         self.calls[-1])

    def test_pci_handle_calls_nobody(self):
        server = self.cloud.bind('pci')
        self.assertEqual(_PCI_INFO, server.arqs[0]['attach_handle_info'])
        self.cloud.unbind(server)
        self.assertEqual([], self.calls)

    def test_refused_bind_can_be_cleaned_up(self):
        self.refused.add('create_mdev_privileged')
        self.assertRaises(nova_part.BindFailed, self.cloud.bind, 'mdev')
        self.assertEqual([], self.cloud.cyborg.arqs())
        self.assertEqual({'CUSTOM_CONTRACT_MDEV': 0},
                         self.cloud.placement.usages(
                             self.cloud.provider('compute1_mdev')['uuid']))

    def test_reserved_survives_reports(self):
        provider = self.cloud.provider('compute1_mdev')
        resource_class, inventory = self.cloud.inventory('compute1_mdev')
        self.cloud.placement.put(
            f'/resource_providers/{provider["uuid"]}/inventories/'
            f'{resource_class}',
            dict(inventory, reserved=1,
                 resource_provider_generation=provider['generation']))
        self.cloud.report()
        self.assertEqual(
            1, self.cloud.inventory('compute1_mdev')[1]['reserved'])
        self.assertRaises(nova_part.NoCandidates, self.cloud.bind, 'mdev')

    def test_stub_is_left_alone(self):
        before = self.cloud.placement.snapshot()
        self.driver.devices = [_device([], stub=True)]
        self.cloud.report()
        self.assertEqual(before, self.cloud.placement.snapshot())

    def test_provider_uuid_follows_from_name(self):
        self.assertEqual(
            str(uuid.uuid3(uuid.NAMESPACE_DNS, 'compute1_mdev')),
            self.cloud.provider('compute1_mdev')['uuid'])
