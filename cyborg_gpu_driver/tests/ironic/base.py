# SPDX-License-Identifier: Apache-2.0

"""Tests that take servers through their life cycle in the released Ironic."""

from __future__ import annotations

from openstack.baremetal.v1 import node as sdk_node
from oslotest import base
from testtools import content

from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.tests.ironic import node as node_module
from cyborg_gpu_driver.tests.ironic import services


class TestCase(base.BaseTestCase):
    """A test on Ironic, which removes its nodes and servers at the end."""

    def setUp(self):
        super().setUp()
        self.ironic = services.shared()
        self.baremetal = self.ironic.connection.baremetal
        self.addOnException(lambda _: self.addDetail(
            'ironic', content.text_content(self.ironic.log())))

    def node(self, gpus: str | None = None,
             resource_class: str = 'baremetal') -> node_module.Node:
        """Enroll a node whose server has the GPUs of a simulated machine."""
        return node_module.enroll(self, self.baremetal, self.ironic.url,
                                  gpus, resource_class)

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
