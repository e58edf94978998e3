# SPDX-License-Identifier: Apache-2.0

"""A server on bare metal: Nova's Ironic driver, Ironic and the agent."""

from __future__ import annotations

import pathlib
import uuid

import fixtures
import yaml

from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.cloud import connection
from cyborg_gpu_driver.osc import profile
from cyborg_gpu_driver.tests.integration import base
from cyborg_gpu_driver.tests.ironic import node as node_module
from cyborg_gpu_driver.tests.unit.osc import running

_PROFILE = 'metal-slices'
_TRAIT = inventory.layout_trait(_PROFILE)
_LAYOUT = {_PROFILE: [{'devices': 'all', 'mig-enabled': True,
                       'mig-devices': {'1g.6gb': 2}}]}


class BaremetalTest(base.TestCase):

    def setUp(self):
        super().setUp()
        if self.cloud.ironic_url is None:
            self.skipTest('the cloud was started without --baremetal')
        self.resource_class = f'baremetal-{uuid.uuid4().hex[:8]}'

    def test_a_flavor_of_a_profile_is_deployed(self):
        """From the profile to the GPU instances in the deployed system, and
        back to a clean node.
        """
        node = self.node('a30x4')
        hardware = node.server
        hardware.set_mig_modes(False)
        self.assertEqual('manageable', node.inspect().provision_state)
        flavor = self.make_profile()
        self.assertEqual('available', node.provide().provision_state)
        self.until(lambda: self.is_offered(node), 'Placement has the node')
        server = self.create(flavor)
        node.follow(lambda _: self.is_settled(server))
        server = self.wait_for(server, 'ACTIVE')
        hardware.switch_off()
        found = node.read()
        self.assertEqual((server.id, 'active', None), (
            found.instance_id, found.provision_state, found.last_error))
        self.assertEqual(_LAYOUT, hardware.staged_layout())
        hardware.boot_system()
        self.assertEqual([2] * 4, hardware.instances())
        self.admin.compute.delete_server(server)
        node.follow(lambda now: now.provision_state == 'available')
        self.assertEqual([False] * 4, hardware.mig_modes())
        self.until(lambda: not self.left(), 'nothing is left')

    def node(self, gpus):
        """Enroll a node with simulated GPUs, which is removed after the test.
        """
        there = []
        # This cleanup runs after the node is removed, so that other tests
        # find no trace of the node.
        self.addCleanup(lambda: self.until(
            lambda: not any(map(self.is_known, there)),
            'Nova has forgotten the node'))
        there.append(node_module.enroll(
            self, self.admin.baremetal, self.cloud.ironic_url, gpus,
            self.resource_class))
        return there[0]

    def make_profile(self):
        """Run ``openstack gpu profile sync``; return its flavor."""
        path = self.useFixture(fixtures.TempDir()).join('profiles.yaml')
        pathlib.Path(path).write_text(yaml.safe_dump({
            'version': 'v1', 'profiles': [{'name': _PROFILE, 'groups': [
                {'gpu': '1g.6gb', 'count': 2}], 'nodes': {
                    'resource_class': self.resource_class}}],
            'flavors': [{'name': self.resource_class, 'profile': _PROFILE,
                         'vcpus': 1, 'ram': 64, 'disk': 1}]}),
            encoding='utf-8')
        running.Openstack(connection.Cloud(self.admin, 'admin')).run(
            profile.SyncProfile, path, '--yes')
        template = self.admin.baremetal.get_deploy_template(_TRAIT)
        self.addCleanup(self.admin.baremetal.delete_deploy_template,
                        template)
        flavor = self.admin.compute.find_flavor(self.resource_class,
                                                ignore_missing=False)
        self.addCleanup(self.admin.compute.delete_flavor, flavor)
        return flavor

    def is_offered(self, node):
        """Whether Placement has the node as a candidate for the flavor."""
        resource_class = self.resource_class.upper().replace('-', '_')
        answer = self.admin.placement.get(
            '/allocation_candidates', params={
                'resources': f'CUSTOM_{resource_class}:1',
                'required': _TRAIT},
            headers={'OpenStack-API-Version': 'placement 1.17'})
        # Placement refuses the request until Nova has created the class.
        return node.uuid in answer.json().get('provider_summaries', ())

    def is_known(self, node):
        """Whether Placement has a provider for the node, in any state."""
        return self.admin.placement.get(
            f'/resource_providers/{node.uuid}').status_code == 200

    def is_settled(self, server):
        return self.admin.compute.get_server(server.id).status != 'BUILD'
