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

"""Ironic's deploy templates and nodes, with the nodes' GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import os_resource_classes as orc

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.baremetal.inventory import inventory
from cyborg_gpu_driver.baremetal.inventory import names
from cyborg_gpu_driver.cloud.api import connection
from cyborg_gpu_driver.cloud.api import placement_api
from cyborg_gpu_driver.cloud.api import responses
from cyborg_gpu_driver.cloud.profiles import baremetal_nodes
from cyborg_gpu_driver.cloud.profiles import baremetal_profile
from cyborg_gpu_driver.cloud.profiles import bodies
from cyborg_gpu_driver.cloud.profiles import resources
from cyborg_gpu_driver.record import codec

SERVICE = 'baremetal'
VERSION = '1.81'
"""The first microversion of Ironic's API with the inventory of a node. Deploy
templates (1.55) and traits (1.37) are older."""
_FIELDS = ('uuid', 'name', 'resource_class', 'traits', 'provision_state',
           'maintenance', 'retired')
_AVAILABLE = 'available'


def check(cloud: connection.Cloud) -> None:
    """Make sure that the cloud has an Ironic with all required features.

    :raises CloudError: if it does not; the error names what is missing.
    """
    if not cloud.has_service(SERVICE):
        raise cloud.error('its service catalogue has no service of type '
                          f'{SERVICE} (Ironic)')
    answer = cloud.ask(SERVICE, '/')
    with responses.understanding(cloud, 'Ironic', 'its version'):
        highest = answer['version']['version']
        if _numbers(highest) < _numbers(VERSION):
            raise cloud.error(
                f'its Ironic (service type {SERVICE}) has microversions up to '
                f'{highest}, but {VERSION} is required: deploy templates need '
                '1.55, node inventories need 1.81')


def template(cloud: connection.Cloud, name: str
             ) -> resources.Existing | None:
    """Return a deploy template; None if none has that name.

    :raises CloudError: if a request to Ironic fails.
    """
    answer = cloud.ask(SERVICE, f'/deploy_templates/{name}', VERSION)
    if answer is None:
        return None
    with responses.understanding(cloud, 'Ironic', f'deploy template {name}'):
        return resources.Existing(
            resources.DeployTemplate(
                codec.decode(str, answer['name']),
                baremetal_profile.steps_text(answer['steps'])),
            codec.decode(str, answer['uuid']),
            bodies.is_marked(answer['extra']))


def nodes(cloud: connection.Cloud) -> list[baremetal_nodes.Node]:
    """Return all nodes, without their GPUs.

    :raises CloudError: if a request to Ironic fails.
    """
    found: list[baremetal_nodes.Node] = []
    query = {'fields': ','.join(_FIELDS)}
    while True:
        answer = cloud.ask(SERVICE, '/nodes', VERSION, **query)
        with responses.understanding(cloud, 'Ironic', 'the list of nodes'):
            found += [_node(item) for item in answer['nodes']]
            if 'next' not in answer:
                return found
            query['marker'] = found[-1].identity


def with_gpus(cloud: connection.Cloud,
              listed: Collection[baremetal_nodes.Node]
              ) -> list[baremetal_nodes.Node]:
    """Return the nodes with their GPUs, in order; one request for each.

    :raises CloudError: if a request to Ironic fails.
    """
    return list(placement_api.at_once(
        lambda node: _inspected(cloud, node), listed))


def _inspected(cloud, node):
    answer = cloud.ask(SERVICE, f'/nodes/{node.identity}/inventory', VERSION)
    if answer is None:
        return dataclasses.replace(node, unknown='it has not been inspected')
    with responses.understanding(cloud, 'Ironic',
                                 f'the inventory of node {node.name}'):
        try:
            found = _gpus(answer['inventory'], answer['plugin_data'])
        except exception.InventoryError as error:
            return dataclasses.replace(node, unknown=str(error))
    if found is None:
        return dataclasses.replace(
            node, unknown='it was inspected without the collectors '
            'nvidia-gpus and pci-devices')
    return dataclasses.replace(node, found=found)


def _gpus(basic, sent):
    """The GPUs in stored inspection data; None if it has no list of devices.

    After an in-band inspection the PCI devices are in ``sent``, after an
    inspection by Redfish in ``basic``.
    """
    if names.KEY in sent:
        return inventory.parse(sent[names.KEY])
    for source in (sent, basic):
        if source.get(names.PCI_KEY):
            return inventory.from_pci(source[names.PCI_KEY])
    return None


def _node(item):
    resource_class = item['resource_class']
    return baremetal_nodes.Node(
        codec.decode(str, item['uuid']), item['name'] or item['uuid'],
        resource_class and orc.normalize_name(resource_class),
        codec.decode(frozenset[str], item['traits']), tuple(_hindrances(item)))


def _hindrances(item):
    if item['maintenance']:
        yield 'it is in maintenance'
    if item['retired']:
        yield 'it is retired'
    # Early versions of Ironic stored no state for an available node.
    state = item['provision_state'] or _AVAILABLE
    if state != _AVAILABLE:
        yield f'it is {state}'


def _numbers(version):
    return [int(part) for part in version.split('.')]
