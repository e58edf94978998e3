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

"""A node of Ironic with its server, led through its life."""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import Callable

import fixtures
from openstack.baremetal.v1 import _proxy
from openstack.baremetal.v1 import node as node_module
from oslotest import base
from testtools import content

from cyborg_gpu_driver.tests.ironic import server as server_module
from cyborg_gpu_driver.tests.ironic import services

_DEADLINE = 120
_FAILURES = frozenset({'clean failed', 'deploy failed', 'error',
                       'inspect failed', 'service failed'})
# Ironic waits for the ramdisk then.
_WAITING = frozenset({'clean wait', 'inspect wait', 'service wait',
                      'wait call-back'})


class Node:
    """A server that is enrolled in Ironic, managed and not inspected.

    :ivar server: what is behind it.
    """

    def __init__(self, baremetal: _proxy.Proxy,
                 server: server_module.Server, resource_class: str):
        self.server = server
        self._baremetal = baremetal
        self._called = False
        self.uuid: str = self._baremetal.create_node(
            name=f'node-{uuid.uuid4().hex[:12]}', driver='fake-hardware',
            resource_class=resource_class,
            # Else the ramdisk would be told to switch the machine off.
            driver_info={'deploy_forces_oob_reboot': True}).id
        self._baremetal.create_port(node_id=self.uuid,
                                    address=server.address)
        self.change('manage', 'manageable')

    def read(self) -> node_module.Node:
        """What Ironic knows of it."""
        return self._baremetal.get_node(self.uuid)

    def inspect(self) -> node_module.Node:
        """Inspect it; manageable unless that fails."""
        return self.change('inspect', 'manageable')

    def provide(self, cleans: bool = True) -> node_module.Node:
        """Make it available, which it is unless its cleaning fails.

        :param cleans: whether it is cleaned now and after its tenants.
        """
        self._baremetal.update_node(self.uuid,
                                    is_automated_clean_enabled=cleans)
        return self.change('provide', 'available')

    def deploy(self, *traits: str) -> node_module.Node:
        """Deploy for a flavor that requires traits; active unless it fails.
        """
        self._baremetal.update_node(
            self.uuid, instance_info={'traits': list(traits)})
        node = self.change('active', 'active')
        # What runs now is the tenant's system.
        self.server.switch_off()
        return node

    def service(self, step: str, **arguments: object) -> node_module.Node:
        """Run one step while it has its tenant; active unless it fails."""
        node = self.change('service', 'active', service_steps=[{
            'interface': 'deploy', 'step': step, 'args': arguments}])
        self.server.switch_off()
        return node

    def undeploy(self) -> node_module.Node:
        """Take it from its tenant and clean it; available unless it fails.
        """
        return self.change('deleted', 'available')

    def change(self, verb: str, state: str, **details: object
               ) -> node_module.Node:
        """Ask for a change and see it through.

        :param state: where it ends, if it does not fail.
        :param details: such as ``service_steps``.
        """
        # The proxy's own method does not take all details.
        self.read().set_provision_state(self._baremetal, verb, **details)
        return self.follow(
            lambda node: node.provision_state == state or _failed(node))

    def set_traits(self, *traits: str) -> None:
        """What an operator may do, and else the inspection does."""
        self._baremetal.set_node_traits(self.uuid, traits)

    def mend(self) -> None:
        """Say that what was wrong with it is repaired."""
        self._baremetal.unset_node_maintenance(self.uuid)
        self.change('manage', 'manageable')

    def remove(self) -> None:
        """Forget it in Ironic, in whatever state it is."""
        self.server.switch_off()
        self._baremetal.set_node_maintenance(self.uuid)
        self.follow(lambda node: node.reservation is None)
        self._baremetal.delete_node(self.uuid)

    def follow(self, condition: Callable[[node_module.Node], object]
               ) -> node_module.Node:
        """Be the server's power supply until something is true of the node.

        :raises NotInTime: if that does not become true.
        """
        nodes = []

        def is_there():
            nodes[:] = [self.read()]
            self._power(nodes[0])
            return condition(nodes[0])

        services.until(is_there, _DEADLINE, lambda: f'{nodes}')
        return nodes[0]

    def _power(self, node):
        # Ironic forgets the agent's address when it restarts the machine.
        called = 'agent_url' in node.driver_internal_info
        if node.power_state == 'power off' or (self._called and not called):
            self.server.switch_off()
        self._called = called
        if (node.provision_state in _WAITING
                and not self.server.in_ramdisk):
            self.server.boot_ramdisk(
                inspects=node.provision_state == 'inspect wait')


def enroll(test: base.BaseTestCase, baremetal: _proxy.Proxy, url: str,
           gpus: str | None, resource_class: str) -> Node:
    """Enroll a new server, which goes with a test.

    :param baremetal: Ironic, as an administrator has it.
    :param url: where Ironic answers the ramdisk.
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
