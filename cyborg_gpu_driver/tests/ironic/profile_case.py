# SPDX-License-Identifier: Apache-2.0

"""The released Ironic with nodes whose inspection found simulated GPUs."""

from __future__ import annotations

import itertools
import json
import os
import uuid

import fixtures
import requests
from oslotest import base

from cyborg_gpu_driver.baremetal import inventory
from cyborg_gpu_driver.osc import profile
from cyborg_gpu_driver.tests import scope
from cyborg_gpu_driver.tests.ironic import services
from cyborg_gpu_driver.tests.unit.baremetal import inspected
from cyborg_gpu_driver.tests.unit.cloud import keystone
from cyborg_gpu_driver.tests.unit.cloud import services as cloud_services
from cyborg_gpu_driver.tests.unit.osc import running

_ADDRESSES = (f'52:54:00:fe:{number >> 8:02x}:{number & 255:02x}'
              for number in itertools.count())


class Nova:
    """A WSGI application that stands in for Nova and keeps flavors."""

    def __init__(self):
        self.flavors = []
        self._documents = cloud_services.documents({
            '/v2.1/flavors/detail': lambda _: {'flavors': self.flavors},
            '/v2.1/servers': lambda _: {'servers': []}}, cloud_services.NOVA)

    def __call__(self, environ, start_response):
        if environ['REQUEST_METHOD'] == 'GET':
            return self._documents(environ, start_response)
        body = json.loads(environ['wsgi.input'].read(
            int(environ['CONTENT_LENGTH'])))
        if 'flavor' in body:
            self.flavors.append({'id': uuid.uuid4().hex, 'extra_specs': {},
                                 **body['flavor']})
        else:
            self.flavors[-1]['extra_specs'].update(body['extra_specs'])
        start_response('200 OK', [('Content-Type', 'application/json')])
        return [json.dumps({'flavor': self.flavors[-1]}).encode()]


class ProfileCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.ironic = services.shared()
        self.baremetal = self.ironic.connection.baremetal
        self.nova = Nova()
        self.openstack = running.Openstack(self.useFixture(
            cloud_services.Services({
                'baremetal': cloud_services.forwarded(
                    self.ironic.url, keystone.TOKEN),
                'compute': self.nova})).cloud)
        # Other tests have nodes in the same Ironic.
        self.name = f'p{uuid.uuid4().hex[:8]}'
        self.resource_class = f'baremetal.{self.name}'
        self.placement_class = f'CUSTOM_BAREMETAL_{self.name.upper()}'
        self.trait = f'CUSTOM_GPU_LAYOUT_{self.name.upper()}'
        self.addCleanup(self.forget)

    def forget(self):
        for template in self.baremetal.deploy_templates():
            if template.name == self.trait:
                self.baremetal.delete_deploy_template(template)

    def node(self, machine=None, **kwargs):
        """Create a managed node; inspect it if it has a simulated machine."""
        node = self.baremetal.create_node(
            name=f'{self.name}-{uuid.uuid4().hex[:6]}',
            driver='fake-hardware', **{
                'resource_class': self.resource_class,
                'is_automated_clean_enabled': False, **kwargs})
        self.addCleanup(self.baremetal.delete_node, node)
        self.change(node, 'manage', 'manageable')
        if machine is not None:
            self.change(node, 'inspect', 'inspect wait')
            self.tell(node, {inventory.KEY: inspected.sent(
                inspected.snapshot(machine), {})})
            self.until(node, 'manageable')
        return node.name

    def tell(self, node, sent):
        """Send inspection data, as the ramdisk of the node would."""
        requests.post(
            f'{self.ironic.url}/v1/continue_inspection',
            params={'node_uuid': node.id}, timeout=scope.HANG,
            headers={'OpenStack-API-Version': 'baremetal 1.84'},
            json={**sent, 'inventory': {'interfaces': [{
                'name': 'eth0', 'mac_address': next(_ADDRESSES),
                'has_carrier': True, 'ipv4_address': None}]}}
        ).raise_for_status()

    def change(self, node, verb, state):
        """Request a change and wait for the state in which it ends."""
        self.baremetal.set_node_provision_state(node, verb)
        self.until(node, state)

    def until(self, node, state):
        services.until(
            lambda: self.baremetal.get_node(node).provision_state == state,
            scope.HANG, lambda: f'{self.baremetal.get_node(node)}')

    def create(self, groups, *arguments, flavors=(), **kwargs):
        """Create the profile.

        :returns: the rows by kind and name, and the standard error.
        """
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, 'file')
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump({'version': 'v1', 'flavors': flavors, 'profiles': [
                {'name': self.name, 'groups': groups,
                 'nodes': {'resource_class': self.resource_class}}]}, stream)
        output, errors = self.openstack.run(
            profile.SyncProfile, path, '-f', 'json', *arguments, **kwargs)
        return {(row['Kind'], row['Name']): row
                for row in json.loads(output)}, errors

    def template(self):
        """The deploy template; None if there is none."""
        return next((template for template
                     in self.baremetal.deploy_templates(details=True)
                     if template.name == self.trait), None)

    def traits(self, name):
        """The traits of a node."""
        return self.baremetal.get_node(name).traits
