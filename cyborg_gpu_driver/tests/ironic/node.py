# SPDX-License-Identifier: Apache-2.0

"""A node of Ironic and its server, which tests take through the life cycle.
"""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import Callable

import fixtures
from openstack.baremetal.v1 import _proxy
from openstack.baremetal.v1 import node as node_module
from oslotest import base
from testtools import content

from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.ironic import server as server_module
from cyborg_gpu_driver.tests.ironic import services

_FAILURES = frozenset({'clean failed', 'deploy failed', 'error',
                       'inspect failed', 'service failed'})
# In these states Ironic waits for the ramdisk.
_WAITING = frozenset({'clean wait', 'inspect wait', 'service wait',
                      'wait call-back'})


class Node:
    """A node that is enrolled in Ironic, manageable and not inspected yet.

    :ivar server: the server that the node represents.
    """

    def __init__(self, baremetal: _proxy.Proxy,
                 server: server_module.Server, resource_class: str):
        self.server = server
        self._baremetal = baremetal
        self._called = False
        self.uuid: str = self._baremetal.create_node(
            name=f'node-{uuid.uuid4().hex[:12]}', driver='fake-hardware',
            resource_class=resource_class,
            # Otherwise Ironic would tell the ramdisk to power off.
            driver_info={'deploy_forces_oob_reboot': True}).id
        self._baremetal.create_port(node_id=self.uuid,
                                    address=server.address)
        self.change('manage', 'manageable')

    def read(self) -> node_module.Node:
        """Return the node as Ironic's API reports it."""
        return self._baremetal.get_node(self.uuid)

    def inspect(self) -> node_module.Node:
        """Inspect the node; it is manageable unless the inspection fails."""
        return self.change('inspect', 'manageable')

    def provide(self, cleans: bool = True) -> node_module.Node:
        """Provide the node; it is available unless its cleaning fails.

        :param cleans: whether Ironic cleans the node now and after tenants.
        """
        self._baremetal.update_node(self.uuid,
                                    is_automated_clean_enabled=cleans)
        return self.change('provide', 'available')

    def deploy(self, *traits: str) -> node_module.Node:
        """Deploy the node for a flavor that requires these traits.

        :returns: the node, which is active unless the deployment failed.
        """
        self._baremetal.update_node(
            self.uuid, instance_info={'traits': list(traits)})
        node = self.change('active', 'active')
        # The tenant's system runs now, not the ramdisk.
        self.server.switch_off()
        return node

    def service(self, step: str, **arguments: object) -> node_module.Node:
        """Run a service step on an active node; active unless it fails."""
        node = self.change('service', 'active', service_steps=[{
            'interface': 'deploy', 'step': step, 'args': arguments}])
        self.server.switch_off()
        return node

    def undeploy(self) -> node_module.Node:
        """Undeploy and clean the node; available unless that fails."""
        return self.change('deleted', 'available')

    def change(self, verb: str, state: str, **details: object
               ) -> node_module.Node:
        """Request a state change and wait until it ends.

        :param verb: the change, such as ``deleted``.
        :param state: the state in which a successful change ends.
        :param details: other arguments, such as ``service_steps``.
        """
        # The proxy's own method does not accept all of these arguments.
        self.read().set_provision_state(self._baremetal, verb, **details)
        return self.follow(
            lambda node: node.provision_state == state or _failed(node))

    def remove(self) -> None:
        """Delete the node from Ironic, whatever its state."""
        self.server.switch_off()
        self._baremetal.set_node_maintenance(self.uuid)
        self.follow(lambda node: node.reservation is None)
        self._baremetal.delete_node(self.uuid)

    def follow(self, condition: Callable[[node_module.Node], object]
               ) -> node_module.Node:
        """Power the server as Ironic wants until the node meets a condition.

        :returns: the node that meets the condition.
        :raises NotInTime: if the node does not meet it in time.
        """
        nodes = []

        def is_there():
            nodes[:] = [self.read()]
            self._power(nodes[0])
            return condition(nodes[0])

        services.until(is_there, scope.HANG, lambda: f'{nodes}')
        return nodes[0]

    def _power(self, node):
        # Ironic drops the agent's URL when it restarts the machine.
        called = 'agent_url' in node.driver_internal_info
        if node.power_state == 'power off' or (self._called and not called):
            self.server.switch_off()
        self._called = called
        if (node.provision_state in _WAITING
                and not self.server.in_ramdisk):
            self.server.boot_ramdisk(
                inspects=node.provision_state == 'inspect wait')


def enroll(test: base.BaseTestCase, baremetal: _proxy.Proxy, url: str,
           gpus: str, resource_class: str) -> Node:
    """Enroll a new server and remove it at the end of the test.

    :param baremetal: Ironic's API with administrator access.
    :param url: where Ironic's API serves the ramdisk.
    :param gpus: see :class:`server.Server`.
    """
    directory = test.useFixture(fixtures.TempDir(services.TEMPORARY)).path
    server = server_module.Server(pathlib.Path(directory), url, gpus)
    test.addCleanup(server.switch_off)
    test.addOnException(lambda _: test.addDetail(
        'agent', content.text_content(server.log())))
    node = Node(baremetal, server, resource_class)
    test.addCleanup(node.remove)
    return node


def _failed(node):
    return node.provision_state in _FAILURES
