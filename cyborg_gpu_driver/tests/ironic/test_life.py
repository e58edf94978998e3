# SPDX-License-Identifier: Apache-2.0

"""Nodes from the first inspection to the second tenant, and their failures.
"""

from __future__ import annotations

import pathlib

import fixtures
import yaml
from openstack.baremetal.v1 import node as sdk_node
from oslotest import base
from testtools import content

from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.ironic import node as node_module
from cyborg_gpu_driver.tests.ironic import services

_SLICES = {'slices': [{'devices': 'all', 'mig-enabled': True,
                       'mig-devices': {'1g.6gb': 4}}]}
_HALVES = {'halves': [
    {'devices': [0, 1], 'mig-enabled': True, 'mig-devices': {'2g.12gb': 2}},
    {'devices': [2, 3], 'mig-enabled': False}]}
_TENANTS = [(_SLICES, [4] * 4), (_HALVES, [2, 2, 0, 0])][
    :2 if scope.ALL else 1]
"""The layouts of a node's tenants, and how many instances each GPU has then.
"""
_SEVENTHS = {'sevenths': [{
    'device-filter': '0x233010DE', 'devices': 'all', 'mig-enabled': True,
    'mig-devices': {'1g.10gb': 7}}]}
_THIRDS = {'thirds': [{'devices': 'all', 'mig-enabled': True,
                       'mig-devices': {'3g.40gb': 2}}]}


class LifeTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.ironic = services.shared()
        self.baremetal = self.ironic.connection.baremetal
        self.addOnException(lambda _: self.addDetail(
            'ironic', content.text_content(self.ironic.log())))

    def node(self, gpus: str) -> node_module.Node:
        """Enroll a node whose server has the GPUs of a simulated machine."""
        return node_module.enroll(self, self.baremetal, self.ironic.url,
                                  gpus, 'baremetal')

    def layout(self, layout: dict) -> str:
        """Create the deploy template of a layout for this test only.

        :param layout: ``{NAME: items}``.
        :returns: the name of the template, which is a trait.
        """
        name, = layout
        template = self.baremetal.create_deploy_template(
            name=inventory.layout_trait(name), steps=[{
                'interface': 'deploy', 'step': inventory.APPLY_LAYOUT,
                'args': {'layout': layout}, 'priority': 65}])
        self.addCleanup(self.baremetal.delete_deploy_template, template)
        return template.name

    def check(self, found: sdk_node.Node, state: str) -> None:
        """Check that a node reached a state without an error."""
        self.assertEqual((state, None),
                         (found.provision_state, found.last_error))

    def two_hoppers(self):
        """Write the file of a machine with two H100 and return its path."""
        path = self.useFixture(fixtures.TempDir()).join('h100x2.yaml')
        pathlib.Path(path).write_text(yaml.safe_dump({
            'driver_version': '550.144.02',
            'gpus': [{'model': 'h100-80', 'address': address, 'mig': True}
                     for address in ('0000:18:00.0', '0000:9a:00.0')]}),
            encoding='utf-8')
        return path

    def test_ampere(self):
        """On Ampere, MIG mode survives reboots: steps turn it on and off."""
        traits = [self.layout(layout) for layout, _ in _TENANTS]
        node = self.node('a30x4')
        server = node.server
        server.set_mig_modes(False)
        self.check(node.inspect(), 'manageable')
        # A tenant left it on; the inspection found it off.
        server.set_mig_modes(True)
        self.check(node.provide(), 'available')
        self.assertEqual([False] * 4, server.mig_modes())
        for trait, (layout, instances) in zip(traits, _TENANTS, strict=True):
            self.check(node.deploy(trait), 'active')
            self.assertEqual(layout, server.staged_layout())
            server.boot_system()
            self.assertEqual(instances, server.instances())
            self.assertEqual(list(map(bool, instances)), server.mig_modes())
            self.check(node.undeploy(), 'available')
            self.assertEqual([False] * 4, server.mig_modes())

    @scope.only_in_all
    def test_hopper(self):
        """On Hopper, a reboot turns MIG mode off: the image has the layout.
        """
        sevenths = self.layout(_SEVENTHS)
        self.layout(_SLICES)
        node = self.node(self.two_hoppers())
        found = node.inspect()
        self.check(found, 'manageable')
        self.assertEqual('baremetal-gpu-h100-80gb-hbm3-x2',
                         found.properties['nvidia_gpus']['resource_class'])
        self.assertEqual([
            'CUSTOM_GPU_ARCH_HOPPER', 'CUSTOM_GPU_COUNT_2',
            'CUSTOM_GPU_HEALTHY', sevenths,
            'CUSTOM_GPU_MEMORY_80GB', 'CUSTOM_GPU_MODEL_H100_80GB_HBM3',
            'CUSTOM_NVIDIA_2330'], found.traits)
        self.check(node.provide(), 'available')
        self.check(node.deploy(sevenths), 'active')
        self.assertEqual(_SEVENTHS, node.server.staged_layout())
        node.server.boot_system()
        self.assertEqual([7] * 2, node.server.instances())
        self.check(node.service('apply_gpu_layout', layout=_THIRDS),
                   'active')
        node.server.boot_system()
        self.assertEqual([2] * 2, node.server.instances())
